"""Stop strings: found wherever they end, across tokens or inside one, with no text held back without need.

The result does not depend on how the text is cut into pushes: the stop that counts is the one a reader of single
characters would see complete first, and of those that end there the one that begins first.
"""

from collections.abc import Sequence
from functools import lru_cache


class StopMatcher:
    """Text goes in by pushes and comes out without what may yet become a stop string.

    `stop` is the stop string that was found, None before. With `include` the text ends with it, else before it.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self.stop: str | None = None
        self._include = include
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""  # the longest text that begins some stop string

    def push(self, text: str, armed: bool = True) -> str:
        """The text that is certain now. Not `armed`: what ends in this text is no stop."""
        found: tuple[int, str] | None = None
        longest = 0
        for automaton in self._automata:  # the longest first, so that it wins where two end together
            end = automaton.push(text, armed)
            if end is None:
                longest = max(longest, automaton.matched)
            elif found is None or end < found[0]:
                found = (end, automaton.stop)
        whole = self._held + text
        if found is None:
            certain = len(whole) - longest
            self._held = whole[certain:]
            return whole[:certain]
        end, self.stop = found
        end += len(self._held)
        self._held = ""
        return whole[: end if self._include else end - len(self.stop)]

    def flush(self) -> str:
        """What is held back: nothing more will come to complete it."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """One stop string by Knuth, Morris and Pratt: O(1) a character, however alike its parts are."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0  # characters of `stop` that the text so far ends with
        self._fallback = _fallbacks(stop)

    def push(self, text: str, armed: bool) -> int | None:
        """Where in `text` the first occurrence ends, None where none does."""
        stop, fallback, matched = self.stop, self._fallback, self.matched
        if not matched and stop[0] not in text:
            return None
        for index, character in enumerate(text):
            while matched and stop[matched] != character:
                matched = fallback[matched - 1]
            if stop[matched] == character:
                matched += 1
                if matched == len(stop):
                    if armed:
                        return index + 1
                    matched = fallback[matched - 1]
        self.matched = matched
        return None


@lru_cache(maxsize=64)  # the choices of a request have the same stop strings
def _fallbacks(stop: str) -> list[int]:
    """By characters matched - 1: the length of the next shorter prefix that ends there too."""
    fallbacks = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = fallbacks[length - 1]
        length += stop[index] == stop[length]
        fallbacks[index] = length
    return fallbacks

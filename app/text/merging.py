"""The model of a BPE tokenizer: one pre-tokenised word to token ids, with merges that are looked up in mapped arrays.

The library's `models.BPE` does the same with hash maps that take up to a second to fill. Semantics:
huggingface/tokenizers, `src/models/bpe/{model,word}.rs`. Plain Python on purpose: importing numpy would take longer
than most prompts do here, and long texts are not encoded here (long_texts.py).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import add
from typing import Final

_UNMERGED: Final = 1 << 64  # larger than any merge's rank << 32 | id
_ID_MASK: Final = 0xFFFF_FFFF
_LONG_WORD = 24  # a word of more characters is cut before it is looked for
_MANY_SYMBOLS = 200  # from here on a heap beats a search for the least rank
# What is kept of earlier work, in entries: about 60 MB together when all is full.
_MAX_WORDS = 65_536
_MAX_PAIRS = 131_072


class Merger:
    """Turns words into ids. Threads may share one: its tables are caches, whose entries are the same for all.

    pairs, merged, joins: arrays of mapped_file.py.
    symbols: a character's ids before any merge: its own token, or its bytes', or none.
    """

    def __init__(
        self,
        pairs: Sequence[int],
        merged: Sequence[int],
        joins: Sequence[int],
        symbols: Callable[[str], tuple[int, ...]],
    ) -> None:
        self._words: dict[str, tuple[int, ...]] = {}
        self._merges = _Merges(pairs, merged)
        self._joins = _Joins(joins)
        self._symbols = _Symbols(symbols)

    def encode(self, word: str) -> list[int]:
        if len(word) <= _LONG_WORD:
            return list(self._piece(word))
        # A character that adds nothing does not separate its neighbours.
        symbols = self._symbols
        word = "".join(filter(symbols.__getitem__, word))
        return [token for piece in self._cut(word) for token in self._piece(piece)]

    def _cut(self, word: str) -> list[str]:
        """Cuts between characters that no merged token has side by side: no merge ever crosses there."""
        joins = self._joins
        cuts = [at for at, pair in enumerate(map(add, word, word[1:]), 1) if not joins[pair]]
        return [word[start:end] for start, end in pairwise((0, *cuts, len(word)))]

    def _piece(self, piece: str) -> tuple[int, ...]:
        found = self._words.get(piece)
        if found is None:
            symbols = self._symbols
            found = tuple(self._merge([token for letter in piece for token in symbols[letter]]))
            if len(piece) <= _LONG_WORD:
                if len(self._words) >= _MAX_WORDS:
                    self._words.clear()
                self._words[piece] = found
        return found

    def _merge(self, tokens: list[int]) -> list[int]:
        """Merges the pair of the lowest rank, the leftmost of several, until there is none."""
        if len(tokens) >= _MANY_SYMBOLS:
            return self._merge_many(tokens)
        merges = self._merges
        ranked = [merges[left << 32 | right] for left, right in pairwise(tokens)]
        while ranked:
            least = min(ranked)
            if least == _UNMERGED:
                break
            at = ranked.index(least)
            token = least & _ID_MASK
            tokens[at : at + 2] = [token]
            del ranked[at]
            if at:
                ranked[at - 1] = merges[tokens[at - 1] << 32 | token]
            if at < len(ranked):
                ranked[at] = merges[token << 32 | tokens[at + 1]]
        return tokens

    def _merge_many(self, tokens: list[int]) -> list[int]:
        """The same by a heap of (rank, place); an entry whose pair has changed meanwhile is stale and skipped."""
        merges = self._merges
        count = len(tokens)
        following = list(range(1, count + 1))
        preceding = list(range(-1, count - 1))
        ranked = [merges[left << 32 | right] for left, right in pairwise(tokens)]
        ranked.append(_UNMERGED)
        heap = [(rank, at) for at, rank in enumerate(ranked) if rank != _UNMERGED]
        heapify(heap)
        while heap:
            least, at = heappop(heap)
            if ranked[at] != least:
                continue
            right = following[at]
            beyond = following[right]
            token = tokens[at] = least & _ID_MASK
            tokens[right] = -1
            ranked[right] = ranked[at] = _UNMERGED
            following[at] = beyond
            if beyond < count:
                preceding[beyond] = at
                rank = ranked[at] = merges[token << 32 | tokens[beyond]]
                if rank != _UNMERGED:
                    heappush(heap, (rank, at))
            before = preceding[at]
            if before >= 0:
                rank = ranked[before] = merges[tokens[before] << 32 | token]
                if rank != _UNMERGED:
                    heappush(heap, (rank, before))
        return [token for token in tokens if token >= 0]


class _Merges(dict[int, int]):
    """left id << 32 | right id -> rank << 32 | merged id, _UNMERGED where the pair is no merge. Filled as needed."""

    def __init__(self, pairs: Sequence[int], merged: Sequence[int]) -> None:
        self._pairs = pairs
        self._merged = merged

    def __missing__(self, pair: int) -> int:
        at = bisect_left(self._pairs, pair)
        found = self._merged[at] if at < len(self._pairs) and self._pairs[at] == pair else _UNMERGED
        if len(self) >= _MAX_PAIRS:
            self.clear()
        self[pair] = found
        return found


class _Joins(dict[str, bool]):
    """Two characters -> whether some merged token has them beside each other. Filled as needed."""

    def __init__(self, joins: Sequence[int]) -> None:
        self._joins = joins

    def __missing__(self, pair: str) -> bool:
        key = ord(pair[0]) << 32 | ord(pair[1])
        at = bisect_left(self._joins, key)
        found = at < len(self._joins) and self._joins[at] == key
        if len(self) >= _MAX_PAIRS:
            self.clear()
        self[pair] = found
        return found


class _Symbols(dict[str, tuple[int, ...]]):
    """A character -> its ids before any merge. Filled as needed; Unicode bounds it."""

    def __init__(self, find: Callable[[str], tuple[int, ...]]) -> None:
        self._find = find

    def __missing__(self, letter: str) -> tuple[int, ...]:
        found = self[letter] = self._find(letter)
        return found

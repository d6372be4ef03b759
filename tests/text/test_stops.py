import time

from hypothesis import given
from hypothesis import strategies as st

from pilotlight.text.stops import StopMatcher

LETTERS = st.text(alphabet="abc", max_size=12)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4)


def first_stop(text, stops):
    """By brute force: (start, stop) of the one that is complete first, the longest of those; None without any."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return end - len(stop), stop
    return None


def run(parts, stops, include=False):
    matcher = StopMatcher(stops, include)
    out = ""
    for part in parts:
        out += matcher.push(part)
        if matcher.stop is not None:
            return out, matcher.stop
    return out + matcher.flush(), None


@given(parts=st.lists(LETTERS, max_size=6), stops=STOPS, include=st.booleans())
def test_equals_brute_force_however_the_text_is_cut(parts, stops, include):
    text = "".join(parts)
    found = first_stop(text, stops)
    if found is None:
        assert run(parts, stops, include) == (text, None)
    else:
        start, stop = found
        assert run(parts, stops, include) == (text[: start + len(stop)] if include else text[:start], stop)


@given(text=LETTERS, stops=STOPS)
def test_holds_back_only_what_may_become_a_stop(text, stops):
    matcher = StopMatcher(stops)
    out = ""
    for at, letter in enumerate(text, 1):
        out += matcher.push(letter)
        if matcher.stop is not None:
            return
        begun = [n for stop in stops for n in range(1, len(stop)) if text[:at].endswith(stop[:n])]
        assert out == text[: at - max(begun, default=0)]


@given(before=LETTERS, after=st.lists(LETTERS, max_size=4), stops=STOPS)
def test_unarmed_text_ends_no_stop_but_may_begin_one(before, after, stops):
    text = before + "".join(after)
    ends = [
        (end, -len(stop), stop)
        for end in range(len(before) + 1, len(text) + 1)
        for stop in stops
        if text[:end].endswith(stop)
    ]
    matcher = StopMatcher(stops)
    out = matcher.push(before, armed=False)
    for part in after:
        if matcher.stop is None:
            out += matcher.push(part)
    if matcher.stop is None:
        out += matcher.flush()
    if ends:
        end, _, stop = min(ends)
        assert (out, matcher.stop) == (text[: end - len(stop)], stop)
    else:
        assert (out, matcher.stop) == (text, None)


def test_A03_what_was_held_back_comes_out_at_the_end():
    assert run(["UNO DUE ", "TRE"], ["TRE\nAAAA"]) == ("UNO DUE TRE", None)


def test_A05_a_stop_in_the_middle_of_a_piece():
    assert run(["foo\nbar"], ["\n"]) == ("foo", "\n")
    assert run(["foo\nbar"], ["\n"], include=True) == ("foo\n", "\n")


def test_the_stop_that_is_complete_first_wins():
    assert run(["xabcd"], ["abcd", "bc"]) == ("xa", "bc")
    assert run(["xabc"], ["bc", "abc"]) == ("x", "abc")  # both end together: the one that begins first


def test_a_long_periodic_stop_costs_linear_time():
    matcher = StopMatcher(["a" * 5000 + "b"])
    begun = time.process_time()
    for _ in range(200):
        matcher.push("a" * 500)
    assert matcher.push("b") == ""
    assert matcher.stop == "a" * 5000 + "b"
    assert time.process_time() - begun < 5

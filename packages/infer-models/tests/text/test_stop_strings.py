"""Stop strings: found wherever the text is cut, and never sent, not even in part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_models.text import StopStringMatcher

LETTERS = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=8), max_size=4)


def run(stops: list[str], deltas: list[str]) -> tuple[list[str], bool]:
    matcher = StopStringMatcher(stops)
    sent: list[str] = []
    for delta in deltas:
        text, stop = matcher.add(delta)
        sent.append(text)
        if stop is not None:
            return sent, True
    return [*sent, matcher.finish()], False


def text_before_stop(stops: list[str], text: str) -> tuple[str, bool]:
    """By definition: cut before the longest of the stop strings that are complete first."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@pytest.mark.covers("requests/stop-string-never-sent")
@given(stops=STOPS, deltas=st.lists(LETTERS))
def test_text_ends_before_the_first_stop_string_wherever_it_is_cut(stops: list[str], deltas: list[str]) -> None:
    sent, matched = run(stops, deltas)
    assert ("".join(sent), matched) == text_before_stop(stops, "".join(deltas))


@pytest.mark.covers("requests/stop-string-never-sent")
@given(stops=STOPS, text=LETTERS)
def test_all_text_that_cannot_begin_a_stop_string_is_sent_at_once(stops: list[str], text: str) -> None:
    matcher = StopStringMatcher(stops)
    sent, stop = matcher.add(text)
    if stop is None:
        held = text[len(sent) :]
        longest = next((text[i:] for i in range(len(text)) if any(s.startswith(text[i:]) for s in stops)), "")
        assert held == longest


@pytest.mark.covers("requests/stop-string-never-sent")
def test_a_beginning_is_held_back_until_it_leads_elsewhere() -> None:
    assert run(["\n\nUser:"], ["Hello", "\n", "\nUs", "e", " it"]) == (["Hello", "", "", "", "\n\nUse it", ""], False)


def test_a_beginning_is_sent_when_the_text_ends() -> None:
    assert run(["END"], ["the EN"]) == (["the ", "EN"], False)


@pytest.mark.covers("requests/ends-with-stop-string")
def test_a_stop_string_within_one_delta_ends_the_text() -> None:
    assert run(["END"], ["the END of"]) == (["the "], True)


def test_a_stop_string_that_overlaps_itself_is_found() -> None:
    assert run(["aab"], ["aa", "a", "b"]) == (["", "a", ""], True)


@pytest.mark.parametrize("stops", [["ab", "b", "xab"], ["xab", "b", "ab"]])
def test_of_stop_strings_that_end_together_the_longest_counts(stops: list[str]) -> None:
    assert run(stops, ["yx", "ab"]) == (["y", ""], True)


def test_nothing_is_sent_after_a_match() -> None:
    matcher = StopStringMatcher(["x"])
    assert matcher.add("ax") == ("a", "x")
    assert matcher.add("more") == ("", "x")
    assert matcher.finish() == ""


@given(stops=STOPS, text=LETTERS)
def test_the_stop_string_that_ended_the_text_is_told(stops: list[str], text: str) -> None:
    before, stop = StopStringMatcher(stops).add(text)
    assert stop is None or (stop in stops and text.startswith(before + stop))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="`stop` holds an empty string"):
        StopStringMatcher(["a", ""])


@given(stops=STOPS, passed=st.lists(LETTERS, max_size=3), deltas=st.lists(LETTERS))
def test_a_stop_string_that_ends_in_text_passed_over_does_not_count(
    stops: list[str], passed: list[str], deltas: list[str]
) -> None:
    matcher = StopStringMatcher(stops)
    sent = [matcher.pass_over(delta) for delta in passed]
    before, text, matched = len("".join(passed)), "".join([*passed, *deltas]), None
    for delta in deltas:
        piece, matched = matcher.add(delta)
        sent.append(piece)
        if matched is not None:
            break
    for end in range(before + 1, len(text) + 1):
        if any(text[:end].endswith(stop) for stop in stops):
            assert matched == max((stop for stop in stops if text[:end].endswith(stop)), key=len)
            assert text.startswith("".join(sent))
            assert len("".join(sent)) == end - max(len(stop) for stop in stops if text[:end].endswith(stop))
            return
    assert "".join([*sent, matcher.finish()]) == text

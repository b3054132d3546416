"""`SuffixProposer`: which drafts follow the longest suffix that came before, and where it is looked for."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.speculation.answer_history import AnswerHistory
from infer_engine.speculation.proposals import Source
from infer_engine.speculation.suffix import SuffixProposer
from infer_engine.speculation.token_text import MAX_MATCH, Match, TokenText

FEW_TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def text_of(token_ids: Sequence[int], *, shortest: int = 2, piece: int = 100) -> TokenText:
    text = TokenText(max_tokens=10_000, shortest_match=shortest)
    for start in range(0, len(token_ids), piece):
        text.append(token_ids[start : start + piece])
    return text


def longest_match(token_ids: Sequence[int], last_tokens: Sequence[int], shortest: int = 2) -> Match:
    """Return what is looked for, place by place."""
    best = Match(0, 0)
    for end in range(1, len(token_ids)):
        length = 0
        while length < min(end, len(last_tokens)) and token_ids[end - 1 - length] == last_tokens[-1 - length]:
            length += 1
        if length >= max(shortest, best.length):
            best = Match(end, length)
    return best


@given(FEW_TOKENS, FEW_TOKENS, st.sampled_from((2, 3)), st.integers(1, 9))
def test_the_latest_of_the_longest_matches_is_found(
    token_ids: list[int], last_tokens: list[int], shortest: int, piece: int
) -> None:
    text = text_of(token_ids, shortest=shortest, piece=piece)
    assert text.longest_match(last_tokens) == longest_match(token_ids, last_tokens, shortest)
    assert text.longest_match(token_ids) == longest_match(token_ids, token_ids, shortest)


def test_the_earliest_tokens_are_dropped_when_there_are_too_many() -> None:
    text = TokenText(max_tokens=10)
    for start in range(0, 30, 3):
        text.append([start, start + 1, start + 2])
        assert len(text) <= 10
        assert text.num_appended == start + 3
        assert text.read(0, 100) == list(range(text.num_dropped, start + 3))
    assert text.longest_match([28, 29]) == Match(0, 0)  # only what has a token behind it
    assert text.longest_match([27, 28]).length == 2


@pytest.mark.parametrize(
    ("token_ids", "limit", "expected"),
    [
        ([1, 2, 3, 4, 9, 8, 1, 2, 3], 8, [4, 9, 8]),  # no more than are matched
        ([1, 2, 3, 4, 9, 8, 1, 2, 3], 1, [4]),
        ([1, 2, 3, 4, 5, 2, 3, 6, 1, 2, 3], 1, [4]),  # the longest, not the latest
        ([2, 3, 5, 1, 2, 3, 6, 4, 2, 3], 1, [6]),  # the latest of equal ones
        ([7, 3, 4, 3], 8, []),  # one token is too few
        ([5, 5, 5, 5, 5], 8, [5, 5, 5, 5]),  # what repeats itself goes on
        ([1, 2, 1, 2, 1, 2], 8, [1, 2, 1, 2]),
        ([1], 8, []),
        ([1, 2, 1, 2], 0, []),
    ],
)
def test_a_sequence_goes_on_as_behind_its_longest_suffix(token_ids: list[int], limit: int, expected: list[int]) -> None:
    assert SuffixProposer().propose(token_ids, limit).token_ids == expected


@given(FEW_TOKENS, st.lists(st.integers(1, 9), max_size=9))
def test_drafts_are_what_followed_the_same_tokens(token_ids: list[int], steps: list[int]) -> None:
    proposer, length = SuffixProposer(), 1
    for step in steps:
        known = token_ids[:length]
        drafts, _ = proposer.propose(known, 5)
        if drafts:
            places = [p for p in range(2, length) if known[p - 2 : p] == known[-2:] and known[p] == drafts[0]]
            assert places
        else:
            assert longest_match(known, known).length < 2
        length = min(length + step, len(token_ids))


def test_a_match_that_goes_on_grows_longer() -> None:
    said = list(range(100, 140))
    proposer = SuffixProposer()
    found = [proposer.propose([*said, 7, *said[: 2 + done]], 16) for done in (0, 2, 6, 14)]
    assert [len(each.token_ids) for each in found] == [2, 4, 8, 16]
    assert [each.source for each in found] == [Source.SHORT_MATCH] * 2 + [Source.LONG_MATCH] * 2
    assert all(each.token_ids == said[2 + done :][: 2 + done] for each, done in zip(found, (0, 2, 6, 14), strict=True))


def test_earlier_answers_are_found_by_the_end_of_their_question_under_the_same_salt() -> None:
    history = AnswerHistory()
    history.add("a", [1, 2, 3, 40, 41, 42, 43], num_prompt_tokens=3)
    history.add("a", [5, 2, 3, 50, 51, 52, 53], num_prompt_tokens=3)
    for salt, prompt, expected in (
        ("a", [1, 2, 3], [40, 41, 42]),
        ("a", [5, 2, 3], [50, 51, 52]),
        ("a", [9, 9, 51, 52, 53], []),  # nothing behind an answer
        ("a", [8, 2, 3], []),  # two tokens are too few
        ("b", [1, 2, 3], []),
        (None, [1, 2, 3], []),
        ("", [1, 2, 3], []),
    ):
        assert SuffixProposer(history=history.of(salt)).propose(prompt, 16).token_ids == expected


# ggml-org/llama.cpp#21815: places that were noted before the text became shorter
def test_answers_that_come_and_go_under_a_sequence_are_none_of_its_drafts_later() -> None:
    history = AnswerHistory()
    history.add(None, [*range(5_000), 7, 8, 9], num_prompt_tokens=3)
    proposer = SuffixProposer(history=history.of(None))
    assert proposer.propose([100, 101, 102], 4).token_ids == [103, 104, 105]
    history.add(None, [*range(20_000, 36_000)], num_prompt_tokens=3)
    history.add(None, [*range(40_000, 56_000)], num_prompt_tokens=3)  # the first one is dropped
    assert proposer.propose([100, 101, 102, 103], 4).token_ids == []


def test_the_salts_that_were_used_last_are_kept() -> None:
    history = AnswerHistory()
    history.add("first", [1, 2, 3, 4], num_prompt_tokens=3)
    for number in range(200):
        history.add(str(number), [1, 2, 3, 4], num_prompt_tokens=3)
        history.of("often").append([])
    assert len(history.of("199"))
    assert not len(history.of("first"))


def test_a_prediction_is_followed_from_its_beginning_and_again_behind_a_change() -> None:
    prompt, predicted = [1, 2, 3], list(range(50, 90))
    proposer = SuffixProposer(prediction=predicted, num_prompt_tokens=3)
    assert proposer.propose(prompt, 16) == (predicted[:16], Source.PREDICTION)
    assert proposer.propose([*prompt, *predicted[:5]], 4) == (predicted[5:9], Source.PREDICTION)
    changed = [*prompt, *predicted[:5], 7]
    assert proposer.propose(changed, 4).token_ids == []
    assert proposer.propose([*changed, *predicted[8:10]], 4) == (predicted[10:12], Source.PREDICTION)


def test_a_prediction_counts_only_if_the_answer_begins_with_it() -> None:
    proposer = SuffixProposer(prediction=list(range(50, 90)), num_prompt_tokens=3)
    assert proposer.propose([1, 2, 3, 7], 16).token_ids == []
    assert SuffixProposer(prediction=[50, 51], num_prompt_tokens=1).propose([1, 50], 16).token_ids == [51]


def test_a_long_sequence_is_looked_at_whole() -> None:
    sequence = [*range(40_000), *range(9, 9 + MAX_MATCH)]
    assert SuffixProposer().propose(sequence, 2).token_ids == [9 + MAX_MATCH, 10 + MAX_MATCH]

"""`NgramProposer`: which drafts follow the last tokens of a sequence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.speculation.ngram import NgramProposer


@pytest.mark.parametrize(
    ("token_ids", "limit", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], 4, [4, 9, 1, 2]),
        ([1, 2, 3, 4, 9, 1, 2, 3], 1, [4]),
        ([7, 2, 3, 4, 9, 1, 2, 3], 4, [4, 9, 1, 2]),  # two tokens are enough
        ([1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3], 1, [6]),  # the latest place
        ([2, 3, 5, 1, 2, 3, 6, 4, 2, 3], 1, [6]),
        ([1, 2, 3, 4], 4, []),
        ([5, 5, 5], 4, [5]),
        ([1], 4, []),
        ([1, 2, 1, 2], 0, []),
    ],
)
def test_a_sequence_goes_on_as_it_did_where_its_last_tokens_came_before(
    token_ids: list[int], limit: int, expected: list[int]
) -> None:
    assert NgramProposer().propose(token_ids, limit).token_ids == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.integers(1, 9), max_size=9))
def test_a_sequence_that_grows_is_drafted_as_a_new_one(token_ids: list[int], steps: list[int]) -> None:
    proposer, length = NgramProposer(shortest=1, longest=4), 1
    for step in steps:
        assert proposer.propose(token_ids[:length], 3) == NgramProposer(shortest=1, longest=4).propose(
            token_ids[:length], 3
        )
        length = min(length + step, len(token_ids))


def test_a_long_prompt_is_taken_into_account_step_by_step() -> None:
    proposer, prompt = NgramProposer(), [*range(5_000), 4_000, 4_001, 4_002]
    found = [proposer.propose(prompt, 2).token_ids for _ in range(6)]
    assert found == [[]] * 3 + [[4_003, 4_004]] * 3

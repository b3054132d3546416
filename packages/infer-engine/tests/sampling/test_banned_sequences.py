"""Sequences of tokens that must not be generated: the token that would complete one is forbidden."""

from hypothesis import given
from hypothesis import strategies as st

from infer_engine.sampling.banned_sequences import BannedSequences

TOKENS = st.integers(min_value=0, max_value=3)


@given(
    banned=st.lists(st.lists(TOKENS, min_size=2, max_size=4), max_size=5),
    prompt=st.lists(TOKENS, min_size=1, max_size=4),
    generated=st.lists(TOKENS, max_size=8),
)
def test_a_token_is_forbidden_where_it_completes_a_sequence(
    banned: list[list[int]], prompt: list[int], generated: list[int]
) -> None:
    sequences = BannedSequences(banned)
    found = set(sequences.forbidden_after([*prompt, *generated], len(prompt)))
    assert found == {token for token in range(4) if any([*generated, token][-len(each) :] == each for each in banned)}
    assert bool(sequences) == bool(banned)

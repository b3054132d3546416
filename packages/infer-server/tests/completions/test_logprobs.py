"""Log-probabilities in OpenAI's formats: offsets of tokens, and values that JSON cannot express."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.protocol import TokenLogprob
from infer_server.openai.logprobs import CompletionLogprobLists, chat_token_logprob, joined_lists

VOCABULARY = {0: b"<s>", 1: b"h", 2: b"i", 3: b"\xf0\x9f", 4: b"\x98\x80", 5: "é".encode(), 6: b"\xe2\x82"}


def chosen(token_id: int, *, logprob: float = -1.0, top: list[tuple[int, float]] | None = None) -> TokenLogprob:
    return TokenLogprob(token_id=token_id, logprob=logprob, rank=1, top=top or [])


def lists() -> CompletionLogprobLists:
    return CompletionLogprobLists(VOCABULARY.__getitem__)


def test_token_that_the_prompts_text_does_not_have_takes_no_room_in_it() -> None:
    made = lists().of_prompt([0, 1, 2], [None, chosen(1), chosen(2)], text="hi")
    assert made.tokens == ["<s>", "h", "i"]
    assert made.text_offset == [0, 0, 1]


def test_tokens_after_an_echoed_prompt_begin_at_its_end() -> None:
    choice = lists()
    choice.of_prompt([0, 1], [None, chosen(1)], text="h and what no token says")
    assert choice.of_tokens([chosen(1)]).text_offset == [24]


def test_parts_of_a_character_are_shown_by_a_replacement_and_count_as_one_when_whole() -> None:
    made = lists().of_tokens([chosen(3), chosen(4), chosen(5), chosen(2)])
    assert made.tokens == ["\ufffd", "\ufffd\ufffd", "é", "i"]
    assert made.text_offset == [0, 0, 1, 2]


@given(st.text(alphabet="aé€😀", min_size=1), st.data())
def test_offsets_of_any_text_cut_anywhere_are_its_whole_characters_so_far(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(encoded)))) | {0, len(encoded)})
    pieces = [encoded[start:end] for start, end in pairwise(cuts)]
    entries = [chosen(index) for index in range(len(pieces))]
    whole_characters = [len(encoded[:start].decode("utf-8", "ignore")) for start in cuts[:-1]]
    made = CompletionLogprobLists(pieces.__getitem__).of_tokens(entries)
    assert made.text_offset == whole_characters
    prompt = CompletionLogprobLists(pieces.__getitem__).of_prompt(range(len(pieces)), entries, text=text)
    assert prompt.text_offset == whole_characters


def test_chosen_token_is_listed_beside_the_most_probable_ones() -> None:
    (top,) = lists().of_tokens([chosen(5, logprob=-7.0, top=[(1, -0.1), (2, -2.0)])]).top_logprobs
    assert list((top or {}).items()) == [("h", -0.1), ("i", -2.0), ("é", -7.0)]


def test_tokens_that_share_a_text_leave_it_to_the_chosen_one_and_then_to_the_best() -> None:
    (best,) = lists().of_tokens([chosen(1, top=[(3, -0.1), (6, -2.0)])]).top_logprobs
    assert best == {"\ufffd": -0.1, "h": -1.0}
    (own,) = lists().of_tokens([chosen(6, logprob=-2.0, top=[(3, -0.1), (6, -2.0)])]).top_logprobs
    assert own == {"\ufffd": -2.0}


@pytest.mark.parametrize("logprob", [-math.inf, -1e30])
def test_impossible_token_has_a_number_that_json_can_say(logprob: float) -> None:
    entry = chosen(1, logprob=logprob, top=[(2, logprob)])
    made = lists().of_tokens([entry])
    assert made.token_logprobs == [-9999.0]
    assert made.top_logprobs == [{"i": -9999.0, "h": -9999.0}]
    chat = chat_token_logprob(entry, VOCABULARY.__getitem__)
    assert (chat.logprob, chat.top_logprobs[0].logprob) == (-9999.0, -9999.0)


def test_chat_lists_bytes_so_that_clients_can_join_characters() -> None:
    made = [chat_token_logprob(chosen(token_id), VOCABULARY.__getitem__) for token_id in (3, 4)]
    assert bytes(byte for token in made for byte in token.bytes).decode() == "😀"


def test_joined_lists_are_those_of_the_pieces_in_order() -> None:
    choice, whole = lists(), lists()
    pieces = [choice.of_tokens([chosen(1)]), choice.of_tokens([chosen(2)])]
    assert joined_lists(pieces) == whole.of_tokens([chosen(1), chosen(2)])

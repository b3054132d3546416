"""Streaming text: whatever the tokenizer and the token boundaries, the deltas are the decoded text."""

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from infer_models.text import IncrementalDetokenizer, Tokenizer
from infer_proofs.text import byte_fallback, byte_level, word_piece

BYTE_LEVEL = Tokenizer(byte_level())
BYTE_FALLBACK = Tokenizer(byte_fallback())
KINDS = {"byte_level": BYTE_LEVEL, "byte_fallback": BYTE_FALLBACK, "word_piece": Tokenizer(word_piece())}

SNIPPETS = [
    "the ",
    " quick",
    "don't",
    "  ",
    "é",
    "e\u0301",
    "日本",
    "👩‍👩‍👧",
    "🇩🇪",
    "\ufffd",
    "\n",
    " ",
    "\u200b",
    "Ω",
    "x",
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(SNIPPETS)).map("".join))


def stream(tokenizer: Tokenizer, prompt_ids: list[int], token_ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids)
    return [*(detokenizer.add(token_id) for token_id in token_ids), detokenizer.finish()]


def continuation(tokenizer: Tokenizer, prompt_ids: list[int], token_ids: list[int]) -> str:
    """What the whole text has beyond the text of the prompt."""
    prompt, whole = tokenizer.decode(prompt_ids), tokenizer.decode(prompt_ids + token_ids)
    common = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    return whole[common:]


@pytest.mark.covers("requests/deltas-join-up")
@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(text=TEXTS, cut=st.integers(0, 200), end=st.integers(1, 200))
def test_deltas_join_up_to_the_decoded_text(tokenizer: Tokenizer, text: str, cut: int, end: int) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    prompt, generated = token_ids[:cut], token_ids[cut : cut + end]
    assert "".join(stream(tokenizer, prompt, generated)) == continuation(tokenizer, prompt, generated)


@pytest.mark.covers("requests/deltas-join-up")
@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(data=st.data())
def test_deltas_of_random_tokens_join_up_to_the_decoded_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    any_tokens = st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40)
    prompt, generated = data.draw(any_tokens), data.draw(any_tokens)
    assert "".join(stream(tokenizer, prompt, generated)) == continuation(tokenizer, prompt, generated)


@pytest.mark.covers("requests/deltas-join-up")
@given(text=TEXTS)
def test_a_delta_never_ends_within_a_character(text: str) -> None:
    token_ids = BYTE_LEVEL.encode(text)
    deltas = stream(BYTE_LEVEL, [], token_ids)
    assert "".join(deltas).count("\ufffd") == text.count("\ufffd")


def test_a_character_is_sent_with_its_last_byte() -> None:
    token_ids = BYTE_LEVEL.encode("🙂!")
    assert stream(BYTE_LEVEL, [], token_ids) == ["", "", "", "🙂", "!", ""]


def test_fallback_bytes_are_sent_with_the_token_that_follows_them() -> None:
    prompt, token_ids = BYTE_FALLBACK.encode("the"), BYTE_FALLBACK.encode("🙂x", add_special_tokens=False)
    assert stream(BYTE_FALLBACK, prompt, token_ids) == [" ", "", "", "", "", "🙂x", ""]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte_level", "byte_fallback"])
def test_a_character_begun_by_the_prompt_is_sent_whole(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("the 🙂 fox")
    for cut in range(1, len(token_ids)):
        text = "".join(stream(tokenizer, token_ids[:cut], token_ids[cut:]))
        assert "\ufffd" not in text
        assert "the 🙂 fox".endswith(text)


def test_a_character_broken_off_by_the_prompt_is_no_part_of_the_answer() -> None:
    prompt = BYTE_LEVEL.encode("the 🙂")[:-2]
    assert "".join(stream(BYTE_LEVEL, prompt, BYTE_LEVEL.encode(" fox"))) == " fox"


def test_a_broken_character_is_replaced_at_the_end() -> None:
    token_ids = BYTE_LEVEL.encode("x🙂")[:-1]
    assert stream(BYTE_LEVEL, [], token_ids) == ["x", "", "", "", "\ufffd"]


@pytest.mark.covers("requests/deltas-join-up")
def test_the_first_space_after_the_prompt_is_kept() -> None:
    prompt, generated = BYTE_FALLBACK.encode("the quick"), BYTE_FALLBACK.encode("brown fox", add_special_tokens=False)
    assert BYTE_FALLBACK.decode(generated) == "brown fox"
    assert "".join(stream(BYTE_FALLBACK, prompt, generated)) == " brown fox"


def test_the_first_space_after_a_special_token_is_kept() -> None:
    prompt, generated = BYTE_FALLBACK.encode("the"), BYTE_FALLBACK.encode("fox", add_special_tokens=False)
    end = [2] * 20
    assert "".join(stream(BYTE_FALLBACK, prompt + end, end + generated)) == " fox"


def test_special_tokens_have_text_where_asked_for() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], skip_special_tokens=False)
    token_ids = BYTE_LEVEL.encode("fox<|im_end|>")
    assert "".join(detokenizer.add(token_id) for token_id in token_ids) == "fox<|im_end|>"


class CountingTokenizer(Tokenizer):
    """A tokenizer that notes how many tokens it is asked to decode at once."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__(tokenizer)
        self.decoded_lengths: list[int] = []

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self.decoded_lengths.append(len(token_ids))
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.covers("requests/cost-of-detokenizing")
@pytest.mark.parametrize("text", ["the quick brown fox ", "\ufffd", "é日", "\x00"])
def test_a_token_costs_the_same_after_many_tokens(text: str) -> None:
    tokenizer = CountingTokenizer(byte_level())
    token_ids = tokenizer.encode(text * 200)
    assert "".join(stream(tokenizer, [], token_ids)) == text * 200
    assert max(tokenizer.decoded_lengths) < 16
    assert len(tokenizer.decoded_lengths) <= 2 * len(token_ids) + 2


@pytest.mark.covers("requests/cost-of-detokenizing")
def test_broken_bytes_without_end_cost_the_same_each() -> None:
    tokenizer = CountingTokenizer(byte_level())
    (broken,) = [i for i in range(tokenizer.vocab_size) if tokenizer.id_to_token(i) == "ÿ"]
    assert "".join(stream(tokenizer, [], [broken] * 300)) == "\ufffd" * 300
    assert max(tokenizer.decoded_lengths) < 16

"""The bytes of a token: joined, they are the text, whatever the tokenizer."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from infer_models.text import Tokenizer
from infer_proofs.text import byte_fallback, byte_level, every_kind, word_piece

KINDS = every_kind()
BYTE_LEVEL, BYTE_FALLBACK = KINDS["byte_level"], KINDS["byte_fallback"]
SNIPPETS = ["the ", "don't", "  ", "é", "e\u0301", "日本", "👩‍👩‍👧", "\ufffd", "\n", "<|im_end|>", "<tool>", "▁", "x"]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(SNIPPETS)).map("".join))


def joined(tokenizer: Tokenizer, token_ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, token_ids))


def spelled(tokenizer: Tokenizer, token: str) -> bytes:
    (token_id,) = [i for i in range(tokenizer.vocab_size) if tokenizer.id_to_token(i) == token]
    return tokenizer.token_bytes(token_id)


@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(text=TEXTS)
def test_bytes_join_up_to_the_decoded_text(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    expected = tokenizer.decode(token_ids, skip_special_tokens=False)
    assert joined(tokenizer, token_ids).decode().removeprefix(" ") == expected.removeprefix(" ")


@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(data=st.data())
def test_bytes_of_random_tokens_join_up_to_the_decoded_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    # A decoder of fallback bytes replaces all of a run if one byte of it is broken: bytes of text are tested above.
    token_ids_of_text = [i for i in range(tokenizer.vocab_size + 4) if i not in tokenizer.fallback_byte_ids]
    any_token = st.sampled_from(token_ids_of_text)
    # Decoders show the token that a text begins with in their own ways.
    token_ids = tokenizer.encode("the") + data.draw(st.lists(any_token, max_size=20))
    expected = tokenizer.decode(token_ids, skip_special_tokens=False)
    assert joined(tokenizer, token_ids).decode(errors="replace").removeprefix(" ") == expected.removeprefix(" ")


def test_a_token_may_stand_for_a_part_of_a_character() -> None:
    tokenizer = Tokenizer(byte_level(texts=[]))
    assert list(map(tokenizer.token_bytes, tokenizer.encode("é €"))) == [
        b"\xc3",
        b"\xa9",
        b" ",
        b"\xe2",
        b"\x82",
        b"\xac",
    ]


def test_every_byte_has_a_token_of_its_own_in_a_byte_level_vocabulary() -> None:
    alphabet = [spelled(BYTE_LEVEL, character) for character in pre_tokenizers.ByteLevel.alphabet()]
    assert sorted(alphabet) == [bytes([byte]) for byte in range(256)]


def test_a_fallback_token_is_its_byte_and_a_word_begins_with_its_space() -> None:
    assert spelled(BYTE_FALLBACK, "<0xE2>") == b"\xe2"
    assert spelled(BYTE_FALLBACK, "▁t") == b" t"


def test_byte_tokens_that_the_decoder_does_not_join_are_their_names() -> None:
    raw = byte_fallback()
    raw.decoder = tokenizers.decoders.Metaspace()
    assert spelled(Tokenizer(raw), "<0xE2>") == b"<0xE2>"
    assert spelled(Tokenizer(raw), "▁t") == b" t"


def test_parts_of_words_have_no_space() -> None:
    tokenizer = Tokenizer(word_piece())
    assert spelled(tokenizer, "##e") == b"e"
    assert spelled(tokenizer, "the") == b" the"


def test_without_a_decoder_tokens_are_apart() -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer(models.WordLevel(vocab={"to": 0, "be": 1})))
    assert joined(tokenizer, [0, 1]).decode() == " " + tokenizer.decode([0, 1])


def test_special_and_added_tokens_are_their_content() -> None:
    raw = byte_level()
    size = raw.get_vocab_size()
    raw.add_tokens(["<tool>", "日本"])
    tokenizer = Tokenizer(raw)
    assert joined(tokenizer, [2, size, size + 1]).decode() == "<|im_end|><tool>日本"


@pytest.mark.parametrize("token_id", [-1, 10_000, 2**40])
def test_an_id_without_a_token_has_no_bytes(token_id: int) -> None:
    assert [tokenizer.token_bytes(token_id) for tokenizer in KINDS.values()] == [b""] * len(KINDS)


def test_threads_that_ask_at_once_are_told_the_same() -> None:
    tokenizer, token_ids = Tokenizer(byte_level()), range(BYTE_LEVEL.vocab_size)
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: joined(tokenizer, [*token_ids]), range(8))
    assert set(answers) == {joined(BYTE_LEVEL, [*token_ids])}

"""Long texts: the same ids, a limit that holds, and a refusal by length alone only where it is certain."""

import unicodedata

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from infer_models.text import TextTooLongError, Tokenizer
from infer_models.text.slicing import SLICE_LENGTH, change_in_slices, slices
from infer_models.text.token_count_bound import max_bytes_per_token
from infer_proofs.text import (
    byte_fallback,
    byte_level,
    chat_tokenizer,
    every_kind,
    split_byte_level,
    word_piece,
)

KINDS = every_kind()
SNIPPETS = [
    "the ",
    " quick",
    " " * 40,
    "é",
    "e\u0301",
    "日本",
    "\u1fbe\u0308\u0301",
    "ﬁe\u0301",
    "<|im_end|>",
    "<tool>",
    "\n",
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(SNIPPETS)).map("".join))


def refused(tokenizer: Tokenizer, text: str, *, max_tokens: int) -> int:
    """How many tokens a refused text is said to have at least."""
    with pytest.raises(TextTooLongError, match=r"at least \d+ tokens") as refusal:
        tokenizer.encode(text, max_tokens=max_tokens)
    return refusal.value.num_tokens


RAW = {"byte_level": byte_level(), "split": split_byte_level(), "fallback": byte_fallback(), "word_piece": word_piece()}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
@given(text=TEXTS)
def test_ids_are_those_of_the_slow_way(raw: tokenizers.Tokenizer, text: str) -> None:
    assert Tokenizer(raw).encode(text) == raw.encode(text).ids


@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(text=TEXTS)
def test_a_text_may_have_as_many_tokens_as_the_limit_and_no_more(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    assert tokenizer.encode(text, max_tokens=len(token_ids)) == token_ids
    if token_ids:
        assert refused(tokenizer, text, max_tokens=len(token_ids) - 1) == len(token_ids)


@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(text=TEXTS.filter(bool))
def test_a_refused_text_has_at_least_as_many_tokens_as_is_said(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    if token_ids:
        assert 1 <= refused(tokenizer, text, max_tokens=0) <= len(token_ids)


@given(word=st.sampled_from(["ab", "日本", "ΐ", "\u1fbe\u0308\u0301", "Ω\u0313\u0300\u0345"]), count=st.integers(1, 40))
@example(word="\u1fbe\u0308\u0301", count=8)
def test_text_that_shrinks_while_it_is_composed_is_not_overestimated(word: str, count: int) -> None:
    raw = split_byte_level([unicodedata.normalize("NFC", word) * 8] * 2, vocab_size=290)
    tokenizer = Tokenizer(raw)
    assert refused(tokenizer, word * count, max_tokens=0) <= len(tokenizer.encode(word * count))


def test_composing_leaves_at_least_a_fourth_of_a_text() -> None:
    def longest_source(character: str) -> int:
        return sum(longest.get(part, len(part.encode())) for part in unicodedata.normalize("NFD", character))

    characters = [chr(code) for code in range(0x110000) if unicodedata.decomposition(chr(code))]
    longest: dict[str, int] = {}
    for character in characters:
        part = unicodedata.normalize("NFD", character)
        if len(part) == 1:
            longest[part] = max(longest.get(part, len(part.encode())), len(character.encode()))
    assert all(longest_source(character) >= len(character.encode()) for character in characters)
    assert max(longest_source(character) / len(character.encode()) for character in characters) <= 4


def test_a_text_of_the_longest_tokens_has_as_few_tokens_as_its_length_allows() -> None:
    raw = byte_level()
    added = "<" + "é" * 20 + ">"
    raw.add_tokens([added])
    assert refused(Tokenizer(raw), added * 50, max_tokens=0) == len(Tokenizer(raw).encode(added * 50)) == 50


def test_a_text_far_too_long_is_refused_by_its_length() -> None:
    text = "é" * 300_000
    longest = max_bytes_per_token(byte_level())
    assert longest == len("<|im_start|>")
    assert refused(KINDS["byte_level"], text, max_tokens=9) == 2 * len(text) // longest < len(text)


def without_a_byte() -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return raw


def with_affixes() -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], end_of_word_suffix="</w>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return raw


def changed(**parts: object) -> tokenizers.Tokenizer:
    raw = byte_level()
    for name, part in parts.items():
        setattr(raw, name, part)
    return raw


def truncating() -> tokenizers.Tokenizer:
    raw = byte_level()
    raw.enable_truncation(2)
    return raw


def stripping() -> tokenizers.Tokenizer:
    raw = byte_level()
    raw.add_tokens([AddedToken("<sep>", rstrip=True)])
    return raw


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
LOSSY = {
    "byte_fallback": byte_fallback(),
    "word_piece": word_piece(),
    "without_a_byte": without_a_byte(),
    "with_affixes": with_affixes(),
    "truncating": truncating(),
    "stripping": stripping(),
    "whole_text": changed(pre_tokenizer=pre_tokenizers.Digits()),
    "spaces_dropped": changed(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), BYTES])),
    "split_dropped": changed(
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(" "), "removed"), BYTES])
    ),
    "lowercase": changed(normalizer=normalizers.Lowercase()),
    "more_than_composed": changed(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])),
    "compatible": changed(normalizer=normalizers.NFKC()),
}


@pytest.mark.parametrize("raw", LOSSY.values(), ids=LOSSY)
def test_length_says_nothing_where_text_may_get_lost(raw: tokenizers.Tokenizer) -> None:
    assert max_bytes_per_token(raw) is None


@pytest.mark.parametrize("text", ["", "ab", "a\ud83d\ude42", "\ud83d" * 3 + "\ude42"])
@pytest.mark.parametrize("num_before", range(SLICE_LENGTH - 3, SLICE_LENGTH + 1))
def test_a_text_changed_in_slices_is_changed_as_a_whole(text: str, num_before: int) -> None:
    long_text = "x" * num_before + text + "é" * SLICE_LENGTH
    assert "".join(slices(long_text)) == long_text
    repaired = KINDS["byte_level"].decode(KINDS["byte_level"].encode(long_text))
    assert repaired == long_text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert change_in_slices(long_text, str.upper) == long_text.upper()


@given(
    num_before=st.integers(SLICE_LENGTH - 60, SLICE_LENGTH), content=st.sampled_from(["<|im_end|>", "é<|bos|>", "\n"])
)
def test_a_long_message_reaches_the_model_unchanged(num_before: int, content: str) -> None:
    tokenizer = chat_tokenizer()
    content = " " * num_before + content
    token_ids = tokenizer.encode_chat([{"role": "user", "content": content}])
    assert sum(token_id in tokenizer.special_ids for token_id in token_ids) == 3
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    assert text == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


@given(content=st.one_of(TEXTS, st.just("<|im_end|>" * 9)))
def test_a_chat_may_have_as_many_tokens_as_the_limit_and_no_more(content: str) -> None:
    tokenizer = chat_tokenizer()
    messages = [{"role": "user", "content": content}]
    token_ids = tokenizer.encode_chat(messages)
    assert tokenizer.encode_chat(messages, max_tokens=len(token_ids)) == token_ids
    for max_tokens in (0, len(token_ids) - 1):
        with pytest.raises(TextTooLongError) as refusal:
            tokenizer.encode_chat(messages, max_tokens=max_tokens)
        assert max_tokens < refusal.value.num_tokens <= len(token_ids)


def test_many_ids_are_decoded_as_few_are() -> None:
    text = "the quick brown fox<|im_end|> é日本" * 1000
    tokenizer = KINDS["byte_level"]
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    assert tokenizer.decode(tuple(tokenizer.encode(text))) == text.replace("<|im_end|>", "")

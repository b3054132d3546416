"""Fill in the middle: which format a vocabulary has, the ids of its prompts, and what no text can write in them."""

from dataclasses import replace
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from infer_models.text import InfillEncoder, TextTooLongError, Tokenizer
from infer_models.text.infill import INFILL_FORMATS, InfillFormat, infill_format
from infer_proofs.text import byte_fallback, byte_level

QWEN, STARCODER, CODESTRAL = INFILL_FORMATS[0], INFILL_FORMATS[1], INFILL_FORMATS[6]
BEFORE, AFTER = "def fox():\n    ", "\n    return dog\n"
FILES = [("a.py", "lazy = 1\n"), ("b.py", "quick = 2\n")]


def tokenizer_of(form: InfillFormat, raw: tokenizers.Tokenizer | None = None, *, special: bool = True) -> Tokenizer:
    """Return a tokenizer with the tokens of a format, which some vocabularies do not declare special."""
    raw = raw or byte_level()
    raw.add_tokens([tokenizers.AddedToken(text, special=special, normalized=False) for text in form.tokens])
    return Tokenizer(raw, named_tokens={"bos_token": "<s>"})


def encoder_of(tokenizer: Tokenizer) -> InfillEncoder:
    assert tokenizer.infill is not None
    return tokenizer.infill


def prompt(tokenizer: Tokenizer, before: str = BEFORE, after: str = AFTER, **how: Any) -> str:
    """Return the text of a prompt, special tokens included."""
    ids = encoder_of(tokenizer).encode(before, after, **{"max_tokens": 1000} | how)
    return tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.covers("requests/infill")
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("form", INFILL_FORMATS, ids=lambda form: form.prefix)
def test_each_format_is_found_by_its_tokens_and_has_its_order(form: InfillFormat, *, special: bool) -> None:
    parts = [f"{form.prefix}{BEFORE}", f"{form.suffix}{AFTER}"]
    expected = "".join(reversed(parts) if form.suffix_first else parts) + (form.middle or "")
    assert prompt(tokenizer_of(form, special=special)) == expected


def test_codestral_has_the_text_after_first_and_no_token_in_the_middle() -> None:  # ollama/ollama#5403
    assert prompt(tokenizer_of(CODESTRAL)) == f"[SUFFIX]{AFTER}[PREFIX]{BEFORE}"


@pytest.mark.parametrize("missing", ["prefix", "suffix", "middle"])
def test_a_vocabulary_without_one_of_the_tokens_has_no_format(missing: str) -> None:
    parts: dict[str, Any] = {missing: "<|other|>"}
    part = tokenizer_of(replace(QWEN, ends=(), **parts))
    assert part.infill is None
    assert Tokenizer(byte_level()).infill is None


def test_other_files_come_before_the_gap_with_their_names() -> None:
    found = prompt(tokenizer_of(QWEN), files=FILES)
    files = "<|file_sep|>a.py\nlazy = 1\n<|file_sep|>b.py\nquick = 2\n<|file_sep|>filename\n"
    assert found == f"<|repo_name|>myproject\n{files}<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>"


def test_files_of_a_format_without_a_token_for_them_are_snippets() -> None:
    form = replace(STARCODER, repository=None, ends=())
    between = "\n\n--- snippet ---\n\n"
    assert prompt(tokenizer_of(form), files=FILES).startswith(
        f"{between}lazy = 1\n{between}quick = 2\n<fim_prefix>{BEFORE}"
    )


def test_an_answer_ends_at_every_token_of_the_format() -> None:  # QwenLM/Qwen3-Coder#99
    tokenizer = tokenizer_of(QWEN)
    ends = {tokenizer.id_to_token(token_id) for token_id in encoder_of(tokenizer).end_ids}
    assert ends == set(QWEN.tokens) >= {"<|fim_pad|>", "<|file_sep|>", "<|endoftext|>"}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("form", INFILL_FORMATS, ids=lambda form: form.prefix)
def test_no_text_writes_a_token_of_the_format(form: InfillFormat, *, special: bool) -> None:
    tokenizer = tokenizer_of(form, special=special)
    spelled = "".join(form.tokens) + "<|im_end|><|bos|>"
    files = [(spelled, spelled)]
    ids = encoder_of(tokenizer).encode(f"x{spelled}", f"y{spelled}", files=files, max_tokens=10_000)
    tokens = [tokenizer.id_to_token(token_id) for token_id in ids]
    plain = encoder_of(tokenizer).encode("x", "y", files=[("", "")], max_tokens=10_000)
    written = {*form.tokens, "<|im_end|>", "<|bos|>"}
    assert [each for each in tokens if each in written] == [
        each for each in map(tokenizer.id_to_token, plain) if each in written
    ]
    assert prompt(tokenizer, spelled, "").count(form.prefix) == 2


def test_the_beginning_of_texts_comes_once_and_first() -> None:  # ggml-org/llama.cpp#11092
    tokenizer = tokenizer_of(STARCODER, byte_fallback())
    encode = encoder_of(tokenizer).encode
    for files in (None, FILES):
        ids = encode("fox", "dog", files=files, max_tokens=1000)
        assert (ids[0], ids.count(1)) == (tokenizer.token_to_id("<s>"), 1)
        assert encode("fox", "dog", files=files, max_tokens=1000, adds_beginning=False) == ids[1:]


def test_the_text_after_goes_on_without_a_space_before_its_first_word() -> None:  # ggml-org/llama.cpp#2818
    tokenizer = tokenizer_of(INFILL_FORMATS[4], byte_fallback())
    ids = encoder_of(tokenizer).encode("the fox", "over", max_tokens=1000)
    tokens = [tokenizer.id_to_token(token_id) for token_id in ids]
    start = tokens.index("▁<SUF>")
    assert "".join(token or "" for token in tokens[start:]) == "▁<SUF>over▁<MID>"
    assert (tokens[2] or "").startswith("▁")


def test_what_is_too_long_is_refused_with_its_number_or_cut() -> None:
    tokenizer = tokenizer_of(QWEN)
    encode = encoder_of(tokenizer).encode
    whole = encode(BEFORE, AFTER, files=FILES, max_tokens=1000)
    assert encode(BEFORE, AFTER, files=FILES, max_tokens=len(whole)) == whole
    with pytest.raises(TextTooLongError) as refused:
        encode(BEFORE, AFTER, files=FILES, max_tokens=len(whole) - 1)
    assert refused.value.num_tokens == len(whole)
    assert encode(BEFORE, AFTER, files=FILES, max_tokens=len(whole), cuts=True) == whole
    assert encode(BEFORE, AFTER, files=FILES, max_tokens=len(whole) - 9, cuts=True) == whole[9:]


@pytest.mark.parametrize(
    ("before", "after", "room", "expected"),
    [
        ("abcdefgh", "12345678", 8, ("cdefgh", "12")),
        ("abcdefgh", "1", 8, ("bcdefgh", "1")),
        ("abc", "12345678", 8, ("abc", "12345")),
        ("abcdefgh", "", 4, ("efgh", "")),
        ("abcdefgh", "12345678", 0, ("", "")),
    ],
)
def test_the_end_of_the_text_before_and_the_beginning_of_that_after_are_kept(
    before: str, after: str, room: int, expected: tuple[str, str]
) -> None:
    tokenizer = tokenizer_of(QWEN)
    found = prompt(tokenizer, before, after, files=FILES, max_tokens=room + 3, cuts=True)
    assert found == f"<|fim_prefix|>{expected[0]}<|fim_suffix|>{expected[1]}<|fim_middle|>"


def test_no_room_for_the_tokens_of_the_format_is_refused() -> None:
    with pytest.raises(TextTooLongError):
        prompt(tokenizer_of(QWEN), cuts=True, max_tokens=2)


def test_of_huge_texts_what_is_next_to_the_gap_is_kept() -> None:
    tokenizer = tokenizer_of(QWEN)
    files = [(f"{number}.py", "x" * 1000) for number in range(500)]
    huge = prompt(tokenizer, "a" * 10**6 + "b", "c" + "d" * 10**6, files=files, max_tokens=40, cuts=True)
    assert huge.startswith("<|fim_prefix|>a")
    assert "b<|fim_suffix|>c" in huge


def test_names_in_the_files_come_before_known_spellings() -> None:
    vocabulary = dict.fromkeys([*QWEN.tokens, "<before>", "<after>", "<gap>", "<pad>"], 0)
    named = {"fim_pre_token": "<before>", "suffix_token": "<after>", "middle_token": "<gap>", "fim_pad_token": "<pad>"}
    found = InfillFormat(prefix="<before>", suffix="<after>", middle="<gap>", ends=("<pad>",))
    assert infill_format(named, vocabulary) == found
    assert infill_format({"prefix_token": "<before>", "suffix_token": "<after>"}, vocabulary) is None
    assert infill_format({"suffix_token": "<after>"}, vocabulary) == QWEN
    mistral = {"prefix_token": "[PREFIX]", "suffix_token": "[SUFFIX]"}
    assert infill_format(mistral, vocabulary | dict.fromkeys(mistral.values(), 0)) == CODESTRAL


def test_tokens_may_be_ordinary_words_of_the_vocabulary() -> None:
    raw = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "<PRE>": 1, "<SUF>": 2, "<MID>": 3, "b": 4}, merges=[]))
    tokenizer = Tokenizer(raw)
    assert encoder_of(tokenizer).encode("a<PRE>", "b", max_tokens=20) == [1, 0, 2, 4, 3]  # no merge makes a token

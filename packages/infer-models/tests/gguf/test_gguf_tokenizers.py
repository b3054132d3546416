"""Tokenizers of GGUF files give the ids of those that the files were made of."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

import gguf
from infer_models import CheckpointError
from infer_models.gguf.end_tokens import end_token_ids
from infer_models.gguf.header import read_header
from infer_models.text import Tokenizer
from infer_models.text.files.gguf_tokenizer import read_gguf_tokenizer

TEXTS = (
    "Hello, world! It's 1234567 o'clock; WE'LL see.",
    "  two spaces, a tab\tand\r\n\r\nlines\n\n   \nof   them   ",
    "Übermäßig naïve café, ﬁne ½ x² — „quoted“ (e\u0301)",
    "日本語とひらがな、한국어 русский العربية हिन्दी ไทย",
    "a<|im_end|>b<think>c",
    "def f(x):\n    return x**2  # comment/\n",
    "CamelCaseAndSNAKE_case_42, HTTPServer2Go!",
    "😀👩‍👩‍👧 emoji\u200d",
    "IT'S WE'RE I'D they'Ll don\u2019t 'tis O'Neill's HTTPServer's",
    "中文ABC混合abc\uff0c。\uff01\uff11\uff12\uff13\uff14\uff15٣٤\u0665 ½⅓ Ⅳ ǅungla ʰa",
    "//path/to\r\n\r\n/x\t\t \n\n  y   \u00a0z\u3000\u2028",
    "",
)
CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog " * 20, "0123456789 " * 10]
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
_WORD_START, _WORD_END = r"[^\r\n\p{L}\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    f"{_WORD_START}{_UPPER}*{_LOWER}+{_WORD_END}|{_WORD_START}{_UPPER}+{_LOWER}*{_WORD_END}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PUBLISHED: dict[str, tuple[pre_tokenizers.PreTokenizer, bool, bool]] = {
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False), False, False),
    "smollm": (
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        False,
        False,
    ),
    "qwen2": (split(QWEN), True, False),
    "qwen35": (split(QWEN_35), True, False),
    "llama-bpe": (split(LLAMA), False, True),
    "lfm2": (split(LLAMA), False, True),
    "dbrx": (split(LLAMA), False, False),
    "gpt-4o": (split(O200K), False, True),
}
"""What `tokenizer.json` of such models has: what splits texts, whether NFC comes first, whether tokens stay whole."""


def trained(pre: pre_tokenizers.PreTokenizer, *, normalizes: bool, ignores_merges: bool) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer that has seen `CORPUS`."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=ignores_merges))
    made.pre_tokenizer, made.decoder = pre, decoders.ByteLevel()
    if normalizes:
        made.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens([AddedToken("<think>", normalized=False)])
    return made


def write(path: Path, **values: Any) -> None:
    """Write a file with nothing but a tokenizer; names stand for keys under `tokenizer.`, with `__` for dots."""
    writer = gguf.GGUFWriter(path, values.pop("architecture", "llama"))
    for name, value in values.items():
        key = f"tokenizer.{name.replace('__', '.')}"
        match value:
            case None:
                continue
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_byte_level(path: Path, made: tokenizers.Tokenizer, **values: Any) -> None:
    fields = json.loads(made.to_str())
    vocab = made.get_vocab()
    special = {each["content"]: each["special"] for each in fields["added_tokens"]}
    texts = sorted(vocab, key=vocab.__getitem__)
    write(
        path,
        ggml__model="gpt2",
        ggml__tokens=texts,
        ggml__token_type=[1 if text not in special else 3 if special[text] else 4 for text in texts],
        ggml__merges=[" ".join(pair) for pair in fields["model"]["merges"]],
        **values,
    )


@pytest.mark.covers("gguf/tokenizers")
@pytest.mark.parametrize("pre", PUBLISHED)
def test_byte_level_tokenizers_give_the_published_ids(pre: str, tmp_path: Path) -> None:
    way, normalizes, ignores_merges = PUBLISHED[pre]
    made = trained(way, normalizes=normalizes, ignores_merges=ignores_merges)
    path = tmp_path / "model.gguf"
    write_byte_level(path, made, ggml__pre=pre, ggml__eos_token_id=0, ggml__add_bos_token=False)
    ours = Tokenizer.from_folder(path)
    for text in TEXTS:
        token_ids = ours.encode(text)
        assert token_ids == made.encode(text).ids, text
        assert ours.decode(token_ids, skip_special_tokens=False) == made.decode(token_ids, skip_special_tokens=False)
    assert ours.eos_token_id == 0
    assert ours.decode([*ours.encode("a"), 1]) == "a"  # control tokens are no text


def pieces() -> tuple[list[str], list[float], list[int]]:
    """Return a vocabulary as SentencePiece's: control tokens, bytes, pieces by falling score."""
    words = ["▁", "t", "h", "e", "▁t", "he", "▁the", "a", "n", "d", "▁a", "nd", "▁and", "o", "w", "r", "l", "▁w", "or"]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "<think>"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(words), 4]
    return texts, [0.0] * 259 + [-float(index) for index in range(len(words) + 1)], kinds


@pytest.mark.covers("gguf/tokenizers")
@pytest.mark.parametrize("model", ["llama", "llama without a first space", "gemma3"])
def test_sentencepiece_vocabularies_are_read(model: str, tmp_path: Path) -> None:
    adds_space = model == "llama"
    texts, scores, kinds = pieces()
    path = tmp_path / "model.gguf"
    write(
        path,
        architecture=model.split(maxsplit=1)[0],
        ggml__model="llama",
        ggml__tokens=texts,
        ggml__scores=scores,
        ggml__token_type=kinds,
        ggml__bos_token_id=1,
        ggml__eos_token_id=2,
        ggml__unknown_token_id=0,
        ggml__add_space_prefix=adds_space,
    )
    ours = Tokenizer.from_folder(path)
    first = texts.index("▁the") if adds_space else texts.index("t")
    assert ours.encode("the and")[:2] == [1, first]  # Llama's texts begin so, where the file does not say
    found = ours.encode(" the and", add_special_tokens=False)
    assert found[-2:] == [texts.index("▁the"), texts.index("▁and")]
    for text in ("the and the world", "é日 the", "and<think>"):
        assert ours.decode(ours.encode(text), skip_special_tokens=True).strip() == text


def test_templates_and_named_tokens_are_read(tmp_path: Path) -> None:
    way, normalizes, ignores_merges = PUBLISHED["gpt-2"]
    made = trained(way, normalizes=normalizes, ignores_merges=ignores_merges)
    path = tmp_path / "model.gguf"
    values = {"chat_template": "{{ eos_token }}{{ messages[0].content }}", "chat_template__tool_use": "{{ tools }}!"}
    write_byte_level(path, made, ggml__pre="gpt-2", ggml__eos_token_id=1, ggml__bos_token_id=9999, **values)
    found = read_gguf_tokenizer(path)
    assert found.named_tokens == {"eos_token": "<|im_end|>"}  # 9999 is no token
    assert Tokenizer.from_folder(path).render_chat([{"role": "user", "content": "x"}]) == "<|im_end|>x"
    assert found.tool_template is not None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ggml__model": "bert"}, "`tokenizer.ggml.model` is 'bert'; it must be `gpt2`, `llama`, `gemma4` or `t5`"),
        ({"ggml__pre": "an-unknown-one"}, "`tokenizer.ggml.pre` is 'an-unknown-one'; it must be one of"),
        ({"ggml__merges": None}, "the metadata has no `tokenizer.ggml.merges`"),  # ollama/ollama#10930
        ({"ggml__merges": ["no-space"]}, "one is 'no-space'"),
        ({"ggml__merges": ["zz yy"]}, "make no tokenizer"),
        ({"ggml__tokens": 3}, "`tokenizer.ggml.tokens` is 3; it must be an array of strings"),
        ({"ggml__token_type": "x"}, "`tokenizer.ggml.token_type` is 'x'; it must be an array of numbers"),
        ({"ggml__eos_token_id": "x"}, "`tokenizer.ggml.eos_token_id` is 'x'; it must be a whole number"),
        ({"chat_template": "{% if %}"}, "the chat template is broken at line 1"),
    ],
)
def test_a_tokenizer_that_is_not_read_is_named(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = {"ggml__model": "gpt2", "ggml__pre": "gpt-2", "ggml__tokens": ["a", "b"], "ggml__merges": ["a b"]}
    whole["ggml__tokens"] = ["a", "b", "ab"]
    write(path, **(whole | values))
    with pytest.raises(CheckpointError) as caught:
        read_gguf_tokenizer(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ids_beyond_the_vocabulary_mean_that_there_is_no_such_token(tmp_path: Path) -> None:
    # ggml-org/llama.cpp#7157: 2**32 - 1 for the separator and the padding
    texts, scores, kinds = pieces()
    path, none = tmp_path / "model.gguf", 2**32 - 1
    ids = {f"ggml__{name}_token_id": none for name in ("eos", "eot", "padding", "seperator", "unknown")}
    values = {"ggml__tokens": texts, "ggml__scores": scores, "ggml__token_type": kinds, "ggml__bos_token_id": 1}
    write(path, ggml__model="llama", **values, **ids)
    assert read_gguf_tokenizer(path).named_tokens == {"bos_token": "<s>"}
    assert end_token_ids(read_header(path)) == ()
    assert Tokenizer.from_folder(path).eos_token_id is None


def test_turns_end_at_known_tokens_that_the_file_does_not_name(tmp_path: Path) -> None:
    # ggml-org/llama.cpp#7262, Lex-au/Orpheus-FastAPI#65: files name the end of a text alone, and answers never end
    texts = ["a", "<|eot_id|>", "<|end_of_text|>", "<|im_end|>", "b"]
    path = tmp_path / "model.gguf"
    kinds = [1, 3, 3, 1, 1]  # a token of a text that looks like an end is none
    write(path, ggml__model="gpt2", ggml__tokens=texts, ggml__token_type=kinds, ggml__merges=[], ggml__eos_token_id=2)
    assert end_token_ids(read_header(path)) == (2, 1)


@pytest.mark.parametrize(("eos", "eot"), [(3, None), (1, None), (3, 1), (0, 1)])
def test_an_answer_of_gpt_oss_goes_on_after_its_thoughts(eos: int, eot: int | None, tmp_path: Path) -> None:
    # osaurus-ai/vmlx-swift#254, asher/gmlx#110: `<|end|>`, the end of other models' answers, ends its thoughts alone
    texts = ["<|endoftext|>", "<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|message|>", "a"]
    path = tmp_path / "model.gguf"
    ids = {"ggml__eos_token_id": eos, "ggml__eot_token_id": eot}
    write(path, ggml__model="gpt2", ggml__tokens=texts, ggml__token_type=[*[3] * 6, 1], ggml__merges=[], **ids)
    assert set(end_token_ids(read_header(path))) == {0, 2, 3}
    kinds = [*[3] * 3, 1, *[3] * 2, 1]  # in other vocabularies it ends an answer
    write(path, ggml__model="gpt2", ggml__tokens=texts, ggml__token_type=kinds, ggml__merges=[], **ids)
    assert 1 in end_token_ids(read_header(path))


def test_a_token_that_is_there_twice_has_its_first_id(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, ggml__model="gpt2", ggml__pre="gpt-2", ggml__tokens=["a", "b", "a", "ab"], ggml__merges=["a b"])
    assert Tokenizer.from_folder(path).encode("aab") == [0, 3]


def test_a_file_without_a_way_to_split_texts_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.gguf"
    write(path, ggml__model="gpt2", ggml__tokens=["a", "b", "ab"], ggml__merges=["a b"])
    assert Tokenizer.from_folder(path).encode("ab") == [2]
    assert "does not say how texts are split" in caplog.text

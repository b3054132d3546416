"""Tokenizers without `tokenizer.json`: of `vocab.json` and `merges.txt`, and of SentencePiece's `tokenizer.model`."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.models.gemma.tokenization_gemma import GemmaTokenizer
from transformers.models.llama.tokenization_llama import LlamaTokenizer

from infer_models.errors import CheckpointError
from infer_models.text import Tokenizer
from infer_proofs.text import byte_level

TEXTS = [
    "hello world",
    " hello",
    "hello  world\n\n  x",
    "naïve café 日本語 e\u0301 12345 don't DON'T",
    "",
    "<|im_start|>user\nhello<|im_end|>",
    "a\tb\r\nc  ",
]


NUM_TOKENS = byte_level().get_vocab_size()


def save_merges(folder: Path, tokenizer_config: dict[str, Any] | None, **files: object) -> None:
    model = json.loads(byte_level().to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    for name, content in {"tokenizer_config": tokenizer_config, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"},
        {"tokenizer_class": "Qwen2TokenizerFast", "additional_special_tokens": ["<|im_start|>"]},
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|bos|>", "add_bos_token": True},
        {
            "tokenizer_class": "GPT2Tokenizer",
            "add_prefix_space": True,
            "eos_token": "<|im_end|>",
            "add_eos_token": True,
        },
        {"tokenizer_class": "GPTNeoXTokenizer"},
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "added_tokens_decoder": {
                "1": {"content": "<|im_start|>", "special": True},
                f"{NUM_TOKENS}": {"content": "<think>", "special": False, "normalized": False},
            },
        },
    ],
    ids=lambda config: f"{config['tokenizer_class']} {len(config)}",
)
def test_vocabulary_and_merges_make_what_the_class_is_in_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    save_merges(tmp_path, config)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_folder(tmp_path)
    for text in [*TEXTS, "<think>"]:
        ids = theirs(text)["input_ids"]
        known = [token_id for token_id in ids if token_id < ours.vocab_size]
        assert known == ids
        assert ours.encode(text) == ids
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


def test_the_models_type_says_the_class_where_no_file_does(tmp_path: Path) -> None:
    save_merges(tmp_path, None, config={"model_type": "qwen3"}, added_tokens={"<tool>": NUM_TOKENS})
    ours = Tokenizer.from_folder(tmp_path)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert all(ours.encode(text) == theirs(text)["input_ids"] for text in [*TEXTS, "<tool>"])
    assert ours.encode("<tool>") == [NUM_TOKENS]


def test_files_without_any_class_are_like_gpt_2s(tmp_path: Path) -> None:
    save_merges(tmp_path, {"tokenizer_class": "PreTrainedTokenizerFast"})
    text = "hello  world 12'"
    ids = Tokenizer.from_folder(tmp_path).encode(text)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert ids == AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]


Piece = tuple[str, int]
BYTES: list[Piece] = [(f"<0x{byte:02X}>", 6) for byte in range(256)]
WORDS = ["he", "ll", "hell", "hello", "▁h", "▁he", "▁hello", "wo", "wor", "world", "▁w", "▁wo", "▁▁", "aa", "▁world"]
PIECES = [*((word, 1) for word in WORDS), *((letter, 1) for letter in "▁helowrdabcxyz.,\n0123")]
OF_LLAMA: list[Piece] = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<user>", 4), *BYTES, *PIECES]
OF_GEMMA: list[Piece] = [
    *(("<pad>", 3), ("<eos>", 3), ("<bos>", 3), ("<unk>", 2), ("<mask>", 4), ("<start_of_turn>", 4)),
    *BYTES,
    *PIECES,
]


def field(number: int, value: float | bytes) -> bytes:
    """One field of a protobuf message."""
    match value:
        case int():
            return varint(number << 3) + varint(value)
        case float():
            return varint(number << 3 | 5) + struct.pack("<f", value)
        case bytes():
            return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def save_sentencepiece(
    folder: Path, pieces: list[Piece], config: dict[str, Any], *, kind: int = 2, adds_space: bool = True
) -> None:
    unknown = [text for text, _ in pieces].index("<unk>")
    data = b"".join(
        field(1, field(1, text.encode()) + field(2, -float(index)) + field(3, what))
        for index, (text, what) in enumerate(pieces)
    )
    data += field(2, field(3, kind) + field(35, 1) + field(40, unknown)) + field(
        3, field(1, b"x") + field(3, adds_space)
    )
    (folder / "tokenizer.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


SENTENCES = [*TEXTS, "<s>hello</s> hello", "<user>hello <user> hello", "▁x <start_of_turn>hello", "aab 0123"]


def merges_of(pieces: list[Piece]) -> list[tuple[str, str]]:
    """The merges of tokens in order, of the shortest beginning first."""
    ids = {text: index for index, (text, _) in enumerate(pieces)}
    return [
        (text[:cut], text[cut:])
        for text in ids
        for cut in range(1, len(text))
        if {text[:cut], text[cut:]} <= ids.keys()
    ]


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"},
        {"tokenizer_class": "LlamaTokenizerFast", "legacy": True, "add_bos_token": True, "add_eos_token": True},
        {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False},
    ],
    ids=["as usual", "legacy", "no space"],
)
def test_a_sentencepiece_model_makes_transformers_llama_tokenizer(tmp_path: Path, config: dict[str, Any]) -> None:
    save_sentencepiece(tmp_path, OF_LLAMA, config)
    vocab = {text: index for index, (text, _) in enumerate(OF_LLAMA)}
    theirs: Any = LlamaTokenizer(
        vocab=vocab, merges=merges_of(OF_LLAMA), extra_special_tokens=["<s>", "</s>"], **config
    )
    theirs.add_tokens(["<user>"])
    ours = Tokenizer.from_folder(tmp_path)
    for text in SENTENCES:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)
    assert (ours.bos_token_id, ours.eos_token_id) == (1, 2)


def test_a_sentencepiece_model_makes_transformers_gemma_tokenizer(tmp_path: Path) -> None:
    save_sentencepiece(tmp_path, OF_GEMMA, {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True})
    vocab = {text: index for index, (text, _) in enumerate(OF_GEMMA)}
    merges: Any = merges_of(OF_GEMMA)
    theirs: Any = GemmaTokenizer(vocab=vocab, merges=merges, add_bos_token=True)
    theirs.add_tokens(["<start_of_turn>"])
    ours = Tokenizer.from_folder(tmp_path)
    for text in SENTENCES:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)


@pytest.mark.parametrize("adds_space", [True, False])
def test_a_unigram_model_takes_the_best_pieces(tmp_path: Path, adds_space: bool) -> None:  # noqa: FBT001 - a case
    save_sentencepiece(tmp_path, OF_LLAMA, {}, kind=1, adds_space=adds_space)
    tokenizer = Tokenizer.from_folder(tmp_path)
    pieces = [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode("hello world é")]
    assert pieces == ["▁hello" if adds_space else "hello", "▁world", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hello world é")) == "hello world é"


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("tokenizer.model", b"IQ== 0\nIg== 1\n", r"no SentencePiece model \(tiktoken's"),
        ("tokenizer.model", b"", "no SentencePiece model"),
        ("tokenizer.model", b"\x0a\xff\x01", "no SentencePiece model"),
        ("tokenizer.model", field(1, field(1, b"a")) + field(2, field(3, 3)), "words or characters"),
        ("tekken.json", b"{}", "Mistral's own format"),
        ("vocab.txt", b"a\n", r"tokenizer\.json is missing.* nor `tokenizer.model`"),
    ],
)
def test_what_makes_no_tokenizer_is_refused_by_name(tmp_path: Path, name: str, content: bytes, cause: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=cause):
        Tokenizer.from_folder(tmp_path)


def test_a_class_that_makes_tokenizers_in_its_own_way_is_named(tmp_path: Path) -> None:
    save_merges(tmp_path, {"tokenizer_class": "CLIPTokenizer"})
    with pytest.raises(CheckpointError, match="`tokenizer_class` `CLIPTokenizer`"):
        Tokenizer.from_folder(tmp_path)


def test_damaged_merges_are_named(tmp_path: Path) -> None:
    save_merges(tmp_path, {})
    (tmp_path / "merges.txt").write_text("a notthere\n")
    with pytest.raises(CheckpointError, match=r"merges\.txt make no tokenizer"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("of_json", [True, False])
@pytest.mark.parametrize("of_config", [True, False])
def test_the_configuration_says_whether_a_token_is_special(tmp_path: Path, of_json: bool, of_config: bool) -> None:  # noqa: FBT001 - cases
    raw = byte_level()
    (raw.add_special_tokens if of_json else raw.add_tokens)(["<think>"])
    raw.save(str(tmp_path / "tokenizer.json"))
    token_id = raw.get_vocab()["<think>"]
    listed = {str(token_id): {"content": "<think>", "special": of_config, "normalized": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_folder(tmp_path)
    assert (token_id in ours.special_ids) == of_config
    assert ours.decode([token_id]) == theirs.decode([token_id], skip_special_tokens=True)

"""Small tokenizers of every kind for tests, trained when they are asked for."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from infer_models.hub import demo_model_folder
from infer_models.text.chat_template import ChatTemplate
from infer_models.text.dummy import dummy_tokenizer
from infer_models.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_TEXTS = (
    "the quick brown fox jumps over the lazy dog",
    "don't stop me now, i'm having a good time",
    "naïve café 日本語",
)


def byte_level(texts: Sequence[str] = _TEXTS, *, vocab_size: int = 320) -> tokenizers.Tokenizer:
    """Return a byte-level BPE tokenizer (GPT-2, Llama 3, Qwen) with `<|bos|>`, `<|im_start|>` and `<|im_end|>`."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|bos|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def split_byte_level(texts: Sequence[str] = _TEXTS, *, vocab_size: int = 320) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer as Qwen's: composing, splitting by a pattern of its own, with spaces added.

    `<|im_end|>` is special, `<tool>` is added and not special, and `ﬁé` is looked for in composed text.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    pattern = tokenizers.Regex(r"\p{N}|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.add_tokens([tokenizers.AddedToken("<tool>", normalized=False), "ﬁé"])
    return tokenizer


def byte_fallback(texts: Sequence[str] = _TEXTS, *, vocab_size: int = 60) -> tokenizers.Tokenizer:
    """Return a tokenizer as SentencePiece makes them (Llama 2, Gemma): words begin with `▁`, unknown bytes are tokens.

    `vocab_size` counts the words' pieces; `<unk>`, `<s>`, `</s>` and 256 bytes come before them.
    """
    pieces = tokenizers.Tokenizer(models.BPE())
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ascii_texts = [text for text in texts if text.isascii()]
    pieces.train_from_iterator(ascii_texts, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False))
    trained = json.loads(pieces.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained["vocab"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={name: index for index, name in enumerate(names)},
            merges=[tuple(merge) for merge in trained["merges"]],
            unk_token="<unk>",  # noqa: S106 - no password
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = pieces.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def word_piece(texts: Sequence[str] = _TEXTS) -> tokenizers.Tokenizer:
    """Return a WordPiece tokenizer (BERT), whose decoder puts the spaces between words."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def every_kind() -> dict[str, Tokenizer]:
    """Return a tokenizer of every kind by name, with those of the demo model and of models without a tokenizer."""
    return {
        "byte_level": Tokenizer(byte_level()),
        "split_byte_level": Tokenizer(split_byte_level()),
        "byte_fallback": Tokenizer(byte_fallback()),
        "word_piece": Tokenizer(word_piece()),
        "demo": Tokenizer.from_folder(demo_model_folder()),
        "dummy": dummy_tokenizer(300),
    }


def chat_tokenizer(template: str = CHATML, *, named_tokens: Mapping[str, str] | None = None) -> Tokenizer:
    """Return a byte-level tokenizer with a chat template."""
    named_tokens = named_tokens or {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    chat_template = ChatTemplate(template, variables=named_tokens)
    return Tokenizer(byte_level(), named_tokens=named_tokens, chat_template=chat_template)


def save_tokenizer(folder: Path, *, config: Mapping[str, object] | None = None) -> None:
    """Write a byte-level tokenizer to `folder`, with `config` as its `tokenizer_config.json`."""
    byte_level().save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")

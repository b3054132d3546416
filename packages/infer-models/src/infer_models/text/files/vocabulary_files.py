"""Builds a tokenizer from `vocab.json` and `merges.txt`, or from SentencePiece's `tokenizer.model`.

What `transformers` builds of them is a matter of its tokenizer class.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from infer_models.errors import CheckpointError
from infer_models.text.files.reading import one_line, read_object, read_text
from infer_models.text.files.sentencepiece_model import (
    BPE,
    SPACE,
    UNIGRAM,
    PieceKind,
    SentencePieceModel,
    read_sentencepiece_model,
)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_QWEN_2 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # as trained
)
_QWEN_3_5 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CLASS_BY_MODEL_TYPE = {
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), "Qwen2Tokenizer"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), "Qwen3_5Tokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "phi", "starcoder2"), "GPT2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "olmo", "olmoe"), "GPTNeoXTokenizer"),
}

# `transformers` has nothing but files for these classes.
_ANY_CLASS = ("PreTrainedTokenizer", "TokenizersBackend")


def tokenizer_class_of(folder: Path, fields: Mapping[str, Any]) -> str | None:
    """Return the class that the configurations name or the model's type has, without `Fast`; None for no certain one.

    A folder without `tokenizer.json` has one in any case: the class with which such files are usually made.

    Raises:
        CheckpointError: `config.json` is no JSON object.
    """
    path = folder / "config.json"
    model_config = read_object(path) if path.is_file() else {}
    declared = fields.get("tokenizer_class") or model_config.get("tokenizer_class")
    name = declared.removesuffix("Fast") if isinstance(declared, str) else None
    if name in _ANY_CLASS:
        name = None
    if name is None and declared is None:
        name = _CLASS_BY_MODEL_TYPE.get(str(model_config.get("model_type")))
    if (folder / "tokenizer.json").is_file():
        return name
    return name or ("GPT2Tokenizer" if _has_merges(folder) else "TokenizersBackend")


def build_tokenizer(
    folder: Path, fields: Mapping[str, Any], tokenizer_class: str | None
) -> tokenizers.Tokenizer | None:
    """Return a tokenizer of the files in `folder`; None where there is neither of the two kinds.

    Raises:
        CheckpointError: a file is damaged, or its class is built in a way of its own.
    """
    if _has_merges(folder):
        return _of_merges(folder, fields, tokenizer_class)
    if (folder / "tokenizer.model").is_file():
        return _of_sentencepiece(folder / "tokenizer.model", fields, tokenizer_class)
    return None


def _has_merges(folder: Path) -> bool:
    return (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()


def add_ends(tokenizer: tokenizers.Tokenizer, fields: Mapping[str, Any], named_tokens: Mapping[str, str]) -> None:
    """Put the tokens that begin and end a text around every text, where the configuration asks for it."""
    ids: dict[str, int] = {}
    ends: dict[str, list[str]] = {"bos_token": [], "eos_token": []}
    for name, around in ends.items():
        text = named_tokens.get(name)
        token_id = None if text is None else tokenizer.token_to_id(text)
        if text is not None and token_id is not None and fields.get(f"add_{name}"):
            ids[text] = token_id
            around.append(text)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*ends["bos_token"], "$A", *ends["eos_token"]], special_tokens=list(ids.items())
    )


def _of_merges(folder: Path, fields: Mapping[str, Any], name: str | None) -> tokenizers.Tokenizer:
    vocab_path, merges_path = folder / "vocab.json", folder / "merges.txt"
    vocab = read_object(vocab_path)
    lines = [line.rstrip("\r") for line in read_text(merges_path).split("\n")]
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#version")]
    builder = _BYTE_LEVEL_BUILDERS.get(name or "")
    if builder is None:
        raise CheckpointError(
            f"{folder} has no `tokenizer.json`, and its `tokenizer_class` `{name}` makes one of `vocab.json` in a way "
            "of its own; add the `tokenizer.json` that `transformers` saves for this model."
        )
    try:
        tokenizer = tokenizers.Tokenizer(
            models.BPE(vocab=vocab, merges=[(first, second) for first, _, second in pairs])
        )
    except Exception as error:  # tokenizers raises plain `Exception`
        raise CheckpointError(f"{vocab_path} and {merges_path} make no tokenizer: {one_line(error)}") from error
    tokenizer.decoder = decoders.ByteLevel()
    builder(tokenizer, bool(fields.get("add_prefix_space")))
    return tokenizer


def _like_gpt_2(tokenizer: tokenizers.Tokenizer, add_prefix_space: bool) -> None:  # noqa: FBT001 - of a table
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)


def _like_gpt_neox(tokenizer: tokenizers.Tokenizer, add_prefix_space: bool) -> None:  # noqa: FBT001 - of a table
    tokenizer.normalizer = normalizers.NFC()
    _like_gpt_2(tokenizer, add_prefix_space)


def _like_qwen(pattern: str) -> Callable[[tokenizers.Tokenizer, bool], None]:
    def build(tokenizer: tokenizers.Tokenizer, add_prefix_space: bool) -> None:  # noqa: FBT001 - of a table
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False),
            ]
        )

    return build


_BYTE_LEVEL_BUILDERS: Mapping[str, Callable[[tokenizers.Tokenizer, bool], None]] = {
    "GPT2Tokenizer": _like_gpt_2,
    "GPTNeoXTokenizer": _like_gpt_neox,
    "Qwen2Tokenizer": _like_qwen(_QWEN_2),
    "Qwen3_5Tokenizer": _like_qwen(_QWEN_3_5),
}


def _of_sentencepiece(path: Path, fields: Mapping[str, Any], name: str | None) -> tokenizers.Tokenizer:
    return tokenizer_of_pieces(path, read_sentencepiece_model(path), fields, name)


def tokenizer_of_pieces(
    path: Path, model: SentencePieceModel, fields: Mapping[str, Any], name: str | None
) -> tokenizers.Tokenizer:
    """Return the tokenizer of a SentencePiece model that was read from `path`, as the class `name` has it.

    Raises:
        CheckpointError: it splits texts in a way that models here do not use.
    """
    if model.kind not in (UNIGRAM, BPE):
        raise CheckpointError(
            f"{path} splits texts into words or characters, which models here do not use; add a `tokenizer.json`."
        )
    tokenizer = tokenizers.Tokenizer(_sentencepiece_core(model, name))
    adds_space = model.adds_first_space
    if name == "GemmaTokenizer":
        adds_space = False
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    else:
        if name == "LlamaTokenizer":
            adds_space = fields.get("add_prefix_space") is not False
        elif model.normalization:
            tokenizer.normalizer = normalizers.Precompiled(model.normalization)
        scheme: Literal["always", "first", "never"] = "always" if fields.get("legacy") else "first"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=SPACE, prepend_scheme=scheme if adds_space else "never", split=False
        )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    for piece in model.pieces:
        if piece.kind in (PieceKind.CONTROL, PieceKind.USER_DEFINED):
            is_special = piece.kind == PieceKind.CONTROL
            add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
            add([AddedToken(piece.text, normalized=False, special=is_special)])
    return tokenizer


def _sentencepiece_core(model: SentencePieceModel, name: str | None) -> models.BPE | models.Unigram:
    is_of_a_class = name in ("LlamaTokenizer", "GemmaTokenizer")  # which are BPE with bytes for the rest, in any case
    if model.kind == UNIGRAM and not is_of_a_class:
        scored = [(piece.text, piece.score) for piece in model.pieces]
        return models.Unigram(scored, unk_id=model.unknown_id, byte_fallback=model.has_byte_fallback)
    vocab = {piece.text: index for index, piece in enumerate(model.pieces)}
    return models.BPE(
        vocab,
        _merges_of(vocab) if model.merges is None else model.merges,
        unk_token=None if name == "LlamaTokenizer" else model.pieces[model.unknown_id].text,
        fuse_unk=True,
        byte_fallback=is_of_a_class or model.has_byte_fallback,
    )


def _merges_of(vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merges that make the tokens of `vocab`, earlier tokens first."""
    found = [
        (index, len(text[:cut]), len(text[cut:]), vocab[text[:cut]], vocab[text[cut:]], text[:cut], text[cut:])
        for text, index in vocab.items()
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    return [(first, second) for *_, first, second in sorted(found)]

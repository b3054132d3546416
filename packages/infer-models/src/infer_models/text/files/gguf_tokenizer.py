"""`read_gguf_tokenizer`: the tokenizer and the chat templates in the metadata of a GGUF file."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import tokenizers
from tokenizers import AddedToken, decoders, models

from infer_models.errors import CheckpointError
from infer_models.gguf.checkpoint_files import read_model_header
from infer_models.gguf.end_tokens import TOKEN_TYPES, TOKENS
from infer_models.gguf.metadata import Metadata
from infer_models.text.chat.templates.template import ChatTemplate
from infer_models.text.files.pre_tokenizers import DEFAULT_PRE_TOKENIZATION, PRE_TOKENIZATIONS, PreTokenization
from infer_models.text.files.reading import one_line
from infer_models.text.files.sentencepiece_model import BPE, UNIGRAM, Piece, PieceKind, SentencePieceModel
from infer_models.text.files.tokenizer_parts import TokenizerFiles
from infer_models.text.files.vocabulary_files import add_ends, tokenizer_of_pieces

logger = logging.getLogger("infer_models")

_TEMPLATE, _TOOL_TEMPLATE = "tokenizer.chat_template", "tokenizer.chat_template.tool_use"
_NAMED: Mapping[str, str] = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
"""Names of special tokens and their keys, as the format spells them."""


def read_gguf_tokenizer(path: Path) -> TokenizerFiles:
    """Read the tokenizer of a GGUF file.

    Raises:
        CheckpointError: there is none, a part of it is damaged, or it is of a kind that is not read; one line.
    """
    metadata = Metadata(read_model_header(path))
    kind = metadata.text("tokenizer.ggml.model")
    texts = metadata.texts(TOKENS)
    kinds = [int(each) for each in metadata.numbers(TOKEN_TYPES)] if TOKEN_TYPES in metadata else []
    kinds += [int(PieceKind.NORMAL)] * (len(texts) - len(kinds))
    named = _named_tokens(metadata, texts)
    match kind:
        case "gpt2":
            way = _pre_tokenization(metadata)
            tokenizer = _byte_level(metadata, texts, kinds, way)
            adds_bos = way.adds_bos
        case "llama" | "gemma4" | "t5":
            tokenizer = _of_pieces(metadata, texts, kinds, kind)
            adds_bos = kind != "t5"
        case _:
            raise metadata.invalid("tokenizer.ggml.model", "`gpt2`, `llama`, `gemma4` or `t5`")
    says_bos = metadata.flag("tokenizer.ggml.add_bos_token", default=adds_bos)
    fields = {
        "add_bos_token": says_bos or kind == "gemma4",  # the first files of it say that they need none
        "add_eos_token": metadata.flag("tokenizer.ggml.add_eos_token", default=kind == "t5"),
    }
    tokenizer.add_special_tokens([text for text in named.values() if tokenizer.token_to_id(text) is not None])
    add_ends(tokenizer, fields, named)
    return TokenizerFiles(
        tokenizer=tokenizer,
        named_tokens=named,
        chat_template=_template(metadata, _TEMPLATE, named),
        tool_template=_template(metadata, _TOOL_TEMPLATE, named),
    )


def _named_tokens(metadata: Metadata, texts: Sequence[str]) -> dict[str, str]:
    """Return the special tokens by name."""
    named: dict[str, str] = {}
    for name, key in _NAMED.items():
        full = f"tokenizer.ggml.{key}"
        if full not in metadata:
            continue
        index = metadata.count(full)
        if index >= len(texts):
            logger.warning("%s: `%s` is %d, which is no token; it is left out", metadata.path, full, index)
            continue
        named[name] = texts[index]
    return named


def _pre_tokenization(metadata: Metadata) -> PreTokenization:
    key = "tokenizer.ggml.pre"
    if key not in metadata or metadata.text(key) == "default":
        logger.warning(
            "%s does not say how texts are split before they are tokenized: they are split as by GPT-2, and answers "
            "may be worse than the model's; convert the model again",
            metadata.path,
        )
        return DEFAULT_PRE_TOKENIZATION
    found = PRE_TOKENIZATIONS.get(metadata.text(key))
    if found is None:
        raise metadata.invalid(key, "one of " + ", ".join(f"`{each}`" for each in PRE_TOKENIZATIONS))
    return found


def _byte_level(
    metadata: Metadata, texts: Sequence[str], kinds: Sequence[int], way: PreTokenization
) -> tokenizers.Tokenizer:
    """Return a tokenizer that merges bytes."""
    merges = _merges(metadata)
    vocab = {text: index for index, text in reversed(list(enumerate(texts)))}
    try:
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=way.ignores_merges))
    except Exception as error:  # tokenizers raises plain `Exception`
        raise CheckpointError(
            f"{metadata.path}: tokens and merges of the metadata make no tokenizer: {one_line(error)}"
        ) from error
    normalizer = way.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = way.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    for wanted in ((PieceKind.CONTROL, PieceKind.UNKNOWN), (PieceKind.USER_DEFINED,)):
        is_special = PieceKind.CONTROL in wanted
        add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
        found = (text for text, kind in zip(texts, kinds, strict=False) if kind in wanted)
        add([AddedToken(text, normalized=False, special=is_special) for text in found])
    return tokenizer


def _merges(metadata: Metadata) -> list[tuple[str, str]]:
    return [_pair(metadata, line) for line in metadata.texts("tokenizer.ggml.merges")]


def _pair(metadata: Metadata, line: str) -> tuple[str, str]:
    """Return the two tokens of a merge; a space may be the first character of the first one."""
    match = re.fullmatch(r"(?s)(.[^ ]*) (.+)", line)
    if match is None:
        raise metadata.invalid("tokenizer.ggml.merges", f"pairs of tokens with a space between; one is {line[:40]!r}")
    return match[1], match[2]


def _of_pieces(metadata: Metadata, texts: Sequence[str], kinds: Sequence[int], kind: str) -> tokenizers.Tokenizer:
    """Return a tokenizer of SentencePiece's; Gemma 4's has merges beside the pieces, whose scores mean nothing."""
    key = "tokenizer.ggml.scores"
    scores = [float(each) for each in metadata.numbers(key)] if key in metadata else []
    if len(scores) not in (0, len(texts)):
        raise metadata.invalid(key, f"an array of {len(texts)} numbers, one for each token")
    scores = scores or [0.0] * len(texts)
    charsmap = "tokenizer.ggml.precompiled_charsmap"
    unknown = metadata.count("tokenizer.ggml.unknown_token_id", 0)
    if unknown >= len(texts):  # as some writers spell that there is none
        unknown = kinds.index(PieceKind.UNKNOWN) if PieceKind.UNKNOWN in kinds else 0
    model = SentencePieceModel(
        pieces=tuple(
            Piece(text=text, score=score, kind=each) for text, score, each in zip(texts, scores, kinds, strict=False)
        ),
        kind=UNIGRAM if kind == "t5" else BPE,
        merges=_merges(metadata) if kind == "gemma4" else None,
        unknown_id=unknown,
        has_byte_fallback=int(PieceKind.BYTE) in kinds,
        normalization=metadata.data(charsmap) if charsmap in metadata else b"",
        adds_first_space=metadata.flag("tokenizer.ggml.add_space_prefix", default=True),
    )
    fields = {"add_prefix_space": model.adds_first_space}
    is_gemma = metadata.architecture.startswith("gemma")
    name = None if kind == "t5" else "GemmaTokenizer" if is_gemma else "LlamaTokenizer"
    try:
        return tokenizer_of_pieces(metadata.path, model, fields, name)
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers raises plain `Exception`
        raise CheckpointError(
            f"{metadata.path}: the tokens of the metadata make no tokenizer: {one_line(error)}"
        ) from error


def _template(metadata: Metadata, key: str, named: Mapping[str, str]) -> ChatTemplate | None:
    if key not in metadata:
        return None
    try:
        return ChatTemplate(metadata.text(key), variables=named)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(
            f"{metadata.path}: the chat template is broken at line {error.lineno}: {error.message}"
        ) from error

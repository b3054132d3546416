"""`read_gguf_tokenizer`: the tokenizer and the chat templates in the metadata of a GGUF file."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from infer_models.errors import CheckpointError
from infer_models.gguf.checkpoint_files import read_model_header
from infer_models.gguf.end_tokens import TOKEN_TYPES, TOKENS
from infer_models.gguf.metadata import TOKENIZER, Metadata
from infer_models.text.chat.templates.template import ChatTemplate
from infer_models.text.files.pre_tokenizers import (
    DEFAULT_PRE_TOKENIZATION,
    PRE_TOKENIZATIONS,
    WITHOUT_BYTE_LEVEL,
    PreTokenization,
)
from infer_models.text.files.reading import one_line
from infer_models.text.files.scored_pieces import ScoredPieces, merges_by_score
from infer_models.text.files.sentencepiece_model import BPE, SPACE, UNIGRAM, Piece, PieceKind, SentencePieceModel
from infer_models.text.files.tokenizer_parts import TokenizerFiles
from infer_models.text.files.vocabulary_files import add_ends, tokenizer_of_pieces
from infer_models.text.infill import INFILL_NAMES

logger = logging.getLogger("infer_models")

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEMPLATE, _TOOL_TEMPLATE = "tokenizer.chat_template", "tokenizer.chat_template.tool_use"
_PRE, _SCORES = "tokenizer.ggml.pre", "tokenizer.ggml.scores"
_NAMED: Mapping[str, str] = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
    **{name: f"{name}_id" for names in INFILL_NAMES.values() for name in names},
}
"""Names of special tokens and their keys, as the format spells them."""


def read_gguf_tokenizer(path: Path) -> TokenizerFiles:
    """Read the tokenizer of a GGUF file.

    Raises:
        CheckpointError: there is none, a part of it is damaged, or it is of a kind that is not read; one line.
    """
    metadata = Metadata(read_model_header(path))
    says_kind = metadata.text("tokenizer.ggml.model")
    kind = "gemma4" if says_kind == "gpt2" and _has_pieces(metadata) else says_kind
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
            adds_bos = says_kind == "llama"
        case _:
            raise metadata.invalid("tokenizer.ggml.model", "`gpt2`, `llama`, `gemma4` or `t5`")
    says_bos = metadata.flag("tokenizer.ggml.add_bos_token", default=adds_bos)
    fields = {
        "add_bos_token": says_bos or says_kind == "gemma4",  # the first files of it say that they need none
        "add_eos_token": metadata.flag("tokenizer.ggml.add_eos_token", default=kind == "t5"),
    }
    tokenizer.add_special_tokens([text for text in named.values() if tokenizer.token_to_id(text) is not None])
    if kind == "llama" and _is_phi_3(metadata):
        _strip_after_tokens(tokenizer)
    add_ends(tokenizer, fields, named)
    metadata.warn_of_unread(TOKENIZER)
    return TokenizerFiles(
        tokenizer=tokenizer,
        named_tokens=named,
        chat_template=_template(metadata, _TEMPLATE, named) or _chatml(metadata, named),
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


def _has_pieces(metadata: Metadata) -> bool:
    return _PRE in metadata and metadata.text(_PRE) in WITHOUT_BYTE_LEVEL


def _is_phi_3(metadata: Metadata) -> bool:
    name = metadata.text("general.name", "").lower()
    return metadata.architecture == "phi3" or "phi-3" in name or "phi3" in name


def _pre_tokenization(metadata: Metadata) -> PreTokenization:
    if _PRE not in metadata or metadata.text(_PRE) == "default":
        logger.warning(
            "%s does not say how texts are split before they are tokenized: they are split as by GPT-2, and answers "
            "may be worse than the model's; convert the model again",
            metadata.path,
        )
        return DEFAULT_PRE_TOKENIZATION
    found = PRE_TOKENIZATIONS.get(metadata.text(_PRE))
    if found is None:
        raise metadata.invalid(_PRE, "one of " + ", ".join(f"`{each}`" for each in PRE_TOKENIZATIONS))
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
    pieces = _pieces(metadata, texts, kinds)
    charsmap = "tokenizer.ggml.precompiled_charsmap"
    unknown = metadata.count("tokenizer.ggml.unknown_token_id", 0)
    if unknown >= len(texts):  # as some writers spell that there is none
        unknown = kinds.index(PieceKind.UNKNOWN) if PieceKind.UNKNOWN in kinds else 0
    merges = _merges(metadata) if kind == "gemma4" else None
    is_scored = kind == "llama" and _SCORES in metadata
    by_score = merges_by_score(pieces) if is_scored else None
    model = SentencePieceModel(
        pieces=pieces,
        kind=UNIGRAM if kind == "t5" else BPE,
        merges=by_score or [] if is_scored else merges,
        unknown_id=unknown,
        has_byte_fallback=int(PieceKind.BYTE) in kinds,
        normalization=metadata.data(charsmap) if charsmap in metadata else b"",
        adds_first_space=metadata.flag("tokenizer.ggml.add_space_prefix", default=kind != "gemma4"),
    )
    fields = {"add_prefix_space": model.adds_first_space}
    is_gemma = kind == "gemma4" or metadata.architecture.startswith("gemma")
    name = None if kind == "t5" else "GemmaTokenizer" if is_gemma else "LlamaTokenizer"
    try:
        tokenizer = tokenizer_of_pieces(metadata.path, model, fields, name)
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers raises plain `Exception`
        raise CheckpointError(
            f"{metadata.path}: the tokens of the metadata make no tokenizer: {one_line(error)}"
        ) from error
    if name == "LlamaTokenizer":
        _begin_with_space(tokenizer, adds_space=model.adds_first_space)
    if is_scored and by_score is None:
        ScoredPieces(pieces, unknown_id=unknown).replace_model_of(tokenizer)
    return tokenizer


def _pieces(metadata: Metadata, texts: Sequence[str], kinds: Sequence[int]) -> tuple[Piece, ...]:
    scores = [float(each) for each in metadata.numbers(_SCORES)] if _SCORES in metadata else []
    if len(scores) not in (0, len(texts)):
        raise metadata.invalid(_SCORES, f"an array of {len(texts)} numbers, one for each token")
    scores = scores or [0.0] * len(texts)
    return tuple(
        Piece(text=text, score=score, kind=each) for text, score, each in zip(texts, scores, kinds, strict=False)
    )


def _begin_with_space(tokenizer: tokenizers.Tokenizer, *, adds_space: bool) -> None:
    """Put a space before each text between added tokens, whatever it begins with, as llama.cpp and Llama 2 do."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if adds_space:
        steps.insert(0, normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = None


def _strip_after_tokens(tokenizer: tokenizers.Tokenizer) -> None:
    """Make added tokens take the blank space after them, as Phi 3's do but for three."""
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.content in ("<unk>", "<s>", "<|endoftext|>"):
            continue
        stripping = AddedToken(token.content, normalized=False, special=token.special, rstrip=True)
        add = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
        add([stripping])


def _template(metadata: Metadata, key: str, named: Mapping[str, str]) -> ChatTemplate | None:
    if key not in metadata:
        return None
    try:
        return ChatTemplate(metadata.text(key), variables=named)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(
            f"{metadata.path}: the chat template is broken at line {error.lineno}: {error.message}"
        ) from error


def _chatml(metadata: Metadata, named: Mapping[str, str]) -> ChatTemplate:
    """Return the template of a file that has none, as llama.cpp has it."""
    logger.warning(
        "%s has no chat template: conversations are written as in ChatML (`<|im_start|>`), and a model that was "
        "trained on others answers worse",
        metadata.path,
    )
    return ChatTemplate(_CHATML, variables=named)

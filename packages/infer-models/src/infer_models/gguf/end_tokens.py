"""Tokens in a GGUF file's metadata: which end an answer, and which are never generated."""

from infer_models.gguf.header import GgufHeader, Scalar
from infer_models.gguf.metadata import Metadata

TOKENS, TOKEN_TYPES, SCORES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"
"""Arrays with an item for each token."""
TEXT = 1
"""The type of tokens of texts."""
_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_ALL_ENDS, _SUPPRESSED = "tokenizer.ggml.eos_token_ids", "tokenizer.ggml.suppress_tokens"
_ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<turn|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<end_of_utterance>",
    }
)
"""Tokens that end a turn or a text; many files name one of them alone."""
_TOOL_ANSWER = "<|tool_response>"
"""What a call of Gemma 4 ends with: the tool's answer is to follow. In files it is a text that users may see."""
_HARMONY_END, _MESSAGE_END = "<|return|>", "<|end|>"
"""The end of an answer of gpt-oss, and of one of an answer's messages."""


def end_token_ids(header: GgufHeader) -> tuple[int, ...]:
    """Return the tokens that end an answer: those that the file names, and those that are known as ends.

    Known ones are of any type but that of texts: fine-tunes have them as user-defined ones too. Of gpt-oss `<|end|>`
    is none, even where a file names it: an answer's thoughts end so, before its text.

    Raises:
        CheckpointError: a value of the metadata is of another type.
    """
    metadata = Metadata(header)
    named: list[Scalar] = [metadata.count(key) for key in _END_KEYS if key in metadata]
    named += metadata.numbers(_ALL_ENDS) if metadata.is_array(_ALL_ENDS) else []
    texts = metadata.texts(TOKENS) if TOKENS in metadata else []
    kinds = metadata.numbers(TOKEN_TYPES) if TOKEN_TYPES in metadata else []
    known = [index for index, kind in enumerate(kinds[: len(texts)]) if kind != TEXT and texts[index] in _ENDS]
    if metadata.architecture == "gemma4":
        known += [index for index, text in enumerate(texts) if text == _TOOL_ANSWER]
    ends = dict.fromkeys((*_tokens(named, len(texts)), *known))
    is_harmony = any(texts[index] == _HARMONY_END for index in known)
    return tuple(index for index in ends if not (is_harmony and texts[index] == _MESSAGE_END))


def suppressed_token_ids(header: GgufHeader) -> tuple[int, ...]:
    """Return the tokens that are never generated.

    Raises:
        CheckpointError: a value of the metadata is of another type.
    """
    metadata = Metadata(header)
    if _SUPPRESSED not in metadata:
        return ()
    return tuple(dict.fromkeys(_tokens(metadata.numbers(_SUPPRESSED), len(metadata.texts(TOKENS)))))


def _tokens(values: list[Scalar], num_tokens: int) -> list[int]:
    """Return the values that are tokens; some writers mean by 2**32 - 1 or -1 that there is none."""
    return [each for each in values if isinstance(each, int) and 0 <= each < num_tokens]

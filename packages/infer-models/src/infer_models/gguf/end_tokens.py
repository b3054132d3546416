"""The tokens that end an answer, by a GGUF file's metadata."""

from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata

TOKENS, TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
CONTROL = 3
"""The type of tokens that are no text."""
_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
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
    }
)
"""Control tokens that end a turn or a text; many files name one of them alone."""
_TOOL_ANSWER = "<|tool_response>"
"""What a call of Gemma 4 ends with: the tool's answer is to follow. In files it is a text that users may see."""
_HARMONY_END, _MESSAGE_END = "<|return|>", "<|end|>"
"""The end of an answer of gpt-oss, and of one of an answer's messages."""


def end_token_ids(header: GgufHeader) -> tuple[int, ...]:
    """Return the tokens that end an answer: those that the file names, and control tokens that are known as ends.

    Of gpt-oss `<|end|>` is none, even where a file names it: an answer's thoughts end so, before its text.

    Raises:
        CheckpointError: a value of the metadata is of another type.
    """
    metadata = Metadata(header)
    named = [metadata.count(f"tokenizer.ggml.{key}") for key in _KEYS if f"tokenizer.ggml.{key}" in metadata]
    texts = metadata.texts(TOKENS) if TOKENS in metadata else []
    kinds = metadata.numbers(TOKEN_TYPES) if TOKEN_TYPES in metadata else []
    known = [index for index, kind in enumerate(kinds[: len(texts)]) if kind == CONTROL and texts[index] in _ENDS]
    if metadata.architecture == "gemma4":
        known += [index for index, text in enumerate(texts) if text == _TOOL_ANSWER]
    # Some writers mean by an id beyond the vocabulary, such as 2**32 - 1, that there is no such token.
    ends = dict.fromkeys(index for index in [*named, *known] if index < len(texts))
    is_harmony = any(texts[index] == _HARMONY_END for index in known)
    return tuple(index for index in ends if not (is_harmony and texts[index] == _MESSAGE_END))

"""How byte-level BPE tokenizers of GGUF files split texts before they merge, by `tokenizer.ggml.pre`.

A file names only the way; the patterns are those with which the models were trained, as in their `tokenizer.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _END
_QWEN_2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _END
_QWEN_35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_END_WITH_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}" + _END_WITH_SLASHES
)
_GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}" + _END_WITH_SLASHES
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenization:
    """A way to split texts.

    Attributes:
        pattern: pattern whose matches are the pieces.
        splits_digits: each digit is a piece of its own.
        is_normalized: texts are brought into the form NFC.
        ignores_merges: a piece that is a token stays whole.
        adds_bos: the token of the beginning is put before texts, where the file does not say.
    """

    pattern: str
    splits_digits: bool = False
    is_normalized: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return what changes texts first; None: nothing."""
        return normalizers.NFC() if self.is_normalized else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return what splits texts and spells their bytes."""
        digits = [pre_tokenizers.Digits(individual_digits=True)] if self.splits_digits else []
        split = pre_tokenizers.Split(Regex(self.pattern), behavior="isolated")
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*digits, split, spell])


_LIKE_LLAMA_3 = PreTokenization(pattern=_LLAMA_3, ignores_merges=True, adds_bos=True)
_LIKE_GPT_2 = PreTokenization(pattern=_GPT_2)
_LIKE_QWEN_2 = PreTokenization(pattern=_QWEN_2, is_normalized=True)
_LIKE_STARCODER = PreTokenization(pattern=_GPT_2, splits_digits=True)
PRE_TOKENIZATIONS: Mapping[str, PreTokenization] = MappingProxyType(
    {
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"), _LIKE_LLAMA_3),
        **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenization(pattern=_LLAMA_3)),
        **dict.fromkeys(("qwen2", "megrez", "deepseek-r1-qwen"), _LIKE_QWEN_2),
        "qwen35": PreTokenization(pattern=_QWEN_35, is_normalized=True),
        **dict.fromkeys(("gpt-2", "olmo", "mpt", "phi-2"), _LIKE_GPT_2),
        **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _LIKE_STARCODER),
        **dict.fromkeys(("gpt-4o", "llama4"), PreTokenization(pattern=_GPT_4O, ignores_merges=True)),
        "tekken": PreTokenization(pattern=_TEKKEN, ignores_merges=True, adds_bos=True),
    }
)
"""The ways that are known."""
DEFAULT_PRE_TOKENIZATION = _LIKE_GPT_2
"""That of files which name none."""

"""The splits that byte-level BPE tokenizers of GGUF files make before they merge, by `tokenizer.ggml.pre`.

A file names only the way; the patterns are those with which the models were trained, as in their `tokenizer.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex, normalizers, pre_tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenization:
    """A way to split texts.

    Attributes:
        patterns: patterns whose matches are pieces, and what is between them; each splits the pieces of the last.
        is_normalized: texts are brought into the form NFC.
        ignores_merges: a piece that is a token stays whole.
        adds_bos: the token of the beginning is put before texts, where the file does not say.
    """

    patterns: tuple[str, ...]
    is_normalized: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return what changes texts first; None: nothing."""
        return normalizers.NFC() if self.is_normalized else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return what splits texts and spells their bytes."""
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UP_TO_THREE_DIGITS = r"\p{N}{1,3}"
_LINES = r"[^\n]+|[\n]+"

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_CONTRACTIONS}|{_WORD}|{_UP_TO_THREE_DIGITS}|{_SIGNS}|{_BLANKS}"
_QWEN_2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SIGNS}|{_BLANKS}"
_QWEN_35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"


def _cased_words(*, letters: str = r"\p{Lm}\p{Lo}\p{M}", ends: str = "") -> str:
    """Return the pattern of words that begin with capitals, `letters` of no case among both, and what may end them."""
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}{letters}]", rf"[\p{{Ll}}{letters}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    return f"{first}{upper}*{lower}+{ends}|{first}{upper}+{lower}*{ends}"


_TEKKEN = rf"{_cased_words()}|\p{{N}}|{_SIGNS_AND_SLASHES}|{_BLANKS}"
_GPT_4O = rf"{_cased_words(ends=_CONTRACTIONS + '?')}|{_UP_TO_THREE_DIGITS}|{_SIGNS_AND_SLASHES}|{_BLANKS}"
_YOUTU = rf"{_cased_words(ends=_CONTRACTIONS + '?')}|\p{{N}}|{_SIGNS_AND_SLASHES}|{_BLANKS}"
_NOT_HAN = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_KIMI_K2 = (
    rf"\p{{Han}}+|{_cased_words(letters=_NOT_HAN, ends=_CONTRACTIONS + '?')}|{_UP_TO_THREE_DIGITS}|{_SIGNS}|{_BLANKS}"
)

_HAN_AND_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_HAN_AND_HANGUL = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_WORDS_AND_SIGNS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_DEEPSEEK_3 = (_UP_TO_THREE_DIGITS, _HAN_AND_KANA, rf"{_WORDS_AND_SIGNS}[\r\n]*|{_BLANKS}")
_CASED = (
    r"[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}"
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}"
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}"
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}"
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]"
)

_LIKE_DEEPSEEK_3 = PreTokenization(patterns=_DEEPSEEK_3)
_LIKE_GLM_4 = PreTokenization(patterns=(_LLAMA_3,), ignores_merges=True)
_LIKE_GPT_2 = PreTokenization(patterns=(_GPT_2,))
_LIKE_GPT_4O = PreTokenization(patterns=(_GPT_4O,), ignores_merges=True)
_LIKE_GPT_NEOX = PreTokenization(patterns=(_GPT_2,), is_normalized=True)
_LIKE_LING = PreTokenization(
    patterns=(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_LIKE_LLAMA_3 = PreTokenization(patterns=(_LLAMA_3,), ignores_merges=True, adds_bos=True)
_LIKE_QWEN_2 = PreTokenization(patterns=(_QWEN_2,), is_normalized=True)
_LIKE_STARCODER = PreTokenization(patterns=(r"\p{N}", _GPT_2))
_LIKE_TINY_AYA = PreTokenization(patterns=(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O), is_normalized=True)
_ROWS = {
    "a.x-4.0": _LIKE_GPT_2,
    "afmoe": PreTokenization(
        patterns=(
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            (
                r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}"
                r"\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}"
                r"\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
            ),
            _DEEPSEEK_3[-1],
        )
    ),
    "bailingmoe": _LIKE_LING,
    "bailingmoe2": _LIKE_LING,
    "bloom": PreTokenization(patterns=(_BLOOM,)),
    "chameleon": PreTokenization(
        patterns=(
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT_2,
        ),
        adds_bos=True,
    ),
    "chatglm-bpe": PreTokenization(patterns=(_LLAMA_3,)),
    "codeshell": _LIKE_STARCODER,
    "cohere2moe": _LIKE_TINY_AYA,
    "command-r": PreTokenization(patterns=(r"\p{N}", _GPT_2), is_normalized=True),
    "dbrx": PreTokenization(patterns=(_LLAMA_3,)),
    "deepseek-coder": PreTokenization(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")),
    "deepseek-llm": PreTokenization(
        patterns=(
            r"[\r\n]",
            rf"\s?{_CASED}+",
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            r"\s+$",
            _HAN_AND_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-r1-qwen": _LIKE_QWEN_2,
    "deepseek-v3": _LIKE_DEEPSEEK_3,
    "exaone": _LIKE_STARCODER,
    "exaone-moe": PreTokenization(
        patterns=(
            (
                rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
            ),
        )
    ),
    "exaone4": _LIKE_GPT_2,
    "f2llmv2": _LIKE_QWEN_2,
    "falcon": PreTokenization(patterns=(r"[\p{P}$+<=>^~|`]+", _GPT_2, r"[0-9][0-9][0-9]")),
    "falcon-h1": _LIKE_LLAMA_3,
    "falcon3": _LIKE_LLAMA_3,
    "gigachat": _LIKE_GPT_2,
    "glm4": _LIKE_GLM_4,
    "glm5": _LIKE_GLM_4,
    "gpt-2": _LIKE_GPT_2,
    "gpt-4o": _LIKE_GPT_4O,
    "gpt3-finnish": PreTokenization(patterns=(_BLOOM,)),
    "granite-docling": _LIKE_GPT_2,
    "granite-embed-multi-97m": _LIKE_GPT_4O,
    "grok-2": PreTokenization(patterns=(_QWEN_2,)),
    "hunyuan": PreTokenization(patterns=(_QWEN_2,)),
    "hunyuan-dense": _LIKE_DEEPSEEK_3,
    "hy_v4": _LIKE_DEEPSEEK_3,
    "jais": _LIKE_GPT_2,
    "jais-2": PreTokenization(
        patterns=(
            (
                rf"{_CONTRACTIONS}|{_WORD}|{_UP_TO_THREE_DIGITS}|{_SIGNS}|\s*[\r\n]+"
                r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
                r"|\s{1,2}(?!\S)|\s{1}"
            ),
        )
    ),
    "jina-de": _LIKE_GPT_2,
    "jina-es": _LIKE_GPT_2,
    "jina-v1-en": _LIKE_GPT_2,
    "jina-v2-code": _LIKE_GPT_2,
    "jina-v2-de": _LIKE_GPT_2,
    "jina-v2-es": _LIKE_GPT_2,
    "jina-v5-nano": _LIKE_LLAMA_3,
    "joyai-llm": _LIKE_DEEPSEEK_3,
    "kanana2": _LIKE_GPT_4O,
    "kimi-k2": PreTokenization(patterns=(_KIMI_K2,)),
    "kormo": PreTokenization(patterns=(_QWEN_2,)),
    "laguna": PreTokenization(patterns=(_LINES, _QWEN_2)),
    "lfm2": _LIKE_LLAMA_3,
    "llada-moe": _LIKE_LING,
    "llama-bpe": _LIKE_LLAMA_3,
    "llama-v3": _LIKE_LLAMA_3,
    "llama3": _LIKE_LLAMA_3,
    "llama4": _LIKE_GPT_4O,
    "megrez": _LIKE_QWEN_2,
    "mellum": _LIKE_GPT_2,
    "mellum2": _LIKE_STARCODER,
    "midm-2.0": _LIKE_LLAMA_3,
    "minerva-7b": _LIKE_STARCODER,
    "minicpm5": PreTokenization(
        patterns=(_UP_TO_THREE_DIGITS, rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}+|{_SIGNS}|{_BLANKS}"), ignores_merges=True
    ),
    "minimax-m2": PreTokenization(patterns=(_GPT_4O,)),
    "modern-bert": _LIKE_GPT_2,
    "mpt": _LIKE_GPT_NEOX,
    "olmo": _LIKE_GPT_NEOX,
    "phi-2": _LIKE_GPT_2,
    "pixtral": _LIKE_LLAMA_3,
    "poro-chat": PreTokenization(patterns=(_BLOOM,)),
    "qwen2": _LIKE_QWEN_2,
    "qwen35": PreTokenization(patterns=(_QWEN_35,), is_normalized=True),
    "refact": _LIKE_STARCODER,
    "roberta-bpe": _LIKE_GPT_2,
    "seed-coder": PreTokenization(patterns=(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",)),
    "smaug-bpe": PreTokenization(patterns=(_LLAMA_3,)),
    "smollm": _LIKE_STARCODER,
    "solar-open": PreTokenization(patterns=(_QWEN_2,)),
    "spark2_5": PreTokenization(
        patterns=(_UP_TO_THREE_DIGITS, _HAN_AND_KANA, rf"{_WORDS_AND_SIGNS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
    ),
    "stablelm2": PreTokenization(patterns=(_QWEN_2,)),
    "starcoder": _LIKE_STARCODER,
    "superbpe": PreTokenization(patterns=(r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "talkie": _LIKE_GPT_4O,
    "tekken": PreTokenization(patterns=(_TEKKEN,), ignores_merges=True, adds_bos=True),
    "tiny_aya": _LIKE_TINY_AYA,
    "trillion": _LIKE_GPT_2,
    "ufakzeka": PreTokenization(patterns=(rf"{_WORD}|\p{{N}}|{_SIGNS}|{_BLANKS}",)),
    "viking": PreTokenization(patterns=(_BLOOM, r"\p{N}")),
    "youtu": PreTokenization(
        patterns=(
            r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
            r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}"
            r"\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|" + _HAN_AND_KANA,
            _YOUTU,
        ),
        ignores_merges=True,
    ),
}
PRE_TOKENIZATIONS: Mapping[str, PreTokenization] = MappingProxyType(_ROWS)
"""The ways that are known."""
DEFAULT_PRE_TOKENIZATION = _LIKE_GPT_2
"""That of files which name none."""
WITHOUT_BYTE_LEVEL = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
"""Ways of files that say `gpt2` although their tokens are pieces with blanks as in SentencePiece, beside merges."""

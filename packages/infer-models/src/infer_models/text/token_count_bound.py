"""A lower bound of the number of tokens of a text, from its length alone."""

import itertools
import json
from typing import Any

import tokenizers
from tokenizers import models

from infer_models.text.files.scored_pieces import is_merged_here
from infer_models.text.token_bytes import byte_by_character

# The most that NFC shrinks a text's UTF-8, rounded up: U+1FBE U+0308 U+0301, of 7 bytes, becomes U+0390, of 2.
_NFC_SHRINKING = 4


def max_bytes_per_token(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Return how many bytes of a text's UTF-8 a token can stand for at most, or None where it is not known.

    A text of `num_bytes` then has at least `ceil(num_bytes / max_bytes_per_token)` tokens. That is sound where nothing
    of a text can get lost or shrink on its way to the tokens, so a number is returned only if all of this holds:

    - The normalizer is absent or NFC; composing shrinks a text to no less than a fourth.
    - The pre-tokenizer is byte-level, alone or among others that only split and keep what they split at.
    - The model is BPE with a token for each of the 256 bytes, and without prefixes or suffixes of subwords.
    - No added token takes the white space around it.
    - Nothing is truncated.

    Each token then stands for as many bytes as it has characters, and an added token for those of its content.
    """
    if is_merged_here(tokenizer):
        return None
    parts = _parts_without_vocabulary(tokenizer)
    normalizers = _flattened(parts["normalizer"], members="normalizers")
    pre_tokenizers = _flattened(parts["pre_tokenizer"], members="pretokenizers")
    added = tokenizer.get_added_tokens_decoder().values()
    is_sound = (
        all(normalizer["type"] == "NFC" for normalizer in normalizers)
        and any(splitter["type"] == "ByteLevel" for splitter in pre_tokenizers)
        and all(map(_keeps_everything, pre_tokenizers))
        and not any(token.lstrip or token.rstrip for token in added)
        and tokenizer.truncation is None
    )
    if not (is_sound and _knows_every_byte(tokenizer)):
        return None
    contents = [token.content for token in added]
    if tokenizer.normalizer is not None:
        contents += [tokenizer.normalizer.normalize_str(content) for content in contents]
    spellings = tokenizer.get_vocab(with_added_tokens=False)
    longest = max(itertools.chain(map(len, spellings), (len(content.encode()) for content in contents)))
    return longest * _NFC_SHRINKING if normalizers else longest


def _parts_without_vocabulary(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the normalizer and the pre-tokenizer as JSON describes them, without writing out the vocabulary."""
    shell = tokenizers.Tokenizer(models.BPE())
    if tokenizer.normalizer is not None:
        shell.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        shell.pre_tokenizer = tokenizer.pre_tokenizer
    parts: dict[str, Any] = json.loads(shell.to_str())
    return parts


def _flattened(part: dict[str, Any] | None, *, members: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [leaf for member in part[members] for leaf in _flattened(member, members=members)]


def _keeps_everything(pre_tokenizer: dict[str, Any]) -> bool:
    kind = pre_tokenizer["type"]
    if kind in ("Split", "Punctuation"):
        return bool(pre_tokenizer["behavior"] != "Removed")
    return kind in ("ByteLevel", "Digits")


def _knows_every_byte(tokenizer: tokenizers.Tokenizer) -> bool:
    model = tokenizer.model
    if not isinstance(model, models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    return tokenizer.get_vocab(with_added_tokens=False).keys() >= byte_by_character().keys()

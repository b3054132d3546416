"""Sets of tokens as bits: bit i of word w, of 32 bits, stands for token 32 * w + i."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Bitmask = npt.NDArray[np.int32]
"""[words] int32; a word that is not there holds no token."""


def all_tokens(vocab_size: int) -> Bitmask:
    """Return the set of all tokens."""
    return np.full(-(-vocab_size // 32), -1, np.int32)


def only(token_id: int) -> Bitmask:
    """Return the set of one token."""
    mask = np.zeros(token_id // 32 + 1, np.int32)
    mask[-1] = _bit(token_id)
    return mask


def without(token_ids: Iterable[int], mask: Bitmask) -> Bitmask:
    """Return `mask`, which is not changed, without `token_ids`."""
    changed = mask.copy()
    for token_id in token_ids:
        if token_id // 32 < len(changed):
            changed[token_id // 32] &= ~_bit(token_id)
    return changed


def holds(mask: Bitmask, token_id: int) -> bool:
    """Return whether a set has a token."""
    word = token_id // 32
    return word < len(mask) and bool(mask[word] & _bit(token_id))


def _bit(token_id: int) -> np.int32:
    return np.uint32(1 << token_id % 32).view(np.int32)

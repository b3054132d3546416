"""Reads and overwrites keys and values of any dtype, by operations that every device has.

PyTorch has few operations on fp8; which ones depends on device and release (pytorch/pytorch#133605). So codes of fp8
are moved and made as the bytes that they are.
"""

import torch
from torch import Tensor

_FP8_NAN = 0x7F
"""Bits of float8_e4m3fn's NaN, but for the sign."""


def read_rows(cache: Tensor, slots: Tensor) -> Tensor:
    """Return a copy of the keys or values at `slots` [tokens] int64, [tokens, kv_heads, head_dim] in the cache's dtype.

    Codes of fp8 are returned as bf16, which has all of them.
    """
    rows = _as_stored(cache)[_at(cache, slots)]
    return rows.view(cache.dtype).bfloat16() if _is_fp8(cache) else rows


def overwrite_rows(cache: Tensor, slots: Tensor, value: float) -> None:
    """Let all keys or values at `slots` [tokens] int64 be `value`, which the cache's dtype has."""
    _as_stored(cache)[_at(cache, slots)] = _stored_as(cache, value)


def fill(cache: Tensor, value: float) -> None:
    """Let all keys or values be `value`, which the cache's dtype has."""
    _as_stored(cache).fill_(_stored_as(cache, value))


def fill_with_noise(cache: Tensor, generator: torch.Generator) -> None:
    """Let all keys or values be random numbers of about 1; codes of fp8 are any of up to 2."""
    if not _is_fp8(cache):
        cache.normal_(generator=generator)
        return
    codes = cache.view(torch.uint8).random_(0, 128, generator=generator)
    is_negative = codes.bitwise_and(0x40)
    codes.bitwise_and_(0x3F).bitwise_or_(is_negative.bitwise_left_shift_(1))


def is_nan(cache: Tensor) -> Tensor:
    """Return where keys or values are NaN; a copy of as many bytes as they have at most."""
    if not _is_fp8(cache):
        return cache.isnan()
    return cache.view(torch.uint8).bitwise_and(_FP8_NAN) == _FP8_NAN


def _is_fp8(cache: Tensor) -> bool:
    return cache.dtype == torch.float8_e4m3fn


def _as_stored(cache: Tensor) -> Tensor:
    return cache.view(torch.uint8) if _is_fp8(cache) else cache


def _stored_as(cache: Tensor, value: float) -> float:
    return int(torch.tensor(value).to(cache.dtype).view(torch.uint8)) if _is_fp8(cache) else value


def _at(cache: Tensor, slots: Tensor) -> tuple[Tensor, slice, Tensor]:
    block_size = cache.shape[2]
    return slots // block_size, slice(None), slots % block_size

"""Keys and values in eight bits: how a paged cache holds them, and the reference of both directions.

    dtype of a cache   shape                                            x is
    fp32, bf16, fp16   [blocks, kv_heads, block_size, head_dim]         what is stored
    float8_e4m3fn      the same                                         code * scale, one scale for all of the cache
    int8               [blocks, kv_heads, block_size, head_dim + 4]     code * scale, one scale for each row: its last
                                                                        four bytes, in fp32

A row is one head of one token. fp8 codes are x / scale, clamped to the largest finite number, 448, and rounded to
nearest even; NaN stays NaN. int8 codes are x * (127 / largest |x| of the row), rounded to nearest even, and the scale
is that largest / 127. So a row's codes depend on that row alone. A row of NaN or infinities is not finite afterwards.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

INT8_MAX = 127.0
FP8_MAX = 448.0
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KVScales:
    """The factors of the codes of a layer's fp8 cache; other caches do not use them.

    Attributes:
        keys: positive and finite.
        values: likewise.

    Raises:
        ValueError: a scale is not positive or not finite.
    """

    keys: float = 1.0
    values: float = 1.0

    def __post_init__(self) -> None:
        """Check both."""
        for name, scale in (("keys", self.keys), ("values", self.values)):
            if not (scale > 0 and math.isfinite(scale)):
                raise ValueError(f"`{name}` is {scale}; pass a positive, finite scale")


NO_SCALES = KVScales()
"""Both 1."""


def row_width(head_dim: int, dtype: torch.dtype) -> int:
    """Return how many elements a cache of `dtype` has for each head of a token."""
    return head_dim + _SCALE_BYTES if dtype == torch.int8 else head_dim


def head_dim_of(cache: Tensor) -> int:
    """Return the head_dim of a cache, whose last dimension may hold scales too."""
    return cache.shape[-1] - _SCALE_BYTES if cache.dtype == torch.int8 else cache.shape[-1]


def encode_rows(rows: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return rows [..., head_dim] as a cache of `dtype` holds them, [..., row_width]; `scale` is of fp8 codes."""
    if dtype == torch.float8_e4m3fn:
        return (rows.float() / scale).clamp_(-FP8_MAX, FP8_MAX).to(dtype)
    if dtype != torch.int8:
        return rows.to(dtype)
    numbers = rows.float()
    largest = numbers.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(largest > 0, torch.full_like(largest, INT8_MAX) / largest, 0.0)  # a number / x rounds twice
    codes = (numbers * inverse).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8)
    scales = (largest / INT8_MAX).contiguous()
    return torch.cat((codes, scales.view(torch.int8)), dim=-1)


def decode_rows(stored: Tensor, scale: float) -> Tensor:
    """Return the numbers, fp32 [..., head_dim], of rows [..., row_width] of a cache; `scale` is of fp8 codes."""
    if stored.dtype == torch.float8_e4m3fn:
        return stored.float() * scale
    if stored.dtype != torch.int8:
        return stored.float()
    codes, scales = torch.split(stored, [head_dim_of(stored), _SCALE_BYTES], dim=-1)
    return codes.float() * scales.contiguous().view(torch.float32)

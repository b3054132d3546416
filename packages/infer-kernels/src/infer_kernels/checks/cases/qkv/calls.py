"""Rotations and stores at odd shapes."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from infer_kernels import NormVariant, QKNorm, Rotary
from infer_kernels.checks.op_call import OpCall
from infer_kernels.checks.self_check import EPS, draw

ROTATED = (((9, 3, 64), 64), ((4, 4, 96), 96), ((3, 1, 80), 20), ((4, 1, 256), 256))
"""(q_heads, kv_heads, head_dim) and rotary_dim."""
STORED = (((9, 3, 64), 16), ((16, 8, 128), 64), ((4, 1, 256), 5))
"""(q_heads, kv_heads, head_dim) and block_size."""
TOKENS, POSITIONS, BLOCKS = 7, 11, 3
VARIANTS: tuple[NormVariant | None, ...] = (None, "llama", "gemma")


def qkv_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield rotations, then stores."""
    for heads, rotary_dim in ROTATED:
        yield _rotate(heads, rotary_dim, dtype)
    for heads, block_size in STORED:
        for rotary_dim in (heads[2], heads[2] // 4 + 4):
            for variant in VARIANTS:
                yield _prepare(heads, block_size, rotary_dim, variant, dtype)
                yield _prepare_queries(heads, rotary_dim, variant, dtype)


def _positions() -> Tensor:
    return torch.arange(TOKENS) * 5 % POSITIONS


def _cos_sin(rotary_dim: int) -> Tensor:
    angles = draw(POSITIONS, rotary_dim // 2, dtype=torch.float32)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def _slots(block_size: int) -> Tensor:
    slots = torch.randperm(BLOCKS * block_size, generator=torch.Generator().manual_seed(block_size))[:TOKENS].int()
    slots[2] = -1  # a row that is not stored
    return slots


def _rotate(heads: tuple[int, int, int], rotary_dim: int, dtype: torch.dtype) -> OpCall:
    q_heads, kv_heads, head_dim = heads
    q, k = (draw(TOKENS, num_heads, head_dim, dtype=dtype) for num_heads in (q_heads, kv_heads))
    return OpCall(
        op="apply_rope",
        label=f"{dtype}, heads {heads}, {rotary_dim} rotated",
        tensors=(q, k, _positions(), _cos_sin(rotary_dim)),
        rows=2,
    )


def _prepare(
    heads: tuple[int, int, int], block_size: int, rotary_dim: int, variant: NormVariant | None, dtype: torch.dtype
) -> OpCall:
    q_heads, kv_heads, head_dim = heads
    qkv = draw(TOKENS, q_heads + 2 * kv_heads, head_dim, dtype=dtype)
    caches = (draw(BLOCKS, kv_heads, block_size, head_dim, dtype=dtype, seed=seed) for seed in (3, 4))
    weights = (draw(head_dim, dtype=dtype, seed=seed) for seed in (5, 6))
    return OpCall(
        op="qk_norm_rope_store",
        label=f"{dtype}, heads {heads}, blocks of {block_size}, {rotary_dim} rotated, norm {variant}",
        tensors=(qkv, *caches, _slots(block_size), _positions(), _cos_sin(rotary_dim), *weights),
        options={"variant": variant},
        rows=1,
        written=(1, 2),
        call=_call_with_groups,
    )


def _prepare_queries(
    heads: tuple[int, int, int], rotary_dim: int, variant: NormVariant | None, dtype: torch.dtype
) -> OpCall:
    q_heads, _, head_dim = heads
    weight = draw(head_dim, dtype=dtype, seed=5)
    return OpCall(
        op="q_norm_rope",
        label=f"{dtype}, {q_heads} heads of {head_dim}, {rotary_dim} rotated, norm {variant}",
        tensors=(draw(TOKENS, q_heads, head_dim, dtype=dtype), _positions(), _cos_sin(rotary_dim), weight, weight),
        options={"variant": variant},
        rows=1,
        call=_call_with_groups,
    )


def _call_with_groups(op: Callable[..., Any], *tensors: Tensor, variant: NormVariant | None) -> Any:
    *packed, position_ids, cos_sin, q_weight, k_weight = tensors
    norm = None if variant is None else QKNorm(q_weight=q_weight, k_weight=k_weight, eps=EPS, variant=variant)
    return op(*packed, rotary=Rotary(position_ids=position_ids, cos_sin=cos_sin), norm=norm)

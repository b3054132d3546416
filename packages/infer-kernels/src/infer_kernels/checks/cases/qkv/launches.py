"""Rotations and stores in the configurations that ship, as launches to be compiled."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from infer_kernels import (
    KVScales,
    NormVariant,
    QKNorm,
    Rotary,
    apply_rope,
    q_norm_rope,
    qk_norm_rope_store,
)
from infer_kernels.checks.cases.launch_case import BF16, FIRST_FP8_CAPABILITY, FP16, FP32, LaunchCase, launch_case
from infer_kernels.checks.self_check import EPS

MODEL_HEADS = ((9, 3, 64), (32, 32, 96), (64, 8, 128), (32, 16, 256))
"""(q_heads, kv_heads, head_dim) of small and large models of each head size."""
PARTIAL_ROTARY_HEADS = (((24, 8, 128), 96), ((32, 32, 64), 16), ((32, 32, 80), 20))
"""(q_heads, kv_heads, head_dim) and rotary_dim of models that rotate the first elements of each head alone."""
PREPARED: tuple[tuple[torch.dtype, tuple[int, int, int], int, NormVariant | None], ...] = (
    *((BF16, heads, heads[2], None) for heads in MODEL_HEADS[:3]),
    (BF16, (16, 8, 128), 128, "llama"),
    (BF16, (4, 1, 256), 256, "gemma"),
    (BF16, (12, 12, 64), 0, None),
    (FP32, (4, 1, 256), 256, "gemma"),
    *((BF16, heads, rotary_dim, None) for heads, rotary_dim in PARTIAL_ROTARY_HEADS),
    (BF16, (16, 8, 128), 64, "llama"),
)
"""(dtype, heads, rotary_dim, variant of the norm) of packed heads that are prepared and stored."""
FP8_PREPARED: tuple[tuple[torch.dtype, tuple[int, int, int], NormVariant | None], ...] = (
    (BF16, (9, 3, 64), None),
    (BF16, (16, 8, 128), "llama"),
    (BF16, (4, 1, 256), "gemma"),
    (FP16, (4, 1, 256), "gemma"),
)
"""(dtype, heads, variant of the norm) of those that are stored in an fp8 cache."""


def qkv_launches() -> Iterator[LaunchCase]:
    """Yield rotations, stores, and stores in eight bits."""
    yield from _rotations()
    yield from _stores()
    yield from _fp8_stores()


def _rotations() -> Iterator[LaunchCase]:
    for dtype, heads in (*((BF16, heads) for heads in MODEL_HEADS), (FP32, MODEL_HEADS[-1])):
        label = _name_heads(heads)
        yield launch_case("apply_rope", dtype, label, partial(_rotate, heads, heads[2], dtype))
    for heads, rotary_dim in PARTIAL_ROTARY_HEADS:
        label = f"{_name_heads(heads)}, {rotary_dim} rotated"
        yield launch_case("apply_rope", BF16, label, partial(_rotate, heads, rotary_dim, BF16))


def _stores() -> Iterator[LaunchCase]:
    for dtype, heads, rotary_dim, variant in PREPARED:
        rope = "RoPE" if rotary_dim == heads[2] else rotary_dim and f"RoPE of {rotary_dim}"
        modes = ", ".join(mode for mode in (variant and f"{variant} norm", rope) if mode) or "store alone"
        launch = partial(_prepare, heads, dtype, rotary_dim=rotary_dim, variant=variant)
        yield launch_case("qk_norm_rope_store", dtype, f"{_name_heads(heads)}, {modes}", launch)

    for dtype, head_dim in ((BF16, 256), (BF16, 512), (FP32, 256)):
        label = f"8 heads x {head_dim}, llama norm, RoPE"
        yield launch_case("q_norm_rope", dtype, label, partial(_prepare_queries, 8, head_dim, dtype))


def _fp8_stores() -> Iterator[LaunchCase]:
    for dtype, heads, variant in FP8_PREPARED:
        norm = f"{variant} norm, " if variant else ""
        yield launch_case(
            "qk_norm_rope_store",
            dtype,
            f"{_name_heads(heads)}, {norm}RoPE, fp8 cache",
            partial(_prepare, heads, dtype, rotary_dim=heads[2], variant=variant, is_fp8=True),
            first_capability=FIRST_FP8_CAPABILITY,
        )


def _name_heads(heads: tuple[int, int, int]) -> str:
    q_heads, kv_heads, head_dim = heads
    return f"heads {q_heads}/{kv_heads} x {head_dim}"


def _rotate(heads: tuple[int, int, int], rotary_dim: int, dtype: torch.dtype) -> object:
    q_heads, kv_heads, head_dim = heads
    q, k = (torch.empty(3, num_heads, head_dim, dtype=dtype) for num_heads in (q_heads, kv_heads))
    return apply_rope(q, k, torch.zeros(3, dtype=torch.int32), torch.empty(9, rotary_dim))


def _caches(kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    k_cache, v_cache = (torch.empty(2, kv_heads, block_size, head_dim, dtype=dtype) for _ in range(2))
    return k_cache, v_cache


def _scales(*, is_fp8: bool) -> KVScales:
    return KVScales(keys=0.5, values=2.0) if is_fp8 else KVScales()


def _prepare_queries(heads: int, head_dim: int, dtype: torch.dtype) -> object:
    weight, index = torch.empty(head_dim, dtype=dtype), torch.zeros(3, dtype=torch.int32)
    return q_norm_rope(
        torch.empty(3, heads, head_dim, dtype=dtype),
        rotary=Rotary(position_ids=index, cos_sin=torch.empty(9, head_dim)),
        norm=QKNorm(q_weight=weight, k_weight=weight, eps=EPS, variant="llama"),
    )


def _prepare(
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    *,
    rotary_dim: int,
    variant: NormVariant | None,
    is_fp8: bool = False,
) -> object:
    q_heads, kv_heads, head_dim = heads
    weight, index = torch.empty(head_dim, dtype=dtype), torch.zeros(3, dtype=torch.int32)
    block_size = 32 if head_dim == 256 and not is_fp8 else 64
    return qk_norm_rope_store(
        torch.empty(3, q_heads + 2 * kv_heads, head_dim, dtype=dtype),
        *_caches(kv_heads, head_dim, block_size, torch.float8_e4m3fn if is_fp8 else dtype),
        index,
        rotary=Rotary(position_ids=index, cos_sin=torch.empty(9, rotary_dim)) if rotary_dim else None,
        norm=None if variant is None else QKNorm(q_weight=weight, k_weight=weight, eps=EPS, variant=variant),
        scales=_scales(is_fp8=is_fp8),
    )

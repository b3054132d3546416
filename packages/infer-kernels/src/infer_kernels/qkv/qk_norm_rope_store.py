"""From packed qkv to prepared queries and a written cache, in one pass.

    q, k, v = the q_heads, kv_heads and kv_heads heads of a token
    q, k    = rms_norm of each head               (where `norm` is given)
    q, k    = rotated by the token's position     (where `rotary` is given; the first rotary_dim elements of each head)
    k_cache[slot // block_size, :, slot % block_size] = k        (v likewise; slot -1 is skipped)

The norms of queries and keys: Henry et al., "Query-Key Normalization for Transformers", 2020. Bytes moved: qkv read
once, as much written, a table row per token:
tokens * (2 * (q_heads + 2 * kv_heads) * head_dim * itemsize + 4 * rotary_dim).

Precision: the rounding points of `rms_norm`, then `apply_rope`, then the store: a normalized head is rounded to the
storage dtype, the rotation is fp32 and rounds once, values are copied. Codes of eight bits are made of what was rounded
so (see `kv_codes.py`).
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_like,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.norm.rms_norm import rms_norm_reference
from infer_kernels.optional_triton import tl, triton
from infer_kernels.qkv import cpu
from infer_kernels.qkv.kv_codes import NO_SCALES, KVScales, head_dim_of
from infer_kernels.qkv.qk_norm_rope_store_torch import qk_norm_rope_store_torch
from infer_kernels.qkv.rope import (
    apply_rope_reference,
    check_rotation,
    paired_elements,
    partial_half,
    rotate_pairs,
)
from infer_kernels.qkv.store_kv import (
    KVSlots,
    check_cache,
    encode_fp8,
    require_storable,
    resolve_slots,
    store_kv_reference,
)
from infer_kernels.qkv.transforms import QKNorm, Rotary


def qk_norm_rope_store_reference(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    rotary: Rotary | None = None,
    norm: QKNorm | None = None,
    scales: KVScales = NO_SCALES,
) -> tuple[Tensor, Tensor, Tensor]:
    """(prepared queries, copies of both caches with the rows written); arguments as for `qk_norm_rope_store`."""
    kv_heads = k_cache.shape[1]
    q, k, v = torch.split(qkv, [qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if norm is not None:
        q = rms_norm_reference(q, norm.q_weight, norm.eps, variant=norm.variant)
        k = rms_norm_reference(k, norm.k_weight, norm.eps, variant=norm.variant)
    if rotary is not None:
        q, k = apply_rope_reference(q, k, rotary.position_ids, rotary.cos_sin)
    return q, *store_kv_reference(k, v, k_cache, v_cache, slots, scales=scales)


class _HeadNorm(NamedTuple):
    """The norm of a head.

    Attributes:
        weight: pointer to [head_dim], or None: there is no norm.
        eps: added to the mean square.
        gemma: the variant is Gemma's.
    """

    weight: tl.tensor
    eps: tl.tensor
    gemma: tl.constexpr


class _Angles(NamedTuple):
    """The angles of the tokens' positions.

    Attributes:
        position_ids: pointer to [tokens], or None: nothing is rotated.
        cos_sin: pointer to fp32 [max_position, rotary_dim], or None.
        stride: elements from a position to the next.
    """

    position_ids: tl.tensor
    cos_sin: tl.tensor
    stride: tl.tensor


@triton.jit
def _prepare_heads(
    x: tl.tensor,  # of the first elements of `paired_elements`, [ROWS, BLOCK_HALF]
    token: tl.tensor,  # [ROWS]
    in_batch: tl.tensor,  # [ROWS]
    norm: _HeadNorm,
    angles: _Angles,
    half: tl.tensor,
    BLOCK_HALF: tl.constexpr,
    ROTARY_HALF: tl.constexpr,  # as for `paired_elements`
) -> tuple[tl.tensor, tl.tensor]:
    """Norm and rotate a row's head where wanted: first and second elements, [ROWS, BLOCK_HALF], in the dtype of `x`."""
    dtype: tl.constexpr = x.dtype.element_ty
    column = tl.arange(0, BLOCK_HALF)
    in_half = column < half
    mask = in_batch[:, None] & in_half[None, :]
    _, distance = paired_elements(column[None, :], half, ROTARY_HALF)
    # All loads come before the arithmetic: a decode of few tokens takes as long as its longest chain of loads.
    if angles.cos_sin is not None:
        position = tl.load(angles.position_ids + token, mask=in_batch, other=0).to(tl.int64)
    x1 = tl.load(x, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(x + distance, mask=mask, other=0.0).to(tl.float32)
    if angles.cos_sin is not None:
        num_angles = half if ROTARY_HALF is None else ROTARY_HALF
        has_angle = in_batch[:, None] & (column < num_angles)[None, :]
        angles_at = angles.cos_sin + position[:, None] * angles.stride + column[None, :]
        cos = tl.load(angles_at, mask=has_angle, other=0.0)
        sin = tl.load(angles_at + num_angles, mask=has_angle, other=0.0)
    if norm.weight is not None:
        first, distance = paired_elements(column, half, ROTARY_HALF)
        weight1 = tl.load(norm.weight + first, mask=in_half, other=0.0).to(tl.float32)[None, :]
        weight2 = tl.load(norm.weight + distance + first, mask=in_half, other=0.0).to(tl.float32)[None, :]
        inverse = tl.math.rsqrt(tl.sum(x1 * x1 + x2 * x2, axis=1) / (2 * half) + norm.eps)[:, None]
        x1, x2 = x1 * inverse, x2 * inverse
        if norm.gemma:
            x1, x2 = x1 * (1.0 + weight1), x2 * (1.0 + weight2)
        else:
            x1, x2 = x1.to(dtype).to(tl.float32) * weight1, x2.to(dtype).to(tl.float32) * weight2
        x1, x2 = x1.to(dtype).to(tl.float32), x2.to(dtype).to(tl.float32)
    if angles.cos_sin is not None:
        x1, x2 = rotate_pairs(x1, x2, cos, sin, column[None, :], ROTARY_HALF)
    return x1.to(dtype), x2.to(dtype)


@triton.jit(do_not_specialize=["q_rows", "kv_rows"], do_not_specialize_on_alignment=["slots", "position_ids"])
def qk_norm_rope_store_kernel(
    out: tl.tensor,  # [tokens, q_heads, head_dim]
    k_cache: tl.tensor,  # [blocks, kv_heads, block_size, head_dim]
    v_cache: tl.tensor,  # the same shape
    qkv: tl.tensor,  # [tokens, q_heads + 2 * kv_heads, head_dim]
    slots: tl.tensor,  # [tokens]
    position_ids: tl.tensor,  # [tokens], or None
    cos_sin: tl.tensor,  # fp32 [max_position, rotary_dim], or None
    q_weight: tl.tensor,  # [head_dim], or None
    k_weight: tl.tensor,  # [head_dim], or None
    eps: tl.tensor,
    k_scale: tl.tensor,  # of an fp8 cache
    v_scale: tl.tensor,
    q_rows: tl.tensor,  # tokens * q_heads, or 0 to leave the queries alone
    kv_rows: tl.tensor,  # tokens * kv_heads
    q_heads: tl.tensor,
    kv_heads: tl.tensor,
    half: tl.tensor,  # head_dim / 2
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    k_cache_stride_block: tl.tensor,
    k_cache_stride_head: tl.tensor,
    k_cache_stride_token: tl.tensor,
    v_cache_stride_block: tl.tensor,
    v_cache_stride_head: tl.tensor,
    v_cache_stride_token: tl.tensor,
    qkv_stride_token: tl.tensor,
    qkv_stride_head: tl.tensor,
    cos_sin_stride: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    ROTARY_HALF: tl.constexpr,  # as for `paired_elements`
    GEMMA: tl.constexpr,
) -> None:
    # A row is one head of one token. The first programs take the queries, the others keys and values:
    #
    #     program  0    1    2 ...          | q_programs ...
    #     rows     of q, ROWS per program   | of k, and the same rows of v
    program = tl.program_id(0)
    q_programs = tl.cdiv(q_rows, ROWS)
    column = tl.arange(0, BLOCK_HALF)[None, :]
    in_half = column < half
    first, distance = paired_elements(column, half, ROTARY_HALF)
    if program < q_programs:
        row = program * ROWS + tl.arange(0, ROWS)
        in_batch = row < q_rows
        token = (row // q_heads).to(tl.int64)
        head = (row % q_heads).to(tl.int64)
        x_at = (token * qkv_stride_token + head * qkv_stride_head)[:, None] + first
        q1, q2 = _prepare_heads(
            qkv + x_at,
            token,
            in_batch,
            _HeadNorm(q_weight, eps, GEMMA),
            _Angles(position_ids, cos_sin, cos_sin_stride),
            half,
            BLOCK_HALF,
            ROTARY_HALF,
        )
        out_at = out + (token * out_stride_token + head * out_stride_head)[:, None] + first
        mask = in_batch[:, None] & in_half
        tl.store(out_at, q1, mask=mask)
        tl.store(out_at + distance, q2, mask=mask)
    else:
        row = (program - q_programs) * ROWS + tl.arange(0, ROWS)
        in_batch = row < kv_rows
        token = (row // kv_heads).to(tl.int64)
        head = (row % kv_heads).to(tl.int64)
        slot = tl.load(slots + token, mask=in_batch, other=-1).to(tl.int64)
        mask = (slot >= 0)[:, None] & in_half
        k_at = (token * qkv_stride_token + (q_heads + head) * qkv_stride_head)[:, None] + first
        v_at = (token * qkv_stride_token + (q_heads + kv_heads + head) * qkv_stride_head)[:, None] + first
        v1 = tl.load(qkv + v_at, mask=mask, other=0.0)
        v2 = tl.load(qkv + v_at + distance, mask=mask, other=0.0)
        k1, k2 = _prepare_heads(
            qkv + k_at,
            token,
            in_batch,
            _HeadNorm(k_weight, eps, GEMMA),
            _Angles(position_ids, cos_sin, cos_sin_stride),
            half,
            BLOCK_HALF,
            ROTARY_HALF,
        )
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        key = block * k_cache_stride_block + head * k_cache_stride_head + offset * k_cache_stride_token
        value = block * v_cache_stride_block + head * v_cache_stride_head + offset * v_cache_stride_token
        key_at = k_cache + key[:, None] + first
        value_at = v_cache + value[:, None] + first
        tl.store(key_at, encode_fp8(k1, k_scale, k_cache), mask=mask)
        tl.store(key_at + distance, encode_fp8(k2, k_scale, k_cache), mask=mask)
        tl.store(value_at, encode_fp8(v1, v_scale, v_cache), mask=mask)
        tl.store(value_at + distance, encode_fp8(v2, v_scale, v_cache), mask=mask)


def qk_norm_rope_store_triton(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    rotary: Rotary | None,
    norm: QKNorm | None,
    scales: KVScales,
    out: Tensor | None,
) -> Tensor:
    """Launch the kernel; arguments as for `qk_norm_rope_store`, unchecked. No `out` leaves the queries alone."""
    tokens, heads, head_dim = qkv.shape
    _, kv_heads, block_size, _ = k_cache.shape
    q_heads = heads - 2 * kv_heads
    q = qkv[:, :q_heads] if out is None else out
    if tokens == 0:
        return q
    q_rows = 0 if out is None else tokens * q_heads
    kv_rows = tokens * kv_heads
    block_half = next_power_of_2(head_dim // 2)
    rows = max(1, 1024 // block_half)
    qk_norm_rope_store_kernel[(cdiv(q_rows, rows) + cdiv(kv_rows, rows),)](
        q,
        k_cache,
        v_cache,
        qkv,
        slots,
        None if rotary is None else rotary.position_ids.contiguous(),
        None if rotary is None else rotary.cos_sin,
        None if norm is None else norm.q_weight,
        None if norm is None else norm.k_weight,
        0.0 if norm is None else norm.eps,
        scales.keys,
        scales.values,
        q_rows,
        kv_rows,
        q_heads,
        kv_heads,
        head_dim // 2,
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        v_cache.stride(0),
        v_cache.stride(1),
        v_cache.stride(2),
        qkv.stride(0),
        qkv.stride(1),
        0 if rotary is None else rotary.cos_sin.stride(0),
        BLOCK_SIZE=block_size,
        ROWS=rows,
        BLOCK_HALF=block_half,
        ROTARY_HALF=None if rotary is None else partial_half(rotary.cos_sin, head_dim),
        GEMMA=norm is not None and norm.variant == "gemma",
        num_warps=4,
        enable_fp_fusion=False,
    )
    return q


def _fits_cpu_kernel(qkv: Tensor, k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether the C++ kernel reads these: one dtype, or a cache of int8, and heads whose elements lie side by side."""
    is_dense = k_cache.stride(3) == v_cache.stride(3) == 1
    return is_dense and k_cache.dtype in (qkv.dtype, torch.int8) and qkv.shape[2] <= cpu.MOST_HEAD_DIM


def qk_norm_rope_store(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor | KVSlots,
    *,
    rotary: Rotary | None = None,
    norm: QKNorm | None = None,
    scales: KVScales = NO_SCALES,
    out: Tensor | None = None,
) -> Tensor:
    """Prepare a step's queries and keys, and write keys and values into their slots of the cache.

    No gradient flows through it.

    Args:
        qkv: [tokens, q_heads + 2 * kv_heads, head_dim], of the device of the caches, for a kernel of their dtype too
            unless that is of eight bits; may be strided. kv_heads and head_dim are those of `k_cache`, the other heads
            are queries.
        k_cache: [blocks, kv_heads, block_size, head_dim], fp32, bf16, fp16 or float8_e4m3fn, any strides, for a kernel
            with 1 in the last dimension. On a CPU also int8 [blocks, kv_heads, block_size, head_dim + 4], see
            `kv_codes.py`.
        v_cache: like `k_cache`; its strides may differ.
        slots: [tokens], int32 or int64: `block * block_size + offset`, each at most once; -1 skips the token. That they
            lie inside the cache is not checked: it would stall the device. What serves several layers of a step is
            wrapped in `KVSlots` once.
        rotary: rotates queries and keys by position, whole heads or their first elements.
        norm: norms each head of queries and keys, before the rotation.
        scales: scales of an fp8 cache.
        out: [tokens, q_heads, head_dim], of the dtype and device of `qkv`; must not share memory with it.

    Returns:
        The queries, [tokens, q_heads, head_dim]: `out`, or a fresh tensor, or, where neither `rotary` nor `norm`
        changes them, a view of `qkv`.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    check_cache(k_cache, v_cache)
    require_rank("qkv", qkv, "tokens, q_heads + 2 * kv_heads, head_dim")
    require_storable("qkv", qkv, k_cache)
    require_dense_rows("qkv", qkv)
    tokens, heads, _ = qkv.shape
    kv_heads, head_dim = k_cache.shape[1], head_dim_of(k_cache)
    require_shape("qkv", qkv, (tokens, heads, head_dim), "head_dim as of `k_cache`")
    if head_dim % 2:
        raise ValueError(f"`k_cache` has head_dim {head_dim}; pass an even one: heads are taken in halves")
    q_heads = heads - 2 * kv_heads
    if q_heads < 1:
        raise ValueError(f"`qkv` has {heads} heads; pass at least {2 * kv_heads + 1}: `k_cache` has {kv_heads}")
    slots = resolve_slots(slots, k_cache, tokens=tokens)
    if rotary is not None:
        check_rotation("qkv", qkv, rotary.position_ids, rotary.cos_sin)
    if norm is not None:
        norm.check("qkv", qkv)
    if out is not None:
        require_shape("out", out, (tokens, q_heads, head_dim), "the queries' part of `qkv`")
        require_like("out", out, "qkv", qkv)
        require_dense_rows("out", out)
    if takes_triton(k_cache):
        if out is None and (rotary is not None or norm is not None):
            out = qkv.new_empty(tokens, q_heads, head_dim)
        return qk_norm_rope_store_triton(
            qkv, k_cache, v_cache, slots.slots.contiguous(), rotary=rotary, norm=norm, scales=scales, out=out
        )
    if takes_cpu_kernel(qkv) and _fits_cpu_kernel(qkv, k_cache, v_cache):
        return cpu.qk_norm_rope_store(qkv, k_cache, v_cache, slots.slots, rotary=rotary, norm=norm, out=out)
    if not torch.is_grad_enabled():
        return qk_norm_rope_store_torch(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm, scales=scales, out=out)
    with torch.no_grad():
        return qk_norm_rope_store_torch(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm, scales=scales, out=out)

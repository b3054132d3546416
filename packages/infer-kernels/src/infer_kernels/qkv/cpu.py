"""The fused step from `qkv` to queries and cache in C++: arguments as the struct of its kernel.

A struct's fields are words of eight bytes in the order of `csrc/`; the rows, its first field, are `calls.run`'s. The
ops of `infer_kernels` check arguments.
"""

from struct import Struct

import torch
from torch import Tensor

from infer_kernels.cpu.calls import empty, run
from infer_kernels.qkv.transforms import QKNorm, Rotary

MOST_HEAD_DIM = 1024
"""Largest head of `qk_norm_rope_store`, as in `csrc/qkv.cpp`."""
_QKV = Struct("PqqPqqPqqqPqqqPqqqqqPqPqqPPdq")


def q_norm_rope(q: Tensor, *, rotary: Rotary | None, norm: QKNorm | None) -> Tensor:
    """Return the prepared queries [tokens, q_heads, head_dim]; nothing is stored."""
    tokens, q_heads, head_dim = q.shape
    out = empty(q.shape, q.dtype)
    arguments = _QKV.pack(
        *(out.data_ptr(), out.stride(0), out.stride(1)),
        *(q.data_ptr(), q.stride(0), q.stride(1)),
        *(0, 0, 0, 0),  # keys
        *(0, 0, 0, 0),  # values
        *(0, 0, 1),  # slots
        *(q_heads, 0, head_dim),
        *_transforms(
            None if rotary is None else rotary.position_ids.contiguous(),
            None if rotary is None else rotary.cos_sin,
            q_weight=None if norm is None else norm.q_weight,
            k_weight=None,
            eps=0.0 if norm is None else norm.eps,
            is_gemma=norm is not None and norm.variant == "gemma",
        ),
    )
    run("qk_norm_rope_store", q.dtype, tokens, arguments, work=q.numel())
    return out


def qk_norm_rope_store(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    positions: Tensor | None,
    cos_sin: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    is_gemma: bool,
    out: Tensor | None,
) -> Tensor:
    """Return the prepared queries, a view of `qkv` where nothing changes them, and write keys and values."""
    tokens, heads, head_dim = qkv.shape
    _, kv_heads, block_size, _ = k_cache.shape
    kernel = "qk_norm_rope_store_int8" if k_cache.dtype == torch.int8 else "qk_norm_rope_store"
    q_heads = heads - 2 * kv_heads
    if out is None and positions is None and q_weight is None:
        q = qkv[:, :q_heads]
    else:
        q = out = empty((tokens, q_heads, head_dim), qkv.dtype) if out is None else out
    slots = slots if slots.is_contiguous() else slots.contiguous()
    if positions is not None and not positions.is_contiguous():
        positions = positions.contiguous()
    arguments = _QKV.pack(
        0 if out is None else out.data_ptr(),
        q.stride(0),
        q.stride(1),
        qkv.data_ptr(),
        qkv.stride(0),
        qkv.stride(1),
        k_cache.data_ptr(),
        *k_cache.stride()[:3],
        v_cache.data_ptr(),
        *v_cache.stride()[:3],
        slots.data_ptr(),
        slots.element_size(),
        block_size,
        q_heads,
        kv_heads,
        head_dim,
        *_transforms(positions, cos_sin, q_weight=q_weight, k_weight=k_weight, eps=eps, is_gemma=is_gemma),
    )
    run(kernel, qkv.dtype, tokens, arguments, work=qkv.numel())
    return q


def _transforms(
    positions: Tensor | None,
    cos_sin: Tensor | None,
    *,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    is_gemma: bool,
) -> tuple[int | float, ...]:
    """Return the last fields of the struct: rotation and norm."""
    return (
        0 if positions is None else positions.data_ptr(),
        0 if positions is None else positions.element_size(),
        0 if cos_sin is None else cos_sin.data_ptr(),
        0 if cos_sin is None else cos_sin.stride(0),
        0 if cos_sin is None else cos_sin.shape[1],
        0 if q_weight is None else q_weight.data_ptr(),
        0 if k_weight is None else k_weight.data_ptr(),
        eps,
        is_gemma,
    )

"""The fused step from `qkv` to queries and cache, of `csrc/qkv.cpp`. The ops of `infer_kernels` check arguments."""

import torch
from torch import Tensor

from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.qkv.transforms import QKNorm, Rotary

MOST_HEAD_DIM = 1024
"""Largest head of `qk_norm_rope_store`, as in `csrc/qkv.cpp`."""
_PREPARE = Arguments("Prepare")


def q_norm_rope(q: Tensor, *, rotary: Rotary | None, norm: QKNorm | None) -> Tensor:
    """Return the prepared queries [tokens, q_heads, head_dim]; nothing is stored."""
    out = empty(q.shape, q.dtype)
    _prepare("qk_norm_rope_store", q, q=out, caches=None, slots=None, kv_heads=0, rotary=rotary, norm=norm)
    return out


def qk_norm_rope_store(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    rotary: Rotary | None,
    norm: QKNorm | None,
    out: Tensor | None,
) -> Tensor:
    """Return the prepared queries, a view of `qkv` where nothing changes them, and write keys and values."""
    tokens, heads, head_dim = qkv.shape
    kv_heads = k_cache.shape[1]
    q_heads = heads - 2 * kv_heads
    if out is None and (rotary is not None or norm is not None):
        out = empty((tokens, q_heads, head_dim), qkv.dtype)
    kernel = "qk_norm_rope_store_int8" if k_cache.dtype == torch.int8 else "qk_norm_rope_store"
    caches, slots = (k_cache, v_cache), slots.contiguous()
    _prepare(kernel, qkv, q=out, caches=caches, slots=slots, kv_heads=kv_heads, rotary=rotary, norm=norm)
    return qkv[:, :q_heads] if out is None else out


def _prepare(
    kernel: str,
    qkv: Tensor,
    *,
    q: Tensor | None,
    caches: tuple[Tensor, Tensor] | None,
    slots: Tensor | None,
    kv_heads: int,
    rotary: Rotary | None,
    norm: QKNorm | None,
) -> None:
    """Prepare the heads of `qkv` into `q` and the caches, where these are given."""
    tokens, heads, head_dim = qkv.shape
    keys, values = caches or (None, None)
    positions = None if rotary is None else rotary.position_ids.contiguous()  # lives until the kernel has read it
    arguments = _PREPARE.pack(
        q=q,
        qkv=qkv,
        keys=keys,
        values=values,
        slots=slots,
        block_size=1 if keys is None else keys.shape[2],
        q_heads=heads - 2 * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        positions=positions,
        cos_sin=None if rotary is None else rotary.cos_sin,
        rotary_dim=0 if rotary is None else rotary.cos_sin.shape[1],
        q_weight=None if norm is None else norm.q_weight,
        k_weight=None if norm is None else norm.k_weight,
        eps=0.0 if norm is None else norm.eps,
        is_gemma=norm is not None and norm.variant == "gemma",
    )
    run(kernel, qkv.dtype, tokens, arguments, work=qkv.numel())

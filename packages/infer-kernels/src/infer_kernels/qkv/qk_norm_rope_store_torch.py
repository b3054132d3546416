"""`qk_norm_rope_store` in plain PyTorch. The formula and its rounding points are in `qk_norm_rope_store.py`."""

import torch
from torch import Tensor

from infer_kernels.norm.rms_norm import normalize_rows
from infer_kernels.qkv.kv_codes import KVScales
from infer_kernels.qkv.rope import rotate_heads_torch
from infer_kernels.qkv.store_kv import KVSlots, store_kv_torch
from infer_kernels.qkv.transforms import QKNorm, Rotary


def qk_norm_rope_store_torch(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: KVSlots,
    *,
    rotary: Rotary | None,
    norm: QKNorm | None,
    scales: KVScales,
    out: Tensor | None,
) -> Tensor:
    """The fastest plain PyTorch; arguments as for `qk_norm_rope_store`, unchecked."""
    kv_heads = k_cache.shape[1]
    q_heads = qkv.shape[1] - 2 * kv_heads
    # Queries and keys lie side by side: half as many operations prepare both.
    both, v = qkv.narrow(1, 0, q_heads + kv_heads), qkv.narrow(1, q_heads + kv_heads, kv_heads)
    if norm is not None:
        both = _normalize_heads_torch(both, q_heads, norm)
    if rotary is not None:
        both = rotate_heads_torch(both, *rotary.angles)
    q, k = both.narrow(1, 0, q_heads), both.narrow(1, q_heads, kv_heads)
    store_kv_torch(k, v, k_cache, v_cache, slots, scales=scales)
    return q if out is None else out.copy_(q)


def _normalize_heads_torch(both: Tensor, q_heads: int, norm: QKNorm) -> Tensor:
    """The normalized heads of queries and keys, which have weights of their own."""
    kv_heads = both.shape[1] - q_heads
    normalized = normalize_rows(both.to(torch.float32, copy=True), norm.eps)
    if norm.variant == "gemma":
        weights = (norm.q_weight.float() + 1.0, norm.k_weight.float() + 1.0)
    else:
        normalized, weights = normalized.to(both.dtype), (norm.q_weight, norm.k_weight)
    normalized.narrow(1, 0, q_heads).mul_(weights[0])
    normalized.narrow(1, q_heads, kv_heads).mul_(weights[1])
    return normalized.to(both.dtype)

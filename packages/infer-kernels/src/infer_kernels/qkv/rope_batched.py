"""Rotary position embedding on batched heads, as `transformers` lays them out.

With x1, x2 the halves of a head, and cos1, cos2, sin1, sin2 those of the rows of `cos` and `sin` for its place:

    y1 = x1 * cos1 - x2 * sin1
    y2 = x2 * cos2 + x1 * sin2

The pairing ("rotate half") is that of `infer_kernels.qkv.rope`, whose table holds each angle once where `cos` and `sin`
hold it twice. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021. Bytes moved: q and k
read and written, a row of cos and of sin for each place:
batch * seq * head_dim * 2 * ((q_heads + kv_heads) * itemsize + angle_itemsize).

Precision: fp32 arithmetic on the angles as given, one rounding at the end.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_float,
    require_like,
    require_out,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_triton
from infer_kernels.integers import next_power_of_2
from infer_kernels.optional_triton import tl, triton
from infer_kernels.qkv.rope import rotate_heads, rotate_torch


def _per_head(angles: Tensor) -> Tensor:
    """[batch or 1, 1, seq, head_dim]: one for all heads, and where it has no batch, for all sequences."""
    return angles[None, None] if angles.dim() == 2 else angles.unsqueeze(1)


def apply_rope_batched_reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q and k in plain fp32 PyTorch; arguments as for `apply_rope_batched`. Differentiable."""
    cos, sin = _per_head(cos).float(), _per_head(sin).float()

    def rotate(x: Tensor) -> Tensor:
        x1, x2 = x.float().chunk(2, dim=-1)
        return (x.float() * cos + torch.cat((-x2, x1), dim=-1) * sin).to(x.dtype)

    return rotate(q), rotate(k)


# Strides grow with the batch, yet are specialized: without knowing that they are multiples of 16, as they all are where
# head_dim is, loads would be of single elements.
@triton.jit(do_not_specialize=["seq"])
def _rope_batched_kernel(
    q_out: tl.tensor,  # [batch, q_heads, seq, head_dim]
    k_out: tl.tensor,  # [batch, kv_heads, seq, head_dim]
    q: tl.tensor,  # [batch, q_heads, seq, head_dim]
    k: tl.tensor,  # [batch, kv_heads, seq, head_dim]
    cos: tl.tensor,  # [batch, seq, head_dim]
    sin: tl.tensor,  # [batch, seq, head_dim]
    seq: tl.tensor,
    q_heads: tl.tensor,
    kv_heads: tl.tensor,
    half: tl.tensor,  # head_dim / 2
    q_out_stride_batch: tl.tensor,
    q_out_stride_head: tl.tensor,
    q_out_stride_seq: tl.tensor,
    k_out_stride_batch: tl.tensor,
    k_out_stride_head: tl.tensor,
    k_out_stride_seq: tl.tensor,
    q_stride_batch: tl.tensor,
    q_stride_head: tl.tensor,
    q_stride_seq: tl.tensor,
    k_stride_batch: tl.tensor,
    k_stride_head: tl.tensor,
    k_stride_seq: tl.tensor,
    cos_stride_batch: tl.tensor,  # 0 where all sequences share the angles
    cos_stride_seq: tl.tensor,
    sin_stride_batch: tl.tensor,  # the same
    sin_stride_seq: tl.tensor,
    BLOCK_Q_HEADS: tl.constexpr,
    BLOCK_KV_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    sequence, place = row // seq, row % seq
    column = tl.arange(0, BLOCK_HALF)
    mask = column < half
    cos_at = cos + sequence * cos_stride_batch + place * cos_stride_seq + column
    sin_at = sin + sequence * sin_stride_batch + place * sin_stride_seq + column
    cos1 = tl.load(cos_at, mask=mask, other=0.0).to(tl.float32)
    cos2 = tl.load(cos_at + half, mask=mask, other=0.0).to(tl.float32)
    sin1 = tl.load(sin_at, mask=mask, other=0.0).to(tl.float32)
    sin2 = tl.load(sin_at + half, mask=mask, other=0.0).to(tl.float32)
    rotate_heads(
        q_out + sequence * q_out_stride_batch + place * q_out_stride_seq,
        q + sequence * q_stride_batch + place * q_stride_seq,
        cos1,
        sin1,
        cos2,
        sin2,
        q_heads,
        half,
        q_out_stride_head,
        q_stride_head,
        BLOCK_Q_HEADS,
        BLOCK_HALF,
        None,
    )
    rotate_heads(
        k_out + sequence * k_out_stride_batch + place * k_out_stride_seq,
        k + sequence * k_stride_batch + place * k_stride_seq,
        cos1,
        sin1,
        cos2,
        sin2,
        kv_heads,
        half,
        k_out_stride_head,
        k_stride_head,
        BLOCK_KV_HEADS,
        BLOCK_HALF,
        None,
    )


def apply_rope_batched_triton(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, q_out: Tensor, k_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments as for `apply_rope_batched`, unchecked."""
    batch, q_heads, seq, head_dim = q.shape
    kv_heads = k.shape[1]
    if batch * seq == 0:
        return q_out, k_out
    block_half = next_power_of_2(head_dim // 2)
    block_q_heads = next_power_of_2(q_heads)
    cos, sin = cos.expand(batch, seq, head_dim), sin.expand(batch, seq, head_dim)
    _rope_batched_kernel[(batch * seq,)](
        q_out,
        k_out,
        q,
        k,
        cos,
        sin,
        seq,
        q_heads,
        kv_heads,
        head_dim // 2,
        *q_out.stride()[:3],
        *k_out.stride()[:3],
        *q.stride()[:3],
        *k.stride()[:3],
        *cos.stride()[:2],
        *sin.stride()[:2],
        BLOCK_Q_HEADS=block_q_heads,
        BLOCK_KV_HEADS=next_power_of_2(kv_heads),
        BLOCK_HALF=block_half,
        num_warps=min(8, max(1, block_q_heads * block_half // 256)),
        enable_fp_fusion=False,
    )
    return q_out, k_out


def apply_rope_batched_torch(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, q_out: Tensor | None = None, k_out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The fastest plain PyTorch; arguments as for `apply_rope_batched`, unchecked. Differentiable without an `out`."""
    cos1, cos2 = _per_head(cos).float().chunk(2, dim=-1)
    sin1, sin2 = _per_head(sin).float().chunk(2, dim=-1)
    return (
        rotate_torch(q, cos1, sin1, cos2, sin2, out=q_out),
        rotate_torch(k, cos1, sin1, cos2, sin2, out=k_out),
    )


def _check_angles(name: str, angles: Tensor, q: Tensor) -> None:
    batch, _, seq, head_dim = q.shape
    if angles.dim() not in (2, 3):
        raise ValueError(
            f"`{name}` has shape {list(angles.shape)}; pass [seq, head_dim] for all sequences alike, "
            "or [batch, seq, head_dim]"
        )
    if angles.dim() == 2:
        require_shape(name, angles, (seq, head_dim), "seq and head_dim as of `q`")
    else:
        require_shape(name, angles, (batch, seq, head_dim), "batch, seq and head_dim as of `q`")
    if angles.dtype not in (torch.float32, q.dtype):
        raise TypeError(f"`{name}` has dtype {angles.dtype}; pass torch.float32 or {q.dtype}, that of `q`")
    require_device(name, angles, "q", q.device)
    require_dense_rows(name, angles)


def apply_rope_batched(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    q_out: Tensor | None = None,
    k_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate batched queries and keys by given angles.

    Args:
        q: [batch, q_heads, seq, head_dim], fp32, bf16 or fp16, any strides but 1 in the last dimension.
        k: [batch, kv_heads, seq, head_dim], of the dtype and device of `q`; likewise.
        cos: [seq, head_dim] for all sequences alike, or [batch, seq, head_dim], fp32 or of the dtype of `q`: the
            cosines of the head_dim / 2 angles, twice.
        sin: the sines; of the same ranks and dtypes as `cos`, each on its own.
        q_out: like `q`; may be `q`.
        k_out: like `k`; may be `k`.

    Returns:
        (rotated q, rotated k), fresh tensors where none were given.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("q", q, "batch, q_heads, seq, head_dim")
    require_float("q", q)
    require_dense_rows("q", q)
    batch, _, seq, head_dim = q.shape
    if head_dim % 2:
        raise ValueError(f"`q` has head_dim {head_dim}; rotary pairs need an even one")
    require_rank("k", k, "batch, kv_heads, seq, head_dim")
    require_shape("k", k, (batch, k.shape[1], seq, head_dim), "batch, seq and head_dim as of `q`")
    require_like("k", k, "q", q)
    require_dense_rows("k", k)
    _check_angles("cos", cos, q)
    _check_angles("sin", sin, q)
    if q_out is not None:
        require_out("q_out", q_out, "q", q)
    if k_out is not None:
        require_out("k_out", k_out, "k", k)
    if takes_triton(q, k, cos, sin):
        return apply_rope_batched_triton(
            q,
            k,
            cos,
            sin,
            q_out=torch.empty(q.shape, dtype=q.dtype, device=q.device) if q_out is None else q_out,
            k_out=torch.empty(k.shape, dtype=k.dtype, device=k.device) if k_out is None else k_out,
        )
    return apply_rope_batched_torch(q, k, cos, sin, q_out=q_out, k_out=k_out)

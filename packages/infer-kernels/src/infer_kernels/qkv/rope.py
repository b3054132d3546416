"""Rotary position embedding on flat tokens.

With x1, x2 the halves of a head's first rotary_dim elements and angles cos, sin of the token's position ("rotate half"
pairing, as in GPT-NeoX):

    y1 = x1 * cos - x2 * sin
    y2 = x2 * cos + x1 * sin

The elements past rotary_dim, where it is less than head_dim, stay as they are (partial rotary).

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021. Bytes moved: q and k read and
written, one table row per token: tokens * (2 * (q_heads + kv_heads) * head_dim * itemsize + 4 * rotary_dim).

Precision: fp32 angles and arithmetic, one rounding at the end; what is not rotated is copied.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_dtype,
    require_float,
    require_integer,
    require_like,
    require_out,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_triton
from infer_kernels.integers import next_power_of_2
from infer_kernels.optional_triton import tl, triton


def apply_rope_reference(q: Tensor, k: Tensor, position_ids: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q and k in plain fp32 PyTorch; arguments as for `apply_rope`. Differentiable."""
    rotary_dim = cos_sin.shape[1]
    cos, sin = cos_sin[position_ids].unsqueeze(1).chunk(2, dim=-1)

    def rotate(x: Tensor) -> Tensor:
        rotated, kept = x[..., :rotary_dim], x[..., rotary_dim:]
        x1, x2 = rotated.float().chunk(2, dim=-1)
        y = torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
        return torch.cat((y.to(x.dtype), kept), dim=-1)

    return rotate(q), rotate(k)


@triton.jit
def paired_elements(
    column: tl.tensor,  # 0 .. BLOCK_HALF, of any shape
    half: tl.tensor,  # head_dim / 2
    ROTARY_HALF: tl.constexpr,  # rotary_dim / 2, or None: head_dim / 2
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first of the two elements of a head that a column holds, and how far the second is from it.

    A rotation mixes the two. A partial one leaves the columns from `ROTARY_HALF` on alone: they hold the elements past
    rotary_dim.

        elements   0 .. | ROTARY_HALF .. | rotary_dim ..  | .. head_dim
        columns    0 .. | 0 ..           | ROTARY_HALF .. | ROTARY_HALF ..
                   first  second           first            second
    """
    first, distance = column, half
    if ROTARY_HALF is not None:
        # In products, unlike in `tl.where`, the compiler sees that neighbours lie side by side, and moves 16 bytes.
        is_kept = (column >= ROTARY_HALF).to(tl.int32)
        first = column + is_kept * ROTARY_HALF
        distance = ROTARY_HALF + is_kept * (half - 2 * ROTARY_HALF)
    return first, distance


@triton.jit
def rotate_pairs(
    x1: tl.tensor,  # fp32 [rows, BLOCK_HALF], the first elements of `paired_elements`
    x2: tl.tensor,  # the same shape, the second ones
    cos: tl.tensor,  # fp32 [rows or 1, BLOCK_HALF]
    sin: tl.tensor,  # the same shape
    column: tl.tensor,  # [1, BLOCK_HALF]
    ROTARY_HALF: tl.constexpr,  # as for `paired_elements`
) -> tuple[tl.tensor, tl.tensor]:
    """Rotate columns, all or those before `ROTARY_HALF`: fp32, [rows, BLOCK_HALF] each."""
    y1 = x1 * cos - x2 * sin
    y2 = x2 * cos + x1 * sin
    if ROTARY_HALF is not None:
        is_rotated = column < ROTARY_HALF
        y1, y2 = tl.where(is_rotated, y1, x1), tl.where(is_rotated, y2, x2)
    return y1, y2


class TokenHeads(NamedTuple):
    """The heads of a token, [heads, 2 * half].

    Attributes:
        at: pointer to the first.
        stride: elements from a head to the next.
    """

    at: tl.tensor
    stride: tl.tensor


@triton.jit
def rotate_heads(
    out: TokenHeads,
    x: TokenHeads,  # may be `out`
    cos: tl.tensor,  # fp32 [BLOCK_HALF]
    sin: tl.tensor,  # fp32 [BLOCK_HALF]
    heads: tl.tensor,
    half: tl.tensor,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    ROTARY_HALF: tl.constexpr,  # as for `paired_elements`
) -> None:
    """Rotate all heads of one token."""
    head = tl.arange(0, BLOCK_HEADS).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK_HALF)[None, :]
    mask = (head < heads) & (column < half)
    first, distance = paired_elements(column, half, ROTARY_HALF)
    x_at = x.at + head * x.stride + first
    x1 = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(x_at + distance, mask=mask, other=0.0).to(tl.float32)
    y1, y2 = rotate_pairs(x1, x2, cos[None, :], sin[None, :], column, ROTARY_HALF)
    out_at = out.at + head * out.stride + first
    tl.store(out_at, y1.to(out.at.dtype.element_ty), mask=mask)
    tl.store(out_at + distance, y2.to(out.at.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["position_ids"])
def _rope_kernel(
    q_out: tl.tensor,  # [tokens, q_heads, head_dim]
    k_out: tl.tensor,  # [tokens, kv_heads, head_dim]
    q: tl.tensor,  # [tokens, q_heads, head_dim]
    k: tl.tensor,  # [tokens, kv_heads, head_dim]
    position_ids: tl.tensor,  # [tokens]
    cos_sin: tl.tensor,  # fp32 [max_position, rotary_dim]
    q_heads: tl.tensor,
    kv_heads: tl.tensor,
    half: tl.tensor,  # head_dim / 2
    q_out_stride_token: tl.tensor,
    q_out_stride_head: tl.tensor,
    k_out_stride_token: tl.tensor,
    k_out_stride_head: tl.tensor,
    q_stride_token: tl.tensor,
    q_stride_head: tl.tensor,
    k_stride_token: tl.tensor,
    k_stride_head: tl.tensor,
    cos_sin_stride: tl.tensor,
    BLOCK_Q_HEADS: tl.constexpr,
    BLOCK_KV_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    ROTARY_HALF: tl.constexpr,  # as for `paired_elements`
) -> None:
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ids + token).to(tl.int64)
    column = tl.arange(0, BLOCK_HALF)
    num_angles = half if ROTARY_HALF is None else ROTARY_HALF
    angles = cos_sin + position * cos_sin_stride
    cos = tl.load(angles + column, mask=column < num_angles, other=0.0)
    sin = tl.load(angles + num_angles + column, mask=column < num_angles, other=0.0)
    rotate_heads(
        TokenHeads(q_out + token * q_out_stride_token, q_out_stride_head),
        TokenHeads(q + token * q_stride_token, q_stride_head),
        cos,
        sin,
        q_heads,
        half,
        BLOCK_Q_HEADS,
        BLOCK_HALF,
        ROTARY_HALF,
    )
    rotate_heads(
        TokenHeads(k_out + token * k_out_stride_token, k_out_stride_head),
        TokenHeads(k + token * k_stride_token, k_stride_head),
        cos,
        sin,
        kv_heads,
        half,
        BLOCK_KV_HEADS,
        BLOCK_HALF,
        ROTARY_HALF,
    )


def partial_half(cos_sin: Tensor, head_dim: int) -> int | None:
    """Return rotary_dim / 2 of a partial rotation, or None: kernels have a variant of their own for whole heads."""
    rotary_dim = cos_sin.shape[1]
    return None if rotary_dim == head_dim else rotary_dim // 2


def apply_rope_triton(
    q: Tensor, k: Tensor, position_ids: Tensor, cos_sin: Tensor, *, q_out: Tensor, k_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments as for `apply_rope`, unchecked."""
    tokens, q_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    if tokens == 0:
        return q_out, k_out
    block_half = next_power_of_2(head_dim // 2)
    block_q_heads = next_power_of_2(q_heads)
    _rope_kernel[(tokens,)](
        q_out,
        k_out,
        q,
        k,
        position_ids,
        cos_sin,
        q_heads,
        kv_heads,
        head_dim // 2,
        q_out.stride(0),
        q_out.stride(1),
        k_out.stride(0),
        k_out.stride(1),
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        cos_sin.stride(0),
        BLOCK_Q_HEADS=block_q_heads,
        BLOCK_KV_HEADS=next_power_of_2(kv_heads),
        BLOCK_HALF=block_half,
        ROTARY_HALF=partial_half(cos_sin, head_dim),
        num_warps=min(8, max(1, block_q_heads * block_half // 256)),
        enable_fp_fusion=False,
    )
    return q_out, k_out


def rotate_torch(x: Tensor, cos: Tensor, sin: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`x` [..., head_dim] rotated by fp32 angles, which broadcast to [..., head_dim / 2]."""
    x1, x2 = x.float().chunk(2, dim=-1)
    rotated = torch.cat((torch.addcmul(x1 * cos, x2, sin, value=-1), torch.addcmul(x2 * cos, x1, sin)), dim=-1)
    return rotated.to(x.dtype) if out is None else out.copy_(rotated)


def rotate_heads_torch(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [tokens, heads, head_dim] rotated by the same angles in both halves; see `Rotary.angles`.

    Six small operations and no temporary but the result: on a CPU this runs for every layer and token.
    """
    rotary_dim = 2 * cos.shape[-1]
    if rotary_dim < x.shape[-1]:
        kept = x[..., rotary_dim:]
        return torch.cat((rotate_heads_torch(x[..., :rotary_dim], cos, sin), kept), dim=-1)
    halves: Tensor = x.float().unflatten(-1, (2, -1))  # type: ignore[no-untyped-call]  # torch has no types for it
    rotated = halves * cos
    rotated.select(-2, 0).addcmul_(halves.select(-2, 1), sin, value=-1)
    rotated.select(-2, 1).addcmul_(halves.select(-2, 0), sin)
    return rotated.flatten(-2).to(x.dtype)


def apply_rope_torch(
    q: Tensor,
    k: Tensor,
    position_ids: Tensor,
    cos_sin: Tensor,
    *,
    q_out: Tensor | None = None,
    k_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The fastest plain PyTorch; arguments as for `apply_rope`, unchecked. Differentiable where no `out` is given."""
    rotary_dim = cos_sin.shape[1]
    cos, sin = cos_sin.index_select(0, position_ids).unsqueeze(1).chunk(2, dim=-1)

    def rotate(x: Tensor, out: Tensor | None) -> Tensor:
        if rotary_dim == x.shape[-1]:
            return rotate_torch(x, cos, sin, out=out)
        rotated, kept = rotate_torch(x[..., :rotary_dim], cos, sin), x[..., rotary_dim:]
        return torch.cat((rotated, kept), dim=-1) if out is None else out.copy_(torch.cat((rotated, kept), dim=-1))

    return rotate(q, q_out), rotate(k, k_out)


def check_rotation(name: str, heads: Tensor, position_ids: Tensor, cos_sin: Tensor) -> None:
    """Raise unless positions and angles fit `heads` [tokens, heads, head_dim], an argument called `name`."""
    tokens, _, head_dim = heads.shape
    require_integer("position_ids", position_ids)
    require_shape("position_ids", position_ids, (tokens,), f"one for each token of `{name}`")
    require_device("position_ids", position_ids, name, heads.device)
    require_dtype("cos_sin", cos_sin, torch.float32)
    require_rank("cos_sin", cos_sin, "max_position, rotary_dim")
    rotary_dim = cos_sin.shape[1]
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(
            f"`cos_sin` has shape {list(cos_sin.shape)}; pass [max_position, rotary_dim] with an even rotary_dim of at "
            f"most {head_dim}, the head_dim of `{name}`: rotary_dim / 2 cosines, then as many sines"
        )
    require_device("cos_sin", cos_sin, name, heads.device)
    require_dense_rows("cos_sin", cos_sin)


def apply_rope(
    q: Tensor,
    k: Tensor,
    position_ids: Tensor,
    cos_sin: Tensor,
    *,
    q_out: Tensor | None = None,
    k_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions.

    Args:
        q: [tokens, q_heads, head_dim], fp32, bf16 or fp16; may be a strided view into packed qkv.
        k: [tokens, kv_heads, head_dim], of the dtype and device of `q`.
        position_ids: [tokens], int32 or int64, each below max_position (not checked: it would stall the device).
        cos_sin: [max_position, rotary_dim], fp32: the cosines of the rotary_dim / 2 angles, then their sines. An even
            rotary_dim, at most head_dim; elements of a head past it stay as they are.
        q_out: like `q`; may be `q`.
        k_out: like `k`; may be `k`.

    Returns:
        (rotated q, rotated k), fresh tensors (they may share storage) where none were given.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("q", q, "tokens, q_heads, head_dim")
    require_float("q", q)
    require_dense_rows("q", q)
    tokens, _, head_dim = q.shape
    if head_dim % 2:
        raise ValueError(f"`q` has head_dim {head_dim}; rotary pairs need an even one")
    require_rank("k", k, "tokens, kv_heads, head_dim")
    require_shape("k", k, (tokens, k.shape[1], head_dim), "tokens and head_dim as of `q`")
    require_like("k", k, "q", q)
    require_dense_rows("k", k)
    check_rotation("q", q, position_ids, cos_sin)
    if q_out is not None:
        require_out("q_out", q_out, "q", q)
    if k_out is not None:
        require_out("k_out", k_out, "k", k)
    if takes_triton(q, k, cos_sin):
        return apply_rope_triton(
            q,
            k,
            position_ids.contiguous(),
            cos_sin,
            q_out=torch.empty(q.shape, dtype=q.dtype, device=q.device) if q_out is None else q_out,
            k_out=torch.empty(k.shape, dtype=k.dtype, device=k.device) if k_out is None else k_out,
        )
    return apply_rope_torch(q, k, position_ids, cos_sin, q_out=q_out, k_out=k_out)

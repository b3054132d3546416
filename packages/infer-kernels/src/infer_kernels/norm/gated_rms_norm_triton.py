"""RMS norm of heads times the SiLU of a gate, in Triton: a program for as many heads as make about 1,024 elements."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from torch import Tensor

from infer_kernels.integers import cdiv
from infer_kernels.norm.rms_norm import normalize_tile, row_tile
from infer_kernels.optional_triton import tl, triton


@triton.jit(do_not_specialize=["num_rows"])
def _gated_rms_norm_kernel(
    out: tl.tensor,  # [tokens, heads, head_dim]
    x: tl.tensor,  # [tokens, heads, head_dim]
    gate: tl.tensor,  # [tokens, heads * head_dim]
    weight: tl.tensor,  # [head_dim]
    eps: tl.tensor,
    num_rows: tl.tensor,  # tokens * heads
    heads: tl.tensor,
    head_dim: tl.tensor,
    x_stride_token: tl.tensor,
    x_stride_head: tl.tensor,
    gate_stride: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    dtype: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    in_head = column < head_dim
    mask = (row < num_rows)[:, None] & in_head[None, :]
    token, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    x_at = x + (token * x_stride_token + head * x_stride_head)[:, None] + column[None, :]
    gate_at = gate + (token * gate_stride + head * head_dim)[:, None] + column[None, :]
    values = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
    gates = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=in_head, other=0.0).to(tl.float32)
    weighted = normalize_tile(values, scale, eps, head_dim, dtype, GEMMA=False).to(tl.float32)
    out_at = out + (row.to(tl.int64) * head_dim)[:, None] + column[None, :]
    tl.store(out_at, (weighted * (gates * tl.sigmoid(gates))).to(dtype), mask=mask)


def gated_rms_norm_triton(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Launch the kernel; arguments as for `gated_rms_norm`, unchecked."""
    tokens, heads, head_dim = x.shape
    out = x.new_empty(tokens, heads * head_dim)
    if out.numel() == 0:
        return out
    rows, block, num_warps = row_tile(head_dim)
    _gated_rms_norm_kernel[(cdiv(tokens * heads, rows),)](
        out,
        x,
        gate,
        weight,
        eps,
        tokens * heads,
        heads,
        head_dim,
        x.stride(0),
        x.stride(1),
        gate.stride(0),
        ROWS=rows,
        BLOCK=block,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return out

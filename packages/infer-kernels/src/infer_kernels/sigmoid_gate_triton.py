"""`x * sigmoid(gate)`, plus an addend where there is one, in Triton."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from torch import Tensor

from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.optional_triton import tl, triton


@triton.jit
def _sigmoid_gate_kernel(
    out: tl.tensor,  # [tokens, width]
    x: tl.tensor,  # [tokens, width]
    gate: tl.tensor,  # [tokens, width], or [tokens, 1]
    addend: tl.tensor,  # [tokens, width], or None
    width: tl.tensor,
    x_stride: tl.tensor,
    gate_stride: tl.tensor,
    addend_stride: tl.tensor,
    BLOCK: tl.constexpr,
    SHARED_GATE: tl.constexpr,  # a row has one
) -> None:
    dtype: tl.constexpr = out.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    values = tl.load(x + token * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if SHARED_GATE:
        gates = tl.load(gate + token * gate_stride).to(tl.float32)
    else:
        gates = tl.load(gate + token * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    gated = (values * tl.sigmoid(gates).to(dtype).to(tl.float32)).to(dtype)
    if addend is not None:
        added = tl.load(addend + token * addend_stride + column, mask=mask, other=0.0).to(tl.float32)
        gated = (added + gated.to(tl.float32)).to(dtype)
    tl.store(out + token * width + column, gated, mask=mask)


def sigmoid_gate_triton(x: Tensor, gate: Tensor, *, addend: Tensor | None = None) -> Tensor:
    """Launch the kernel; arguments as for `sigmoid_gate`, unchecked."""
    tokens, width = x.shape
    out = x.new_empty(tokens, width)
    if out.numel() == 0:
        return out
    block = min(1024, next_power_of_2(width))
    _sigmoid_gate_kernel[(tokens, cdiv(width, block))](
        out,
        x,
        gate,
        addend,
        width,
        x.stride(0),
        gate.stride(0),
        0 if addend is None else addend.stride(0),
        BLOCK=block,
        SHARED_GATE=gate.shape[1] == 1 and width > 1,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out

"""RMS norm of rows that are gated first: `rms_norm(x * silu(gate)) * weight`, by groups of a row (Mamba 2).

`gated_rms_norm` gates what is normalized. Bytes moved: 3 * tokens * width * itemsize.

Precision: SiLU, product and statistics in fp32; the normalized row is rounded to the storage dtype before its weight,
and the result at the end, as `transformers` does.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_rank, require_shape
from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.integers import next_power_of_2
from infer_kernels.optional_triton import tl, triton

_NORM_OF_GATED = Arguments("NormOfGated")


def rms_norm_of_gated_reference(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, num_groups: int = 1) -> Tensor:
    """The formula in plain fp32 PyTorch; arguments as for `rms_norm_of_gated`. Differentiable."""
    gated = (x.float() * functional.silu(gate.float())).reshape(len(x), num_groups, x.shape[1] // num_groups)
    normalized = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + eps)
    weighted: Tensor = normalized.reshape(x.shape).to(x.dtype) * weight
    return weighted


@triton.jit
def _rms_norm_of_gated_kernel(
    out: tl.tensor,  # [tokens, width]
    x: tl.tensor,  # [tokens, width]
    gate: tl.tensor,  # [tokens, width]
    weight: tl.tensor,  # [width]
    eps: tl.tensor,
    size: tl.tensor,  # width / groups
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    gate_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    within = tl.arange(0, BLOCK)
    column = tl.program_id(1) * size + within
    mask = within < size
    values = tl.load(x + token * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(gate + token * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    gated = values * (z / (1.0 + tl.exp(-z)))
    inverse = tl.math.rsqrt(tl.sum(gated * gated, axis=0) / size + eps)
    normalized = (gated * inverse).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + token * out_stride + column, (normalized * scale).to(out.dtype.element_ty), mask=mask)


def rms_norm_of_gated_triton(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, num_groups: int) -> Tensor:
    """Launch the kernel; arguments as for `rms_norm_of_gated`, unchecked."""
    tokens, width = x.shape
    out = torch.empty(tokens, width, dtype=x.dtype, device=x.device)
    if tokens:
        block = next_power_of_2(width // num_groups)
        _rms_norm_of_gated_kernel[(tokens, num_groups)](
            out,
            x,
            gate,
            weight,
            eps,
            width // num_groups,
            out.stride(0),
            x.stride(0),
            gate.stride(0),
            BLOCK=block,
            num_warps=min(16, max(4, block // 512)),
            enable_fp_fusion=False,
        )
    return out


def rms_norm_of_gated(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, num_groups: int = 1) -> Tensor:
    """Multiply rows by SiLU of their gates, and norm each group of a row.

    Args:
        x: [tokens, width], fp32, bf16 or fp16; rows may be strided.
        gate: [tokens, width], of the dtype of `x`; rows may be strided.
        weight: [width], of the dtype of `x`.
        eps: added to the mean square.
        num_groups: groups of a row, side by side, each of which is normalized by itself; a divisor of `width`.

    Returns:
        [tokens, width].

    Raises:
        ValueError: a shape, device, stride or number of groups does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("x", x, "tokens, width")
    require_float("x", x)
    require_dense_rows("x", x)
    width = x.shape[1]
    if num_groups < 1 or width == 0 or width % num_groups:
        raise ValueError(f"`num_groups` is {num_groups} but rows have {width} elements; pass a divisor of their number")
    require_shape("gate", gate, tuple(x.shape), "the shape of `x`")
    require_shape("weight", weight, (width,), "the elements of a row of `x`")
    for name, tensor in (("gate", gate), ("weight", weight)):
        require_like(name, tensor, "x", x)
        require_dense_rows(name, tensor)
    if takes_triton(x, gate, weight):
        return rms_norm_of_gated_triton(x, gate, weight, eps, num_groups=num_groups)
    if takes_cpu_kernel(x, gate, weight):
        return _rms_norm_of_gated_on_cpu(x, gate, weight, eps, num_groups=num_groups)
    return rms_norm_of_gated_reference(x, gate, weight, eps, num_groups=num_groups)


def _rms_norm_of_gated_on_cpu(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, num_groups: int) -> Tensor:
    tokens, width = x.shape
    out = empty((tokens, width), x.dtype)
    size = width // num_groups
    arguments = _NORM_OF_GATED.pack(out=out, x=x, gate=gate, weight=weight, groups=num_groups, size=size, eps=eps)
    run("norm_of_gated", x.dtype, tokens, arguments, work=2 * x.numel())
    return out

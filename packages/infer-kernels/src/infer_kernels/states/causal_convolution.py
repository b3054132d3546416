"""Causal convolutions of each channel over a few tokens, whose state is the last inputs.

    y[t, c] = sum over j of weight[c, j] * x[t - (width - 1) + j, c]  (+ bias[c]);  inputs before the first are zeros

`causal_convolution` may apply SiLU to y (Qwen 3.5, Mamba). `gated_convolution` convolves b * x and returns c * y, of
rows [b, c, x] (LFM2: Liquid AI, "LFM2 Technical Report", 2025). Bytes moved: tokens * channels * itemsize, twice, or
four times with gates; states of width - 1 rows, twice.

Precision: products are summed in fp32, the oldest input's first, and rounded to the storage dtype, and so are b * x,
SiLU of what was rounded, and c * y: the rounding points of `transformers`. So the bits do not depend on how a sequence
is divided into steps.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_rank, require_shape
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.rowwise import rowwise
from infer_kernels.states import cpu
from infer_kernels.states.causal_convolution_triton import causal_convolution_triton, gated_convolution_triton
from infer_kernels.states.state_rows import StateRows

ConvolutionActivation = Literal["silu"]


def causal_convolution_reference(
    x: Tensor,
    state: Tensor,
    rows: StateRows,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    activation: ConvolutionActivation | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, a copy of the states with those of this step written); arguments as for `causal_convolution`."""
    states = state.clone()
    return causal_convolution_torch(x, states, rows, weight, bias=bias, activation=activation), states


def gated_convolution_reference(
    bcx: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(c * y, a copy of the states with those of this step written); arguments as for `gated_convolution`."""
    states = state.clone()
    return gated_convolution_torch(bcx, states, rows, weight, bias=bias), states


def causal_convolution_torch(
    x: Tensor,
    state: Tensor,
    rows: StateRows,
    weight: Tensor,
    *,
    bias: Tensor | None,
    activation: ConvolutionActivation | None,
) -> Tensor:
    """Plain PyTorch, one sequence after another; unchecked. Differentiable, but for the states that it writes."""
    num_before = weight.shape[1] - 1
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    starts = rows.query_start.tolist()
    for index, (read, write) in enumerate(zip(rows.read.tolist(), rows.write.tolist(), strict=True)):
        first, end = starts[index], starts[index + 1]
        before = torch.zeros_like(state[0]) if read < 0 else state[read]
        inputs = torch.cat([before, x[first:end]])
        y = torch.zeros(end - first, x.shape[1], dtype=torch.float32, device=x.device)
        for tap in range(weight.shape[1]):
            y = y + inputs[tap : tap + end - first].float() * weight[:, tap].float()
        if bias is not None:
            y = y + bias.float()
        y = y.to(x.dtype)
        if activation == "silu":
            y = rowwise(functional.silu, y.float()).to(x.dtype)
        out[first:end] = y
        if write >= 0:
            with torch.no_grad():
                state[write] = inputs[len(inputs) - num_before :]
    return out


def gated_convolution_torch(
    bcx: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None
) -> Tensor:
    """As `causal_convolution_torch`, between two gates."""
    b, c, x = bcx.chunk(3, dim=-1)
    gated = (b.float() * x.float()).to(bcx.dtype)
    y = causal_convolution_torch(gated, state, rows, weight, bias=bias, activation=None)
    return (c.float() * y.float()).to(bcx.dtype)


def causal_convolution(
    x: Tensor,
    state: Tensor,
    rows: StateRows,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    activation: ConvolutionActivation | None = None,
) -> Tensor:
    """Convolve each sequence's rows of a step, after its inputs of earlier steps, and write its state.

    Args:
        x: [tokens, channels], fp32, bf16 or fp16; rows may be strided.
        state: [slots, width - 1, channels], of the dtype of `x`: the last inputs, oldest first. Written in place.
        rows: the sequences, and the slots of their states.
        weight: [channels, width], of the dtype of `x`; the last tap meets the newest input.
        bias: [channels], of the dtype of `x`, or None.
        activation: what is applied to the result; None: nothing.

    Returns:
        [tokens, channels].

    Raises:
        ValueError: a shape, device, stride or the activation does not fit.
        TypeError: a dtype does not fit.
    """
    _require_convolution("x", x, 1, state, rows, weight, bias)
    if activation not in (None, "silu"):
        raise ValueError(f"`activation` is {activation!r}; pass 'silu' or None")
    tensors = (x, state, weight) if bias is None else (x, state, weight, bias)
    if takes_triton(*tensors):
        return causal_convolution_triton(x, state, rows, weight, bias=bias, activation=activation)
    if cpu.has_convolution(weight) and takes_cpu_kernel(*tensors):
        return cpu.causal_convolution(x, state, rows, weight, bias=bias, has_silu=activation == "silu")
    return causal_convolution_torch(x, state, rows, weight, bias=bias, activation=activation)


def gated_convolution(
    bcx: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """Convolve b * x of each sequence's rows, and multiply by c.

    Args:
        bcx: [tokens, 3 * channels]: b, c and x side by side; fp32, bf16 or fp16; rows may be strided.
        state: as for `causal_convolution`; holds the last b * x.
        rows: as for `causal_convolution`.
        weight: as for `causal_convolution`.
        bias: as for `causal_convolution`.

    Returns:
        [tokens, channels].

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    _require_convolution("bcx", bcx, 3, state, rows, weight, bias)
    tensors = (bcx, state, weight) if bias is None else (bcx, state, weight, bias)
    if takes_triton(*tensors):
        return gated_convolution_triton(bcx, state, rows, weight, bias=bias)
    if cpu.has_convolution(weight) and takes_cpu_kernel(*tensors):
        return cpu.gated_convolution(bcx, state, rows, weight, bias=bias)
    return gated_convolution_torch(bcx, state, rows, weight, bias=bias)


def _require_convolution(
    name: str, x: Tensor, parts: int, state: Tensor, rows: StateRows, weight: Tensor, bias: Tensor | None
) -> None:
    """Raise unless the arguments fit, where rows of `x`, called `name`, hold so many parts of all channels."""
    require_rank(name, x, f"tokens, {parts} * channels" if parts > 1 else "tokens, channels")
    require_float(name, x)
    require_dense_rows(name, x)
    require_rank("weight", weight, "channels, width")
    channels, width = weight.shape
    if width == 0:
        raise ValueError("`weight` has no taps; pass [channels, width] with a width of at least 1")
    if x.shape[1] != parts * channels:
        raise ValueError(
            f"`{name}` has {x.shape[1]} columns; pass {parts * channels}"
            f"{', b, c and x side by side,' if parts > 1 else ','} as `weight` has {channels} channels"
        )
    require_rank("state", state, "slots, width - 1, channels")
    require_shape("state", state, (state.shape[0], width - 1, channels), "as `weight` is [channels, width]")
    if bias is not None:
        require_shape("bias", bias, (channels,), "as many as `weight` has channels")
    for other, tensor in (("state", state), ("weight", weight), ("bias", bias)):
        if tensor is not None:
            require_like(other, tensor, name, x)
            require_dense_rows(other, tensor)
    rows.require_device(name, x.device)

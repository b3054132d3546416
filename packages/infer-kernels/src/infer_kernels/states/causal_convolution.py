"""Causal convolutions of each channel over a few tokens, whose state is the last inputs.

    y[t, c] = sum over j of weight[c, j] * x[t - (width - 1) + j, c]  (+ bias[c]);  inputs before the first are zeros

`causal_convolution` may apply SiLU to y (Qwen 3.5, Mamba). `gated_convolution` convolves b * x and returns c * y, of
rows [b, c, x] (LFM2: Liquid AI, "LFM2 Technical Report", 2025).

Precision: products are summed in fp32, the oldest input's first, and rounded to the storage dtype, and so are b * x,
SiLU of what was rounded, and c * y: the rounding points of `transformers`. So the bits do not depend on how a sequence
is divided into steps.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

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
    num_before = weight.shape[1] - 1
    out, states = torch.zeros_like(x, memory_format=torch.contiguous_format), state.clone()
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
            y = functional.silu(y.float()).to(x.dtype)
        out[first:end] = y
        if write >= 0:
            states[write] = inputs[len(inputs) - num_before :]
    return out, states


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
    """
    out, states = causal_convolution_reference(x, state, rows, weight, bias=bias, activation=activation)
    state.copy_(states)
    return out


def gated_convolution_reference(
    bcx: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(c * y, a copy of the states with those of this step written); arguments as for `gated_convolution`."""
    b, c, x = bcx.chunk(3, dim=-1)
    y, states = causal_convolution_reference(
        (b.float() * x.float()).to(bcx.dtype), state, rows, weight, bias=bias, activation=None
    )
    return (c.float() * y.float()).to(bcx.dtype), states


def gated_convolution(
    bcx: Tensor, state: Tensor, rows: StateRows, weight: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """Convolve b * x of each sequence's rows, and multiply by c.

    Args:
        bcx: [tokens, 3 * channels]: b, c and x side by side; fp32, bf16 or fp16.
        state: as for `causal_convolution`; holds the last b * x.
        rows: as for `causal_convolution`.
        weight: as for `causal_convolution`.
        bias: as for `causal_convolution`.

    Returns:
        [tokens, channels].
    """
    out, states = gated_convolution_reference(bcx, state, rows, weight, bias=bias)
    state.copy_(states)
    return out

"""`x * sigmoid(gate)`, of attention's outputs (Qwen 3.5) and of shared experts, with an optional addition.

Precision: sigmoid, product and sum are each computed in fp32 and rounded to the storage dtype, as `transformers` does.
"""

import torch
from torch import Tensor


def sigmoid_gate_reference(x: Tensor, gate: Tensor, *, addend: Tensor | None = None) -> Tensor:
    """The formula in plain fp32 PyTorch; arguments as for `sigmoid_gate`."""
    gated = (x.float() * torch.sigmoid(gate.float()).to(x.dtype).float()).to(x.dtype)
    return gated if addend is None else (addend.float() + gated.float()).to(x.dtype)


def sigmoid_gate(x: Tensor, gate: Tensor, *, addend: Tensor | None = None) -> Tensor:
    """Return `x * sigmoid(gate)`, plus `addend` where given.

    Args:
        x: [tokens, width], fp32, bf16 or fp16.
        gate: [tokens, width], or [tokens, 1] for all of a row, of the dtype of `x`; rows may be strided.
        addend: [tokens, width], of the dtype of `x`, or None.

    Returns:
        [tokens, width].
    """
    return sigmoid_gate_reference(x, gate, addend=addend)

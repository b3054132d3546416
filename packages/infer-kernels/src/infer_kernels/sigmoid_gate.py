"""`x * sigmoid(gate)`, of attention's outputs (Qwen 3.5) and of shared experts, with an optional addition.

Bytes moved: 3 * tokens * width * itemsize; 2 where a row has one gate; one more with an addend.

Precision: sigmoid, product and sum are each computed in fp32 and rounded to the storage dtype, as `transformers` does.
"""

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_rank, require_shape
from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.rowwise import rowwise
from infer_kernels.sigmoid_gate_triton import sigmoid_gate_triton

_SIGMOID_GATE = Arguments("SigmoidGate")


def sigmoid_gate_reference(x: Tensor, gate: Tensor, *, addend: Tensor | None = None) -> Tensor:
    """The formula in plain fp32 PyTorch; arguments as for `sigmoid_gate`. Differentiable."""
    gated = (x.float() * rowwise(torch.sigmoid, gate.float()).to(x.dtype).float()).to(x.dtype)
    return gated if addend is None else (addend.float() + gated.float()).to(x.dtype)


def sigmoid_gate(x: Tensor, gate: Tensor, *, addend: Tensor | None = None) -> Tensor:
    """Return `x * sigmoid(gate)`, plus `addend` where given.

    Args:
        x: [tokens, width], fp32, bf16 or fp16; rows may be strided.
        gate: [tokens, width], or [tokens, 1] for all of a row, of the dtype of `x`; rows may be strided.
        addend: [tokens, width], of the dtype of `x`, or None; rows may be strided.

    Returns:
        [tokens, width].

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("x", x, "tokens, width")
    require_float("x", x)
    require_dense_rows("x", x)
    if gate.shape != (len(x), 1):
        require_shape("gate", gate, x.shape, "the shape of `x`, or one column")
    if addend is not None:
        require_shape("addend", addend, x.shape, "the shape of `x`")
    for name, tensor in (("gate", gate), ("addend", addend)):
        if tensor is not None:
            require_like(name, tensor, "x", x)
            require_dense_rows(name, tensor)
    tensors = (x, gate) if addend is None else (x, gate, addend)
    if takes_triton(*tensors):
        return sigmoid_gate_triton(x, gate, addend=addend)
    if takes_cpu_kernel(*tensors):
        return _sigmoid_gate_on_cpu(x, gate, addend)
    return sigmoid_gate_reference(x, gate, addend=addend)


def _sigmoid_gate_on_cpu(x: Tensor, gate: Tensor, addend: Tensor | None) -> Tensor:
    tokens, width = x.shape
    out = empty((tokens, width), x.dtype)
    is_one = gate.shape[1] == 1
    arguments = _SIGMOID_GATE.pack(out=out, x=x, gate=gate, addend=addend, width=width, is_one_of_row=is_one)
    run("sigmoid_gate", x.dtype, tokens, arguments, work=3 * x.numel())
    return out

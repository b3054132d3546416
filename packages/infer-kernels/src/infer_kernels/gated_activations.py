"""Gated activations on packed gate-up rows, and on gates and ups that lie apart.

With gate, up the halves of a row, or a row each:

    y = silu(gate) * up,       silu(x) = x * sigmoid(x)
    y = gelu_tanh(gate) * up,  gelu_tanh(x) = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2

Shazeer, "GLU Variants Improve Transformer", 2020. Bytes moved: 3 * tokens * intermediate * itemsize.

Precision: the activation is computed in fp32 and rounded to the storage dtype, then multiplied and rounded again: the
rounding points of `transformers`.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_rank, require_shape
from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton, wants_grad
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.optional_triton import tl, triton

GatedActivation = Literal["silu", "gelu_tanh"]

_ALLOCATING: dict[GatedActivation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}
_INTO: dict[GatedActivation, Callable[..., Tensor]] = {
    "silu": torch.ops.aten.silu.out,
    "gelu_tanh": partial(torch.ops.aten.gelu.out, approximate="tanh"),
}
_SERIAL: dict[GatedActivation, int] = {"silu": 2**15, "gelu_tanh": 2**14}
"""Elements up to which PyTorch leaves an activation to one thread."""
_GATED = Arguments("Gated")


def silu_and_mul_reference(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` in plain fp32 PyTorch; arguments as for `silu_and_mul`. Differentiable."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    activated = (gate * torch.sigmoid(gate)).to(gate_up.dtype)
    return (activated.float() * up).to(gate_up.dtype)


def gelu_tanh_and_mul_reference(gate_up: Tensor) -> Tensor:
    """`gelu_tanh(gate) * up` in plain fp32 PyTorch; arguments as for `gelu_tanh_and_mul`. Differentiable."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    inner = (2.0 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    activated = (0.5 * gate * (1.0 + torch.tanh(inner))).to(gate_up.dtype)
    return (activated.float() * up).to(gate_up.dtype)


@triton.jit
def gelu_tanh_triton(gate: tl.tensor) -> tl.tensor:
    """The formula of a gate in fp32."""
    # (1 + tanh(z)) / 2 = sigmoid(2 z), with sqrt(2 / pi) = 0.79788...
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(2.0 * inner)


@triton.jit
def gate_tile(
    gate: tl.tensor,  # fp32
    up: tl.tensor,  # fp32
    DTYPE: tl.constexpr,  # what the activation and the result are rounded to
    GELU: tl.constexpr,
) -> tl.tensor:
    """The formula on gates and ups in registers, in DTYPE."""
    activated = gelu_tanh_triton(gate) if GELU else gate * tl.sigmoid(gate)
    return (activated.to(DTYPE).to(tl.float32) * up).to(DTYPE)


@triton.jit
def _gated_kernel(
    out: tl.tensor,  # [tokens, intermediate]
    gates: tl.tensor,  # [tokens, intermediate]
    ups: tl.tensor,  # [tokens, intermediate]
    intermediate: tl.tensor,
    out_stride: tl.tensor,
    gates_stride: tl.tensor,
    ups_stride: tl.tensor,
    BLOCK: tl.constexpr,
    GELU: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < intermediate
    gate = tl.load(gates + token * gates_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(ups + token * ups_stride + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + column, gate_tile(gate, up, out.dtype.element_ty, GELU), mask=mask)


def gated_triton(gates: Tensor, ups: Tensor, *, activation: GatedActivation, out: Tensor) -> Tensor:
    """Launch the kernel; unchecked."""
    tokens, intermediate = out.shape
    if tokens == 0:
        return out
    block = min(1024, next_power_of_2(intermediate))
    _gated_kernel[(tokens, cdiv(intermediate, block))](
        out,
        gates,
        ups,
        intermediate,
        out.stride(0),
        gates.stride(0),
        ups.stride(0),
        BLOCK=block,
        GELU=activation == "gelu_tanh",
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out


def gated_torch(gate_up: Tensor, *, activation: GatedActivation, out: Tensor | None = None) -> Tensor:
    """The fastest plain PyTorch; unchecked. Differentiable where `out` is None."""
    gate, up = gate_up.chunk(2, dim=-1)
    activated = activate_rows(gate, activation)
    if out is not None:
        return torch.mul(activated, up, out=out)
    return activated * up if wants_grad(gate_up) else activated.mul_(up)


def _gated(gate_up: Tensor, activation: GatedActivation, out: Tensor | None) -> Tensor:
    require_rank("gate_up", gate_up, "tokens, 2 * intermediate")
    require_float("gate_up", gate_up)
    require_dense_rows("gate_up", gate_up)
    tokens, width = gate_up.shape
    if width == 0 or width % 2:
        raise ValueError(f"`gate_up` has {width} columns; pass [tokens, 2 * intermediate]: the gates, then as many ups")
    if out is not None:
        require_shape("out", out, (tokens, width // 2), "half the columns of `gate_up`")
        require_like("out", out, "gate_up", gate_up)
        require_dense_rows("out", out)
    if takes_triton(gate_up):
        out = gate_up.new_empty(tokens, width // 2) if out is None else out
        return gated_triton(*gate_up.chunk(2, dim=-1), activation=activation, out=out)
    if takes_cpu_kernel(gate_up):
        return _gated_on_cpu(*gate_up.chunk(2, dim=-1), is_gelu=activation == "gelu_tanh", out=out)
    return gated_torch(gate_up, activation=activation, out=out)


def silu_and_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """SwiGLU's gate: `silu(gate) * up`.

    Args:
        gate_up: [tokens, 2 * intermediate], fp32, bf16 or fp16: the gates, then the ups.
        out: [tokens, intermediate], of the dtype and device of `gate_up`.

    Returns:
        `out`, or a fresh tensor [tokens, intermediate].

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    return _gated(gate_up, "silu", out)


def gelu_tanh_and_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """GeGLU's gate with the tanh approximation: `gelu_tanh(gate) * up`.

    Args:
        gate_up: [tokens, 2 * intermediate], fp32, bf16 or fp16: the gates, then the ups.
        out: [tokens, intermediate], of the dtype and device of `gate_up`.

    Returns:
        `out`, or a fresh tensor [tokens, intermediate].

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    return _gated(gate_up, "gelu_tanh", out)


def gelu_tanh_gate_reference(x: Tensor, gate: Tensor) -> Tensor:
    """`gelu_tanh(gate) * x` in plain fp32 PyTorch; arguments as for `gelu_tanh_gate`. Differentiable."""
    return gelu_tanh_and_mul_reference(torch.cat([gate, x], dim=-1))


def gelu_tanh_gate(x: Tensor, gate: Tensor) -> Tensor:
    """Return `gelu_tanh(gate) * x`.

    Args:
        x: [tokens, width], fp32, bf16 or fp16; rows may be strided.
        gate: like `x`; rows may be strided.

    Returns:
        [tokens, width].

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("x", x, "tokens, width")
    require_float("x", x)
    require_dense_rows("x", x)
    require_shape("gate", gate, x.shape, "the shape of `x`")
    require_like("gate", gate, "x", x)
    require_dense_rows("gate", gate)
    if takes_triton(x, gate):
        return gated_triton(gate, x, activation="gelu_tanh", out=x.new_empty(x.shape))
    if takes_cpu_kernel(x, gate):
        return _gated_on_cpu(gate, x, is_gelu=True, out=None)
    return activate_rows(gate, "gelu_tanh") * x


def _gated_on_cpu(gates: Tensor, ups: Tensor, *, is_gelu: bool, out: Tensor | None) -> Tensor:
    """Return activation(gates) * ups, [rows, width], of both [rows, width]."""
    rows, width = gates.shape
    if out is None:
        out = empty((rows, width), gates.dtype)
    arguments = _GATED.pack(out=out, gates=gates, ups=ups, width=width, is_gelu=is_gelu)
    run("gated", gates.dtype, rows, arguments, work=2 * gates.numel())
    return out


def activate_rows(x: Tensor, activation: GatedActivation) -> Tensor:
    """The activation of x [rows, width]; a row's bits do not depend on the others. Differentiable.

    A thread's share of an elementwise operation ends in a remainder that is computed without vector instructions, to
    other bits. Where a share ends inside a row, which of the row's columns those are depends on the other rows.

        columns      | vectors            |rest|       two threads, three rows: the second row's rest depends on
        thread 0     ==========================        the split, the others' do not; so the first two rows make a
        thread 0, 1  =============|============        part of their own, which is split between rows, and the
        thread 1     ==========================        third another
    """
    threads = torch.get_num_threads()
    if threads == 1 or x.numel() <= _SERIAL[activation] or wants_grad(x):
        return _ALLOCATING[activation](x)
    parts = _parts_in_whole_rows(*x.shape, activation=activation, threads=threads)
    if len(parts) == 1:
        return _ALLOCATING[activation](x)
    activated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for part in parts:
        _INTO[activation](x[part], out=activated[part])
    return activated


def _parts_in_whole_rows(
    rows: int, width: int, *, activation: GatedActivation, threads: int
) -> list[tuple[slice, slice]]:
    """Rows and columns of parts of [rows, width] of which every thread's share is whole rows: mostly one part."""
    widest = _SERIAL[activation]
    parts = []
    for column in range(0, width, widest):
        columns = slice(column, min(column + widest, width))
        row = 0
        while row < rows:
            taken = rows - row
            while taken % _num_shares(taken * (columns.stop - column), activation, threads):
                taken -= 1
            parts.append((slice(row, row + taken), columns))
            row += taken
    return parts


def _num_shares(elements: int, activation: GatedActivation, threads: int) -> int:
    """Among how many threads PyTorch divides so many elements, evenly: gelu among all once it divides at all."""
    serial = _SERIAL[activation]
    if elements <= serial:
        return 1
    return threads if activation == "gelu_tanh" else min(threads, -(-elements // serial))

"""Gated activations."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from infer_kernels.checks.cases.launch_case import BF16, FP32, LaunchCase, launch_case
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.op_call import Fill, OpCall, copy_to, unfilled
from infer_kernels.checks.self_check import ModelOps, SelfCheck, draw, misaligned

ROWS = (1, 7, 65)
OPS = ("silu_and_mul", "gelu_tanh_and_mul")
SHAPES = ((1, 1), (3, 17), (5, 1500), (2, 2049))
"""Odd ones: [rows, intermediate]."""


def activation_call(op: str, rows: int, intermediate: int, dtype: torch.dtype, *, fill: Fill = draw) -> OpCall:
    """Return a call of one of `OPS` on packed gates and ups [rows, 2 * intermediate]."""
    gate_up = fill(rows, 2 * intermediate, dtype=dtype)
    return OpCall(op=op, label=f"{dtype}, {rows} rows of {intermediate}", tensors=(gate_up,), rows=1)


def apart_call(rows: int, width: int, dtype: torch.dtype, *, fill: Fill = draw) -> OpCall:
    """Return a call of `gelu_tanh_gate`, whose gates and ups lie apart: these in a third of wider rows."""
    x, gate = fill(rows, 3, width, dtype=dtype, seed=1)[:, 1], fill(rows, width, dtype=dtype)
    return OpCall(op="gelu_tanh_gate", label=f"{dtype}, {rows} rows of {width}", tensors=(x, gate), rows=2)


def activation_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of the activation of a model's MLPs, at few and at many rows; none if it has another."""
    if ops.activation is not None:
        for rows in ROWS:
            label = f"{rows} rows of {ops.intermediate_size}"
            run = partial(_check, ops, ops.activation, rows=rows, place=copy_to)
            yield SelfCheck(op=ops.activation, label=label, run=run)


def misaligned_activation_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the same of rows that start at odd addresses."""
    if ops.activation is not None:
        run = partial(_check, ops, ops.activation, rows=7, place=misaligned)
        yield SelfCheck(op=ops.activation, label="misaligned rows", run=run)


def activation_launches() -> Iterator[LaunchCase]:
    """Yield both activations, and the one whose gates and ups lie apart."""
    for op in OPS:
        for dtype, intermediate in ((BF16, 512), (BF16, 14336), (FP32, 14336)):
            yield launch_case(op, dtype, f"intermediate {intermediate}", partial(_launch, op, intermediate, dtype))
    launch = apart_call(3, 256, BF16, fill=unfilled).launch
    yield launch_case("gelu_tanh_gate", BF16, "width 256", launch)


def activation_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield all at odd shapes."""
    for rows, intermediate in SHAPES:
        for op in OPS:
            yield activation_call(op, rows, intermediate, dtype)
        yield apart_call(rows, intermediate, dtype)


def _check(
    ops: ModelOps, op: str, device: torch.device, *, rows: int, place: Callable[[Tensor, torch.device], Tensor]
) -> None:
    activation_call(op, rows, ops.intermediate_size, ops.dtype).compare(device, place_rows=place)


def _launch(op: str, intermediate: int, dtype: torch.dtype) -> object:
    return activation_call(op, 3, intermediate, dtype, fill=unfilled).launch()


ACTIVATIONS = OpCases(
    ops=(*OPS, "gelu_tanh_gate"),
    checks=activation_checks,
    misaligned_checks=misaligned_activation_checks,
    launches=activation_launches,
    calls=activation_calls,
)

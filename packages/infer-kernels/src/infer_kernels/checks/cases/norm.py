"""RMS norms."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import NormVariant, reference
from infer_kernels.checks.cases.launch_case import BF16, FP16, FP32, LaunchCase, launch_case
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.op_call import Fill, OpCall, copy_to, unfilled
from infer_kernels.checks.self_check import EPS, ModelOps, SelfCheck, draw, misaligned

ROWS = (1, 7, 65)
OPERANDS = {"rms_norm": (1, 1), "add_rms_norm": (2, 1), "norm_add": (2, 1), "norm_add_norm": (2, 2)}
"""By op, its numbers of inputs and of weights."""
ROUNDINGS = {"norm_add_norm": 4.0}
"""By op, other than two: a rounding of the first norm may stay where the residual cancels most of it, and the second
norm multiplies it."""
VARIANTS: tuple[NormVariant, ...] = ("llama", "gemma")
SHIPPED: tuple[tuple[torch.dtype, int, NormVariant], ...] = (
    (BF16, 64, "llama"),
    (BF16, 576, "llama"),
    (BF16, 2560, "gemma"),
    (FP16, 4096, "llama"),
    (BF16, 5376, "gemma"),
    (FP32, 5376, "gemma"),
)
"""Dtype, hidden size and variant of models."""
SHAPES = ((1, 1), (3, 17), (7, 96), (5, 1000), (2, 2049))
"""Odd ones: [rows, hidden]."""


def norm_call(
    op: str,
    rows: int,
    hidden: int,
    dtype: torch.dtype,
    variant: NormVariant,
    *,
    heads: tuple[int, ...] = (),
    fill: Fill = draw,
) -> OpCall:
    """Return a call of one of `OPERANDS` on rows [rows, hidden], or [rows, *heads, hidden]."""
    num_inputs, num_weights = OPERANDS[op]
    inputs = (fill(rows, *heads, hidden, dtype=dtype, seed=seed) for seed in range(num_inputs))
    weights = (fill(hidden, dtype=dtype, seed=seed) for seed in range(num_weights))
    return OpCall(
        op=op,
        label=f"{dtype}, {rows} rows of {'x'.join(map(str, (*heads, hidden)))}, {variant}",
        tensors=(*inputs, *weights),
        options={"eps": EPS, "variant": variant},
        rows=num_inputs,
        close=partial(assert_within_roundings, roundings=ROUNDINGS.get(op, 2.0)),
    )


def norm_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model's norms, at few and at many rows; none if it has others."""
    for op in _norms_of(ops):
        for rows in ROWS:
            label = f"{rows} rows of {ops.hidden_size}"
            yield SelfCheck(op=op, label=label, run=partial(_check, ops, op, rows=rows, place=copy_to))
    if ops.norms_all_heads:
        for name, heads in (("query", ops.q_heads), ("key", ops.kv_heads)):
            label = f"all {heads} {name} heads, in place"
            yield SelfCheck(op="rms_norm", label=label, run=partial(_check_norm_of_heads, ops, heads=heads))


def misaligned_norm_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the same of rows that start at odd addresses."""
    for op in _norms_of(ops):
        run = partial(_check, ops, op, rows=7, place=misaligned)
        yield SelfCheck(op=op, label="misaligned rows", run=run)


def norm_launches() -> Iterator[LaunchCase]:
    """Yield the norms of models' rows, and of heads."""
    for dtype, hidden, variant in SHIPPED:
        for op in ("rms_norm", "add_rms_norm", "norm_add_norm" if variant == "gemma" else "norm_add"):
            yield _launch(op, dtype, hidden, variant)
    yield _launch("norm_add", FP32, 5120, "llama")
    for op in ("norm_add", "norm_add_norm"):
        scaled = _scaled(norm_call(op, 3, 2304, BF16, "llama", fill=unfilled)).launch
        yield launch_case(op, BF16, "hidden 2304, llama, scaled", scaled)
    yield launch_case("rms_norm", BF16, "16 strided heads x 128, llama", partial(_norm_heads, 16, 128, BF16))
    label = "all of 40 heads x 128 in place, llama"
    yield launch_case("rms_norm", BF16, label, partial(_norm_all_heads, 40, 128, BF16))


def norm_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield each norm at odd shapes, and those of rows that are divided over ranks."""
    for rows, hidden in SHAPES:
        for variant in VARIANTS:
            for op in OPERANDS:
                yield norm_call(op, rows, hidden, dtype, variant)
            for op in ("norm_add", "norm_add_norm"):
                yield _scaled(norm_call(op, rows, hidden, dtype, variant))
            yield _scaled(norm_call("norm_add", rows, hidden, dtype, variant, heads=(3,)))
            yield norm_call("rms_norm", rows, hidden, dtype, variant, heads=(3,))
        x = draw(rows, hidden, dtype=dtype)
        close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
        label = f"{dtype}, {rows} rows of {hidden}"
        yield OpCall(op="sum_of_squares", label=label, tensors=(x,), rows=1, close=close)
        squares = 3 * x.float().square().sum(dim=1)  # as if of three ranks
        for variant in VARIANTS:
            yield OpCall(
                op="sharded_rms_norm",
                label=f"{label}, {variant}",
                tensors=(x, draw(hidden, dtype=dtype), squares),
                options={"width": 3 * hidden, "variant": variant},
                rows=1,
                call=_call_sharded,
            )


def _scaled(call: OpCall) -> OpCall:
    """Return a call whose sum is multiplied by a number."""
    scale = torch.tensor([0.7], dtype=call.tensors[0].dtype)
    return replace(
        call,
        label=f"{call.label}, scaled",
        tensors=(*call.tensors, scale),
        call=lambda op, *tensors, **options: op(*tensors[:-1], scale=tensors[-1], **options),
    )


def _norms_of(ops: ModelOps) -> tuple[str, ...]:
    """Return the norms of a model's layers, by op."""
    if ops.norm is None:
        return ()
    if ops.has_sandwich_norms:
        return "rms_norm", "norm_add_norm"
    return "rms_norm", "norm_add" if ops.has_post_norms else "add_rms_norm"


def _check(
    ops: ModelOps, op: str, device: torch.device, *, rows: int, place: Callable[[Tensor, torch.device], Tensor]
) -> None:
    assert ops.norm is not None
    norm_call(op, rows, ops.hidden_size, ops.dtype, ops.norm).compare(device, place_rows=place)


def _check_norm_of_heads(ops: ModelOps, device: torch.device, *, heads: int) -> None:
    """Norm the first `heads` heads of packed queries, keys and values together."""
    width = heads * ops.head_dim
    qkv = draw(7, (ops.q_heads + 2 * ops.kv_heads) * ops.head_dim, dtype=ops.dtype)
    weight, variant = draw(width, dtype=ops.dtype), ops.norm or "llama"
    actual = qkv.to(device, copy=True)
    infer_kernels.rms_norm(actual[:, :width], weight.to(device), EPS, variant=variant, out=actual[:, :width])
    expected = reference.rms_norm_reference(qkv[:, :width], weight, EPS, variant=variant)
    assert_within_roundings(actual[:, :width].cpu(), expected)
    assert torch.equal(actual[:, width:].cpu(), qkv[:, width:]), "other heads have changed"


def _launch(op: str, dtype: torch.dtype, hidden: int, variant: NormVariant) -> LaunchCase:
    def launch() -> object:
        return norm_call(op, 3, hidden, dtype, variant, fill=unfilled).launch()

    return launch_case(op, dtype, f"hidden {hidden}, {variant}", launch)


def _call_sharded(
    op: Callable[..., Any], x: Tensor, weight: Tensor, squares: Tensor, *, width: int, variant: NormVariant
) -> Any:
    return op(x, weight, EPS, squares=squares, width=width, variant=variant)


def _norm_heads(heads: int, head_dim: int, dtype: torch.dtype) -> object:
    x, weight = torch.empty(3, heads + 4, head_dim, dtype=dtype)[:, :heads], torch.empty(head_dim, dtype=dtype)
    return infer_kernels.rms_norm(x, weight, EPS)


def _norm_all_heads(heads: int, head_dim: int, dtype: torch.dtype) -> object:
    x, weight = torch.empty(3, 3 * heads * head_dim, dtype=dtype), torch.empty(heads * head_dim, dtype=dtype)
    q = x[:, : heads * head_dim]
    return infer_kernels.rms_norm(q, weight, EPS, out=q)


NORMS = OpCases(
    ops=(*OPERANDS, "sum_of_squares", "sharded_rms_norm"),
    checks=norm_checks,
    misaligned_checks=misaligned_norm_checks,
    launches=norm_launches,
    calls=norm_calls,
)

"""Mamba 2's selective scan and the norm after it."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from infer_kernels import StateRows
from infer_kernels.checks.cases.launch_case import BF16, FP32, LaunchCase, launch_case
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.cases.states.calls import TOKENS, check_of
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.op_call import Fill, OpCall, copy_to, unfilled
from infer_kernels.checks.self_check import EPS, ModelOps, SelfCheck, draw, misaligned

Sizes = tuple[int, int, int, int]
"""Heads, head_dim, groups and state_size."""
SHIPPED: tuple[tuple[torch.dtype, Sizes], ...] = (
    (BF16, (48, 64, 1, 128)),
    (BF16, (128, 64, 8, 256)),
    (FP32, (8, 16, 2, 16)),
)
SHAPES: tuple[tuple[Sequence[int], Sizes], ...] = (
    ((1,), (1, 1, 1, 1)),
    ((1, 5, 0, 17, 33, 2), (4, 16, 2, 32)),
    ((3, 1, 0, 19), (6, 24, 3, 20)),
    ((2, 7), (2, 37, 1, 130)),
)
"""Rows of each sequence, and odd sizes."""
NORMS = ((1, 1, 1), (3, 17, 1), (7, 96, 4), (2, 2049, 3))
"""Rows, elements of a row, and groups."""


def scan_call(
    lens: Sequence[int],
    sizes: Sizes,
    dtype: torch.dtype,
    *,
    time_step_limit: tuple[float, float] = (0.0, float("inf")),
    fill: Fill = draw,
) -> OpCall:
    """Return a call for sequences of `lens` rows; every third begins, and the state of every fourth is not kept."""
    heads, head_dim, groups, state_size = sizes
    tokens, seqs = sum(lens), len(lens)
    read = [index if index % 3 else -1 for index in range(seqs)]
    write = [seqs + index if index % 4 != 3 else -1 for index in range(seqs)]
    ints = partial(torch.tensor, dtype=torch.int32)
    return OpCall(
        op="mamba2_scan",
        label=f"{dtype}, sequences of {list(lens)}, {heads} heads x {head_dim}, {groups} groups x {state_size}",
        tensors=(
            fill(tokens, heads * head_dim + 2 * groups * state_size, dtype=dtype),
            fill(tokens, heads, dtype=dtype, seed=1),
            fill(2 * seqs, heads, head_dim, state_size, dtype=FP32),
            ints([0, *accumulate(lens)]),
            ints(read),
            ints(write),
            *(fill(heads, dtype=FP32, seed=seed) for seed in range(3)),
        ),
        options={"num_groups": groups, "time_step_limit": time_step_limit},
        rows=2,
        written=(2,),
        call=_scan,
        call_reference=_scan,
        close=_close,
    )


def norm_of_gated_call(rows: int, width: int, groups: int, dtype: torch.dtype, *, fill: Fill = draw) -> OpCall:
    """Return a call of the norm."""
    return OpCall(
        op="rms_norm_of_gated",
        label=f"{dtype}, {rows} rows of {width} in {groups} groups",
        tensors=(*(fill(rows, width, dtype=dtype, seed=seed) for seed in range(2)), fill(width, dtype=dtype)),
        options={"eps": EPS, "num_groups": groups},
        rows=2,
    )


def mamba2_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model's scan and its norm, at few and at many rows; none if it has none."""
    yield from (check_of(call, copy_to) for tokens in TOKENS for call in _calls_of(ops, tokens))


def misaligned_mamba2_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the same of rows that start at odd addresses."""
    yield from (check_of(call, misaligned) for call in _calls_of(ops, 7))


def _calls_of(ops: ModelOps, tokens: int) -> Iterator[OpCall]:
    """Yield calls of the ops of a model: a sequence that begins, one of one row, and one that goes on."""
    scan = ops.scan
    if scan is not None:
        sizes = scan.heads, scan.head_dim, scan.groups, scan.state_size
        lens = (tokens // 2, 1, tokens - tokens // 2)
        yield scan_call(lens, sizes, ops.dtype, time_step_limit=scan.time_step_limit)
        yield norm_of_gated_call(tokens, scan.heads * scan.head_dim, scan.groups, ops.dtype)


def mamba2_launches() -> Iterator[LaunchCase]:
    """Yield both kernels at the sizes of models."""
    for dtype, sizes in SHIPPED:
        heads, head_dim, groups, state_size = sizes
        label = f"{heads} heads x {head_dim}, {groups} groups x {state_size}"
        yield launch_case("mamba2_scan", dtype, label, scan_call((1, 2), sizes, dtype, fill=unfilled).launch)
        call = norm_of_gated_call(3, heads * head_dim, groups, dtype, fill=unfilled)
        yield launch_case("rms_norm_of_gated", dtype, label, call.launch)


def mamba2_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield both ops at odd shapes."""
    for lens, sizes in SHAPES:
        yield scan_call(lens, sizes, dtype)
    yield scan_call((2, 9), (4, 16, 1, 16), dtype, time_step_limit=(0.5, 0.9))
    for rows, width, groups in NORMS:
        yield norm_of_gated_call(rows, width, groups, dtype)


def _scan(
    op: Callable[..., Any],
    xbc: Tensor,
    dt: Tensor,
    state: Tensor,
    query_start: Tensor,
    read: Tensor,
    write: Tensor,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    **options: Any,
) -> Any:
    rows = StateRows(query_start=query_start, read=read, write=write)
    return op(xbc, dt, state, rows, a_log=a_log, d=d, dt_bias=dt_bias, **options)


def _close(actual: Tensor, expected: Tensor) -> None:
    """Sums of a state's elements, in another order, of numbers that are larger than 1."""
    if expected.dtype == FP32:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    else:
        assert_within_roundings(actual, expected, roundings=4.0)


MAMBA2 = OpCases(
    ops=("mamba2_scan", "rms_norm_of_gated"),
    checks=mamba2_checks,
    misaligned_checks=misaligned_mamba2_checks,
    launches=mamba2_launches,
    calls=mamba2_calls,
)

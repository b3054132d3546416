"""Ops with states, and the norm and the gate that only models with states have."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from infer_kernels.checks.cases.launch_case import BF16, FP16, FP32, LaunchCase, launch_case
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.op_call import OpCall, unfilled
from infer_kernels.checks.self_check import EPS, draw
from infer_kernels.norm.gated_rms_norm_triton import gated_rms_norm_triton
from infer_kernels.sigmoid_gate_triton import sigmoid_gate_triton
from infer_kernels.states.causal_convolution_triton import causal_convolution_triton, gated_convolution_triton
from infer_kernels.states.gated_delta_rule_triton import gated_delta_rule_triton
from infer_kernels.states.state_rows import StateRows

SLOTS = 6
LENGTHS, READ, WRITE = (3, 0, 1, 4), (4, 0, -1, 3), (5, 1, 2, -1)
"""Rows of the sequences of a call, and the slots of their states."""
CONVOLUTIONS = ((1, 2), (5, 4), (130, 3))
"""Odd ones: (channels, width)."""
DELTA_RULES = ((1, 1, 16, 1), (2, 4, 48, 20))
"""Odd ones: (key_heads, value_heads, key_dim, value_dim)."""
ROWS = ((1, 1, 1), (3, 2, 17), (5, 3, 128))
"""Odd ones: (rows, heads, head_dim)."""
_CLOSE = partial(assert_within_roundings, roundings=8)


def state_launches() -> Iterator[LaunchCase]:
    """Yield what Qwen 3.5 and LFM2 have, heads of other sizes, and fp32."""
    for dtype, channels, width in ((BF16, 8192, 4), (BF16, 10240, 4), (FP16, 2048, 8), (FP32, 8192, 4)):
        launch = partial(_launch_convolution, channels, width, dtype)
        yield launch_case("causal_convolution", dtype, f"{channels} channels, width {width}", launch)
    for dtype, channels in ((BF16, 2048), (FP32, 1024)):
        launch = partial(_launch_gated_convolution, channels, 3, dtype)
        yield launch_case("gated_convolution", dtype, f"{channels} channels, width 3", launch)
    for dtype, key_heads, value_heads, key_dim in (
        (BF16, 16, 32, 128),
        (BF16, 16, 16, 128),
        (FP16, 4, 8, 64),
        (BF16, 6, 12, 96),
        (BF16, 4, 4, 256),
        (FP32, 16, 32, 128),
    ):
        label = f"heads {key_heads}/{value_heads} x {key_dim}"
        launch = partial(_launch_delta_rule, key_heads, value_heads, key_dim, dtype)
        yield launch_case("gated_delta_rule", dtype, label, launch)
    for dtype, heads, head_dim in ((BF16, 32, 128), (FP32, 16, 128)):
        launch = partial(_launch_norm, heads, head_dim, dtype)
        yield launch_case("gated_rms_norm", dtype, f"{heads} heads x {head_dim}", launch)
    for dtype, width in ((BF16, 4096), (FP32, 4096)):
        yield launch_case("sigmoid_gate", dtype, f"width {width}", partial(_launch_gate, width, width, dtype))
    label = "width 2048, a gate for each row, addend"
    yield launch_case("sigmoid_gate", BF16, label, partial(_launch_gate, 2048, 1, BF16))


def state_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield calls of all of them at odd shapes."""
    for channels, width in CONVOLUTIONS:
        yield _convolution_call("causal_convolution", channels, width, dtype)
        yield _convolution_call("gated_convolution", channels, width, dtype)
    for heads_and_dims in DELTA_RULES:
        yield _delta_rule_call(*heads_and_dims, dtype)
    for rows, heads, head_dim in ROWS:
        width = heads * head_dim
        label = f"{dtype}, {rows} rows of {heads} heads x {head_dim}"
        x, gate, addend = (draw(rows, width, dtype=dtype, seed=seed) for seed in range(3))
        of_heads = (x.view(rows, heads, head_dim), gate, draw(head_dim, dtype=dtype))
        yield OpCall(op="gated_rms_norm", label=label, tensors=of_heads, options={"eps": EPS}, rows=2)
        yield OpCall(op="sigmoid_gate", label=label, tensors=(x, gate), rows=2)
        with_addend = (x, gate[:, :1], addend)
        yield OpCall(op="sigmoid_gate", label=f"{label}, addend", tensors=with_addend, rows=3, call=_call_with_addend)


def _convolution_call(op: str, channels: int, width: int, dtype: torch.dtype) -> OpCall:
    columns = 3 * channels if op == "gated_convolution" else channels
    x, state = draw(sum(LENGTHS), columns, dtype=dtype), draw(SLOTS, width - 1, channels, dtype=dtype)
    constants = draw(channels, width, dtype=dtype), draw(channels, dtype=dtype)
    return OpCall(
        op=op,
        label=f"{dtype}, {channels} channels, width {width}",
        tensors=(x, state, *_draw_rows(), *constants),
        options={} if op == "gated_convolution" else {"activation": "silu"},
        rows=1,
        written=(1,),
        call=_call_convolution,
        close=_CLOSE,
    )


def _delta_rule_call(key_heads: int, value_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype) -> OpCall:
    widths = (2 * key_heads * key_dim + value_heads * value_dim, value_heads, value_heads)
    inputs = (draw(sum(LENGTHS), width, dtype=dtype, seed=seed) for seed, width in enumerate(widths))
    state = draw(SLOTS, value_heads, key_dim, value_dim, dtype=FP32)
    constants = draw(value_heads, dtype=FP32, seed=1), draw(value_heads, dtype=FP32, seed=2)
    return OpCall(
        op="gated_delta_rule",
        label=f"{dtype}, heads {key_heads}/{value_heads}, {key_dim} x {value_dim}",
        tensors=(*inputs, state, *_draw_rows(), *constants),
        options={"key_heads": key_heads},
        rows=3,
        written=(3,),
        call=_call_delta_rule,
        close=_CLOSE,
    )


def _draw_rows() -> tuple[Tensor, Tensor, Tensor]:
    query_start, read, write = (
        torch.tensor(each, dtype=torch.int32) for each in ((0, *accumulate(LENGTHS)), READ, WRITE)
    )
    return query_start, read, write


def _call_convolution(op: Callable[..., Any], x: Tensor, state: Tensor, *rest: Tensor, **options: Any) -> Any:
    *rows, weight, bias = rest
    return op(x, state, _state_rows(rows), weight, bias=bias, **options)


def _call_delta_rule(op: Callable[..., Any], *tensors: Tensor, key_heads: int) -> Any:
    qkv, a, b, state, *rows, a_log, dt_bias = tensors
    return op(qkv, a, b, state, _state_rows(rows), a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)


def _call_with_addend(op: Callable[..., Any], x: Tensor, gate: Tensor, addend: Tensor) -> Any:
    return op(x, gate, addend=addend)


def _state_rows(rows: Sequence[Tensor]) -> StateRows:
    query_start, read, write = rows
    return StateRows(query_start=query_start, read=read, write=write)


def _launch_convolution(channels: int, width: int, dtype: torch.dtype) -> object:
    x, state = unfilled(8, channels, dtype=dtype), unfilled(SLOTS, width - 1, channels, dtype=dtype)
    weight = unfilled(channels, width, dtype=dtype)
    return causal_convolution_triton(x, state, _state_rows(_draw_rows()), weight, activation="silu")


def _launch_gated_convolution(channels: int, width: int, dtype: torch.dtype) -> object:
    bcx, state = unfilled(8, 3 * channels, dtype=dtype), unfilled(SLOTS, width - 1, channels, dtype=dtype)
    return gated_convolution_triton(bcx, state, _state_rows(_draw_rows()), unfilled(channels, width, dtype=dtype))


def _launch_delta_rule(key_heads: int, value_heads: int, key_dim: int, dtype: torch.dtype) -> object:
    a, b = unfilled(8, 2 * value_heads, dtype=dtype).chunk(2, dim=1)
    return gated_delta_rule_triton(
        unfilled(8, (2 * key_heads + value_heads) * key_dim, dtype=dtype),
        a,
        b,
        unfilled(SLOTS, value_heads, key_dim, key_dim, dtype=FP32),
        _state_rows(_draw_rows()),
        a_log=unfilled(value_heads, dtype=FP32),
        dt_bias=unfilled(value_heads, dtype=FP32),
        key_heads=key_heads,
    )


def _launch_norm(heads: int, head_dim: int, dtype: torch.dtype) -> object:
    x, gate = unfilled(8, heads, head_dim, dtype=dtype), unfilled(8, heads * head_dim, dtype=dtype)
    return gated_rms_norm_triton(x, gate, unfilled(head_dim, dtype=dtype), EPS)


def _launch_gate(width: int, gates: int, dtype: torch.dtype) -> object:
    x, gate = unfilled(8, width, dtype=dtype), unfilled(8, gates, dtype=dtype)
    return sigmoid_gate_triton(x, gate, addend=None if gates == width else unfilled(8, width, dtype=dtype))


STATES = OpCases(
    ops=("causal_convolution", "gated_convolution", "gated_delta_rule", "gated_rms_norm", "sigmoid_gate"),
    launches=state_launches,
    calls=state_calls,
)

"""Launches of the Triton kernels of ops with states, and of the norm and the gate that only such models have."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from infer_kernels.checks.cases.launch_case import BF16, FP16, FP32, LaunchCase, launch_case
from infer_kernels.checks.op_call import unfilled
from infer_kernels.checks.self_check import EPS
from infer_kernels.norm.gated_rms_norm_triton import gated_rms_norm_triton
from infer_kernels.sigmoid_gate_triton import sigmoid_gate_triton
from infer_kernels.states.causal_convolution_triton import causal_convolution_triton, gated_convolution_triton
from infer_kernels.states.gated_delta_chunks_triton import CHUNK, gated_delta_chunks_triton
from infer_kernels.states.gated_delta_rule_triton import gated_delta_rule_triton
from infer_kernels.states.state_rows import StateRows

SLOTS = 6
LENGTHS, READ, WRITE = (3, 0, 1, 4), (4, 0, -1, 3), (5, 1, 2, -1)
"""Rows of the sequences of a call, and the slots of their states."""


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
    for key_heads, value_heads, key_dim in ((16, 32, 128), (4, 8, 64), (6, 12, 96)):
        launch = partial(_launch_delta_rule, key_heads, value_heads, key_dim, BF16, tokens=2 * CHUNK)
        label = f"heads {key_heads}/{value_heads} x {key_dim}"
        for kernel in ("_chunk_products_kernel", "_chunk_states_kernel"):
            yield launch_case("gated_delta_rule", BF16, label, launch, kernel)
    for dtype, heads, head_dim in ((BF16, 32, 128), (FP32, 16, 128)):
        launch = partial(_launch_norm, heads, head_dim, dtype)
        yield launch_case("gated_rms_norm", dtype, f"{heads} heads x {head_dim}", launch)
    for dtype, width in ((BF16, 4096), (FP32, 4096)):
        yield launch_case("sigmoid_gate", dtype, f"width {width}", partial(_launch_gate, width, width, dtype))
    label = "width 2048, a gate for each row, addend"
    yield launch_case("sigmoid_gate", BF16, label, partial(_launch_gate, 2048, 1, BF16))


def _draw_rows() -> tuple[Tensor, Tensor, Tensor]:
    query_start, read, write = (
        torch.tensor(each, dtype=torch.int32) for each in ((0, *accumulate(LENGTHS)), READ, WRITE)
    )
    return query_start, read, write


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


def _launch_delta_rule(
    key_heads: int, value_heads: int, key_dim: int, dtype: torch.dtype, *, tokens: int = 8
) -> object:
    a, b = unfilled(tokens, 2 * value_heads, dtype=dtype).chunk(2, dim=1)
    launch = gated_delta_rule_triton if tokens < CHUNK else gated_delta_chunks_triton
    return launch(
        unfilled(tokens, (2 * key_heads + value_heads) * key_dim, dtype=dtype),
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

"""Rows of one sequence that are given as several, each from the state of the one before: the bits of calls in turn."""

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from infer_kernels import StateRows, causal_convolution, gated_convolution, gated_delta_rule, mamba2_scan
from infer_kernels.checks.threads import torch_threads

pytestmark = pytest.mark.usefixtures("cpu_path")

CHANNELS, NUM_SLOTS = 96, 16
Op = Callable[[Tensor, Tensor, StateRows], Tensor]
Make = Callable[[torch.dtype], tuple[Op, Tensor, int]]
"""Returns an op, the states, and the columns of a row of its inputs."""
SEQUENCES = (
    ((1, 0, 8), (1, 8, 9), (1, 9, 10), (1, 1, 11)),
    ((2, 2, 8), (1, 3, 9), (1, 9, 10), (1, 10, 11), (1, 11, 12), (3, -1, 13)),
    ((3, -1, 8), (2, 8, 9), (0, 9, 10), (1, 10, -1), (1, 4, 12), (1, 12, 13), (0, 13, 14)),
    ((0, 1, 8), (0, 8, 9), (1, 9, 10), (1, -1, 11), (1, 11, 12)),
    tuple((1, place - 1 if place > 1 else 0, place) for place in range(1, 16)),
)
"""Of each call the sequences: their rows, the slot that is read, and the one that is written."""


def rows_of(*sequences: tuple[int, int, int]) -> StateRows:
    counts, read, write = (torch.tensor(each, dtype=torch.int32) for each in zip(*sequences, strict=True))
    starts = torch.tensor([0, *accumulate(counts.tolist())], dtype=torch.int32)
    return StateRows(query_start=starts, read=read, write=write)


def convolution(dtype: torch.dtype) -> tuple[Op, Tensor, int]:
    weight = torch.randn(CHANNELS, 4).to(dtype)
    state = torch.randn(NUM_SLOTS, 3, CHANNELS).to(dtype)
    return lambda x, state, rows: causal_convolution(x, state, rows, weight, activation="silu"), state, CHANNELS


def between_gates(dtype: torch.dtype) -> tuple[Op, Tensor, int]:
    weight = torch.randn(CHANNELS, 3).to(dtype)
    state = torch.randn(NUM_SLOTS, 2, CHANNELS).to(dtype)
    return lambda x, state, rows: gated_convolution(x, state, rows, weight), state, 3 * CHANNELS


def delta_rule(heads: int, key_dim: int, value_dim: int) -> Make:
    def make(_: torch.dtype) -> tuple[Op, Tensor, int]:
        a_log, dt_bias = torch.randn(2, heads)
        width = heads * (2 * key_dim + value_dim)

        def compute(x: Tensor, state: Tensor, rows: StateRows) -> Tensor:
            qkv, a, b = torch.split(x, [width, heads, heads], dim=1)
            return gated_delta_rule(qkv, a, b, state, rows, a_log=a_log, dt_bias=dt_bias, key_heads=heads)

        return compute, torch.randn(NUM_SLOTS, heads, key_dim, value_dim), width + 2 * heads

    return make


def scan(heads: int, head_dim: int, state_size: int) -> Make:
    def make(_: torch.dtype) -> tuple[Op, Tensor, int]:
        a_log, d, dt_bias = torch.randn(3, heads)
        width = heads * head_dim + 2 * state_size
        options = {"a_log": a_log, "d": d, "dt_bias": dt_bias, "num_groups": 1, "time_step_limit": (0.01, 2.0)}

        def compute(x: Tensor, state: Tensor, rows: StateRows) -> Tensor:
            xbc, dt = torch.split(x, [width, heads], dim=1)
            return mamba2_scan(xbc, dt, state, rows, **options)

        return compute, torch.randn(NUM_SLOTS, heads, head_dim, state_size), width + heads

    return make


OPS: dict[str, Make] = {
    "convolution": convolution,
    "between gates": between_gates,
    "delta rule": delta_rule(4, 64, 64),
    "delta rule, odd columns": delta_rule(4, 64, 37),
    "delta rule, a piece for each row": delta_rule(1, 512, 32),
    "scan": scan(4, 64, 32),
    "scan, odd columns": scan(4, 64, 21),
    "scan, a piece for each row": scan(1, 16, 512),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sequences", SEQUENCES, ids=["a", "b", "c", "d", "many"])
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_leaves_the_state_behind_its_rows(
    name: str,
    sequences: tuple[tuple[int, int, int], ...],
    dtype: torch.dtype,
    threads: int,
) -> None:
    op, state, columns = OPS[name](dtype)
    counts = [count for count, _, _ in sequences]
    x = torch.randn(sum(counts), columns).to(dtype)
    in_turn = state.clone()
    with torch_threads(1):
        expected = [
            op(part, in_turn, rows_of(each)) for part, each in zip(torch.split(x, counts), sequences, strict=True)
        ]
    with torch_threads(threads):
        assert torch.equal(op(x, state, rows_of(*sequences)), torch.cat(expected))
    assert torch.equal(state, in_turn)

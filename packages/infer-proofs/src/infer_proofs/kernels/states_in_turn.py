"""Rows of one sequence that are given as several, each from the state of the one before: the bits of calls in turn."""

from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor

from infer_kernels.states.causal_convolution import causal_convolution, gated_convolution
from infer_kernels.states.gated_delta_rule import gated_delta_rule
from infer_kernels.states.mamba2_scan import mamba2_scan
from infer_kernels.states.state_rows import StateRows

_CHANNELS, _NUM_SLOTS = 96, 16
_Op = Callable[[Tensor, Tensor, StateRows], Tensor]
_Make = Callable[[torch.dtype], tuple[_Op, Tensor, int]]
"""Returns an op, the states, and the columns of a row of its inputs."""
SEQUENCES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "drafts": ((1, 0, 8), (1, 8, 9), (1, 9, 10), (1, 1, 11)),
    "drafts of the second": ((2, 2, 8), (1, 3, 9), (1, 9, 10), (1, 10, 11), (1, 11, 12), (3, -1, 13)),
    "of a beginning": ((3, -1, 8), (2, 8, 9), (1, 9, -1), (1, 4, 12), (4, 12, 13), (0, 5, 14)),
    "many": tuple((1, place - 1 if place > 1 else 0, place) for place in range(1, 16)),
}
"""Sequences of calls: their rows, the slot that is read, and the one that is written."""
WITHOUT_ROWS = ((0, 1, 8), (0, 8, 9), (1, 9, 10), (0, 10, 11), (1, -1, 12), (1, 12, 13))
"""Some that go on have no rows; kernels on a GPU compute no such ones."""


def _rows_of(*sequences: tuple[int, int, int]) -> StateRows:
    counts, read, write = (torch.tensor(each, dtype=torch.int32) for each in zip(*sequences, strict=True))
    starts = torch.tensor([0, *accumulate(counts.tolist())], dtype=torch.int32)
    return StateRows(query_start=starts, read=read, write=write)


def _convolution(dtype: torch.dtype) -> tuple[_Op, Tensor, int]:
    weight = torch.randn(_CHANNELS, 4).to(dtype)
    state = torch.randn(_NUM_SLOTS, 3, _CHANNELS).to(dtype)
    return lambda x, state, rows: causal_convolution(x, state, rows, weight, activation="silu"), state, _CHANNELS


def _gated_convolution(dtype: torch.dtype) -> tuple[_Op, Tensor, int]:
    weight = torch.randn(_CHANNELS, 3).to(dtype)
    state = torch.randn(_NUM_SLOTS, 2, _CHANNELS).to(dtype)
    return lambda x, state, rows: gated_convolution(x, state, rows, weight), state, 3 * _CHANNELS


def _delta_rule(heads: int, key_dim: int, value_dim: int) -> _Make:
    def make(_: torch.dtype) -> tuple[_Op, Tensor, int]:
        a_log, dt_bias = torch.randn(2, heads)
        width = heads * (2 * key_dim + value_dim)

        def compute(x: Tensor, state: Tensor, rows: StateRows) -> Tensor:
            qkv, a, b = torch.split(x, [width, heads, heads], dim=1)
            return gated_delta_rule(qkv, a, b, state, rows, a_log=a_log, dt_bias=dt_bias, key_heads=heads)

        return compute, torch.randn(_NUM_SLOTS, heads, key_dim, value_dim), width + 2 * heads

    return make


def _scan(heads: int, head_dim: int, state_size: int) -> _Make:
    def make(_: torch.dtype) -> tuple[_Op, Tensor, int]:
        a_log, d, dt_bias = torch.randn(3, heads)
        width = heads * head_dim + 2 * state_size
        options = {"a_log": a_log, "d": d, "dt_bias": dt_bias, "num_groups": 1, "time_step_limit": (0.01, 2.0)}

        def compute(x: Tensor, state: Tensor, rows: StateRows) -> Tensor:
            xbc, dt = torch.split(x, [width, heads], dim=1)
            return mamba2_scan(xbc, dt, state, rows, **options)

        return compute, torch.randn(_NUM_SLOTS, heads, head_dim, state_size), width + heads

    return make


STATE_OPS: dict[str, _Make] = {
    "convolution": _convolution,
    "gated convolution": _gated_convolution,
    "delta rule": _delta_rule(4, 64, 64),
    "small delta rule": _delta_rule(1, 16, 8),
    "delta rule, odd columns": _delta_rule(4, 64, 37),
    "delta rule, a piece for each row": _delta_rule(1, 512, 32),
    "scan": _scan(4, 64, 32),
    "small scan": _scan(1, 16, 16),
    "scan, odd columns": _scan(4, 64, 21),
    "scan, a piece for each row": _scan(1, 16, 512),
}
"""Ops at several sizes."""
"""Ops at several sizes."""


def assert_as_in_turn(name: str, sequences: tuple[tuple[int, int, int], ...], dtype: torch.dtype) -> None:
    """Raise unless one call of an op on all sequences gives what calls on one after another give, to the bit.

    Raises:
        AssertionError: it does not.
    """
    op, state, columns = STATE_OPS[name](dtype)
    counts = [count for count, _, _ in sequences]
    x = torch.randn(sum(counts), columns).to(dtype)
    in_turn = state.clone()
    parts = zip(torch.split(x, counts), sequences, strict=True)
    expected = torch.cat([op(part, in_turn, _rows_of(each)) for part, each in parts])
    assert torch.equal(op(x, state, _rows_of(*sequences)), expected)
    assert torch.equal(state, in_turn)

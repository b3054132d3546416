"""Kernels of ops with states, of gated norms and of sigmoid gates, interpreted, against their references."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels import reference
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.norm.gated_rms_norm_triton import gated_rms_norm_triton
from infer_kernels.sigmoid_gate_triton import sigmoid_gate_triton
from infer_kernels.states import StateRows
from infer_kernels.states.causal_convolution_triton import causal_convolution_triton, gated_convolution_triton
from infer_kernels.states.gated_delta_rule import NORM_EPS as NORM_EPS_OF_REFERENCE
from infer_kernels.states.gated_delta_rule_triton import NORM_EPS, gated_delta_rule_triton
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.states_in_turn import SEQUENCES, assert_as_in_turn

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LENGTHS, READ, WRITE = (3, 0, 1, 0, 5, 0), (4, 6, -1, -1, 0, -1), (5, 1, 2, -1, -1, 8)
SLOTS = 9
NUM_PADDING = 2
"""Rows that belong to no sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An op with states, and what its steps share.

    Attributes:
        kernel: called with inputs, states, sequences and constants.
        reference: likewise; returns a copy of the states too.
        widths: columns of each input.
        slot: shape of a sequence's state.
        dtype: dtype of inputs.
        state_dtype: dtype of states.
        weights: further arguments.
        constants: further arguments by name.
    """

    kernel: Callable[..., Tensor]
    reference: Callable[..., tuple[Tensor, Tensor]]
    widths: tuple[int, ...]
    slot: tuple[int, ...]
    dtype: torch.dtype
    state_dtype: torch.dtype
    weights: tuple[Tensor, ...] = ()
    constants: dict[str, Any]

    def draw_inputs(self, tokens: int) -> list[Tensor]:
        """Return inputs whose rows lie apart."""
        return [torch.randn(tokens, width + 3).to(self.dtype)[:, 1 : 1 + width] for width in self.widths]

    def draw_states(self, read: Iterable[int]) -> Tensor:
        """Return states that lie apart; those that are not read are NaN."""
        states = torch.full((SLOTS, 2, *self.slot), torch.nan, dtype=self.state_dtype)[:, 1]
        for slot in set(read) - {-1}:
            states[slot] = torch.randn(self.slot)
        return states

    def run(self, inputs: Iterable[Tensor], state: Tensor, rows: StateRows) -> Tensor:
        """Compute a step by the kernel, and write `state`."""
        return self.kernel(*inputs, state, rows, *self.weights, **self.constants)


def convolution(
    channels: int, width: int, dtype: torch.dtype, *, is_gated: bool, has_bias: bool = True, is_activated: bool = True
) -> Op:
    constants: dict[str, Any] = {"bias": torch.randn(channels).to(dtype) if has_bias else None}
    if not is_gated:
        constants["activation"] = "silu" if is_activated else None
    return Op(
        kernel=gated_convolution_triton if is_gated else causal_convolution_triton,
        reference=reference.gated_convolution_reference if is_gated else reference.causal_convolution_reference,
        widths=(3 * channels if is_gated else channels,),
        slot=(width - 1, channels),
        dtype=dtype,
        state_dtype=dtype,
        weights=(torch.randn(channels, width).to(dtype),),
        constants=constants,
    )


def delta_rule(key_heads: int, value_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype) -> Op:
    return Op(
        kernel=gated_delta_rule_triton,
        reference=reference.gated_delta_rule_reference,
        widths=(2 * key_heads * key_dim + value_heads * value_dim, value_heads, value_heads),
        slot=(value_heads, key_dim, value_dim),
        dtype=dtype,
        state_dtype=torch.float32,
        constants={
            "a_log": 2 * torch.rand(value_heads) - 1,
            "dt_bias": torch.randn(value_heads),
            "key_heads": key_heads,
        },
    )


SMALL_OPS = {
    "causal_convolution": partial(convolution, 5, 4, is_gated=False),
    "gated_convolution": partial(convolution, 5, 3, is_gated=True),
    "gated_delta_rule": partial(delta_rule, 1, 2, 32, 12),
}
each_op = parametrize_each_value(op=[*SMALL_OPS], dtype=DTYPES)


def state_rows(lengths: Sequence[int], read: Sequence[int], write: Sequence[int]) -> StateRows:
    starts, read_slots, write_slots = (
        torch.tensor(each, dtype=torch.int32) for each in ((0, *accumulate(lengths)), read, write)
    )
    return StateRows(query_start=starts, read=read_slots, write=write_slots)


def assert_equals_reference(op: Op) -> None:
    """Compare a step of several sequences: in NaN where nothing is to be read, and everywhere where it may write."""
    rows, tokens = state_rows(LENGTHS, READ, WRITE), sum(LENGTHS)
    inputs, state = op.draw_inputs(tokens + NUM_PADDING), op.draw_states(READ)
    for each in inputs:
        each[tokens:] = torch.nan
    expected, states = op.reference(*inputs, state, rows, *op.weights, **op.constants)
    actual = op.run(inputs, state, rows)
    assert actual.dtype == op.dtype
    assert actual.shape == expected.shape
    assert_within_roundings(actual[:tokens], expected[:tokens], 4)
    torch.testing.assert_close(state, states, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not state[[slot for slot in WRITE if slot >= 0]].isnan().any()


@parametrize_pairwise(
    dtype=DTYPES,
    channels=[1, 130],
    width=[1, 2, 4, 8],
    is_gated=[False, True],
    has_bias=[False, True],
    is_activated=[False, True],
)
def test_convolution_equals_reference(
    dtype: torch.dtype, channels: int, width: int, *, is_gated: bool, has_bias: bool, is_activated: bool
) -> None:
    op = convolution(channels, width, dtype, is_gated=is_gated, has_bias=has_bias, is_activated=is_activated)
    assert_equals_reference(op)


@parametrize_pairwise(dtype=DTYPES, heads=[(1, 1), (2, 2), (1, 3)], dims=[(16, 1), (16, 8), (48, 20), (96, 12)])
def test_delta_rule_equals_reference(dtype: torch.dtype, heads: tuple[int, int], dims: tuple[int, int]) -> None:
    assert_equals_reference(delta_rule(*heads, *dims, dtype))


def test_delta_rule_takes_key_heads_of_256() -> None:
    assert_equals_reference(delta_rule(1, 1, 256, 8, torch.float16))


def test_constant_of_the_norm_is_that_of_the_reference() -> None:
    assert NORM_EPS == NORM_EPS_OF_REFERENCE


@each_op
def test_one_step_has_the_bits_of_several(op: str, dtype: torch.dtype) -> None:
    made = SMALL_OPS[op](dtype=dtype)
    inputs, company = made.draw_inputs(9), made.draw_inputs(2)
    whole, parts = made.draw_states([0]), made.draw_states([1])
    whole_out = made.run(inputs, whole, state_rows([9], [-1], [2]))
    part_outs, start = [], 0
    for length, read, write in ((1, -1, 2), (1, 2, 3), (4, 3, 4), (0, 4, 5), (3, 5, 2)):
        step = [torch.cat([other, own[start : start + length]]) for own, other in zip(inputs, company, strict=True)]
        part_outs.append(made.run(step, parts, state_rows([2, length], [1, read], [-1, write]))[2:])
        start += length
    assert torch.equal(torch.cat(part_outs), whole_out)
    assert torch.equal(parts[2], whole[2])


@each_op
def test_padded_sequences_do_nothing(op: str, dtype: torch.dtype) -> None:
    made = SMALL_OPS[op](dtype=dtype)
    inputs, state = made.draw_inputs(3), made.draw_states([1])
    alone = state.clone()
    expected = made.run([each[:1] for each in inputs], alone, state_rows([1], [1], [2]))
    for each in inputs:
        each[1:] = torch.nan
    actual = made.run(inputs, state, state_rows([1, 0, 0], [1, -1, -1], [2, -1, -1]))
    assert torch.equal(actual[:1], expected)
    torch.testing.assert_close(state, alone, rtol=0.0, atol=0.0, equal_nan=True)


@each_op
def test_a_step_without_sequences_does_nothing(op: str, dtype: torch.dtype) -> None:
    made = SMALL_OPS[op](dtype=dtype)
    state = made.draw_states([])
    assert len(made.run(made.draw_inputs(0), state, state_rows([], [], []))) == 0
    assert state.isnan().all()


def test_convolution_finds_the_rows_of_many_sequences() -> None:
    lengths = [index % 3 for index in range(300)]
    made = convolution(3, 3, torch.float32, is_gated=False)
    inputs, state = made.draw_inputs(sum(lengths)), torch.full((300, *made.slot), torch.nan)
    rows = state_rows(lengths, [-1] * 300, [*range(300)])
    expected, states = made.reference(*inputs, state, rows, *made.weights, **made.constants)
    assert_within_roundings(made.run(inputs, state, rows), expected)
    assert torch.equal(state, states)


@pytest.mark.parametrize("a", [-30.0, -15.0, -5.0, -0.1, 0.0, 0.7, 6.0, 19.0, 25.0])
def test_decay_is_exact_where_little_or_much_is_forgotten(a: float) -> None:
    # A rate that makes the exponent about -1; keys of zeros leave the decay alone.
    softplus = float(functional.softplus(torch.tensor(a, dtype=torch.float64)))
    a_log = -torch.tensor(softplus).log()
    state = torch.ones(2, 1, 16, 1)
    gated_delta_rule_triton(
        torch.zeros(1, 33),
        torch.full((1, 1), a),
        torch.zeros(1, 1),
        state,
        state_rows([1], [0], [1]),
        a_log=a_log.view(1),
        dt_bias=torch.zeros(1),
        key_heads=1,
    )
    expected = torch.exp(-a_log.double().exp() * softplus).float()
    torch.testing.assert_close(state[1], expected.expand(1, 16, 1), rtol=1e-6, atol=0.0)


@parametrize_pairwise(dtype=DTYPES, rows=[0, 1, 7], heads=[1, 3], head_dim=[1, 48, 128], eps=[1e-6, 1e-3])
def test_gated_norm_equals_reference(dtype: torch.dtype, rows: int, heads: int, head_dim: int, eps: float) -> None:
    x = torch.randn(rows, heads, head_dim + 2).to(dtype)[..., 1:-1]
    gate = torch.randn(rows, heads * head_dim + 5).to(dtype)[:, 2:-3]
    weight = torch.randn(head_dim).to(dtype)
    actual = gated_rms_norm_triton(x, gate, weight, eps)
    assert_within_roundings(actual, reference.gated_rms_norm_reference(x, gate, weight, eps))


@parametrize_pairwise(
    dtype=DTYPES, rows=[0, 1, 5], width=[1, 48, 1500], is_shared=[False, True], has_addend=[False, True]
)
def test_sigmoid_gate_equals_reference(
    dtype: torch.dtype, rows: int, width: int, *, is_shared: bool, has_addend: bool
) -> None:
    x, gate, addend = (torch.randn(rows, width + 3).to(dtype)[:, 2:-1] for _ in range(3))
    gate = gate[:, :1] if is_shared else gate
    options = {"addend": addend if has_addend else None}
    actual = sigmoid_gate_triton(x, gate, **options)
    assert_within_roundings(actual, reference.sigmoid_gate_reference(x, gate, **options))


@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("name", ["convolution", "gated convolution", "small delta rule", "small scan"])
def test_rows_of_one_sequence_may_be_given_as_several(name: str, sequences: tuple[tuple[int, int, int], ...]) -> None:
    assert_as_in_turn(name, sequences, torch.float32)

"""Ops with states, on every path: values, slots, and bits that depend on a sequence's own tokens alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

import infer_kernels
from infer_kernels import StateRows, reference
from infer_kernels.checks.cases.mamba2 import scan_call
from infer_kernels.checks.closeness import assert_within_roundings
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED
from infer_proofs.kernels.states_in_turn import SEQUENCES, STATE_OPS, WITHOUT_ROWS, assert_as_in_turn
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("every_path")

LONG = 5 if INTERPRETED else 19
KINDS = (
    [3, 0, 1, 1, LONG, 0, 2, 1, 1, 2, 0],
    [-1, 0, 1, -1, 2, -1, 3, 4, 11, 12, 13],
    [5, 6, 7, 8, 9, 10, -1, -1, 11, 12, 13],
)
"""Rows, slots that are read and slots that are written: every kind of sequence, the last three in place."""
TOKENS, NUM_SLOTS = sum(KINDS[0]), 15
NUM_PADDING = 2
"""Rows that belong to no sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOp:
    """An op with states, and what its steps share.

    Attributes:
        name: name of the op.
        widths: columns of each input.
        slot: shape of a sequence's state.
        dtype: dtype of inputs.
        state_dtype: dtype of states.
        weights: further arguments.
        options: further arguments by name.
    """

    name: str
    widths: tuple[int, ...]
    slot: tuple[int, ...]
    dtype: torch.dtype
    state_dtype: torch.dtype = torch.float32
    weights: tuple[Tensor, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def draw_inputs(self, tokens: int, *, is_strided: bool = True) -> list[Tensor]:
        """Return inputs whose rows lie apart, or one after the other."""
        inputs = [torch.randn(tokens, width + 3).to(self.dtype)[:, 1 : 1 + width] for width in self.widths]
        return inputs if is_strided else [each.contiguous() for each in inputs]

    def draw_states(self, read: Iterable[int], *, is_strided: bool = True) -> Tensor:
        """Return states that lie apart, or not; those that are not read are NaN."""
        states = torch.full((NUM_SLOTS, 2, *self.slot), torch.nan, dtype=self.state_dtype)[:, 1]
        for slot in set(read) - {-1}:
            states[slot] = torch.randn(self.slot)
        return states if is_strided else states.contiguous()

    def run(self, inputs: Iterable[Tensor], state: Tensor, rows: StateRows) -> Tensor:
        """Compute a step, and write `state`."""
        result: Tensor = getattr(infer_kernels, self.name)(*inputs, state, rows, *self.weights, **self.options)
        return result

    def expect(self, inputs: Iterable[Tensor], state: Tensor, rows: StateRows) -> tuple[Tensor, Tensor]:
        """Return the results of the reference, and the states after them."""
        op: Callable[..., tuple[Tensor, Tensor]] = getattr(reference, f"{self.name}_reference")
        return op(*inputs, state, rows, *self.weights, **self.options)


def convolution(
    channels: int, width: int, dtype: torch.dtype, *, is_gated: bool, has_bias: bool = True, is_activated: bool = True
) -> StateOp:
    options: dict[str, Any] = {"bias": torch.randn(channels).to(dtype) if has_bias else None}
    if not is_gated:
        options["activation"] = "silu" if is_activated else None
    return StateOp(
        name="gated_convolution" if is_gated else "causal_convolution",
        widths=(3 * channels if is_gated else channels,),
        slot=(width - 1, channels),
        dtype=dtype,
        state_dtype=dtype,
        weights=(torch.randn(channels, width).to(dtype),),
        options=options,
    )


def delta_rule(heads: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype) -> StateOp:
    (key_heads, value_heads), (key_dim, value_dim) = heads, dims
    a_log, dt_bias = torch.randn(2, value_heads)
    return StateOp(
        name="gated_delta_rule",
        widths=(2 * key_heads * key_dim + value_heads * value_dim, value_heads, value_heads),
        slot=(value_heads, key_dim, value_dim),
        dtype=dtype,
        options={"a_log": a_log, "dt_bias": dt_bias, "key_heads": key_heads},
    )


def scan(heads: int, head_dim: int, groups: int, state_size: int, dtype: torch.dtype) -> StateOp:
    return StateOp(
        name="mamba2_scan",
        widths=(heads * head_dim + 2 * groups * state_size, heads),
        slot=(heads, head_dim, state_size),
        dtype=dtype,
        options={name: torch.randn(heads) for name in ("a_log", "d", "dt_bias")}
        | {"num_groups": groups, "time_step_limit": (0.01, 2.0)},
    )


def rows_of(lens: Sequence[int], read: Sequence[int], write: Sequence[int]) -> StateRows:
    starts, reads, writes = (torch.tensor(each, dtype=torch.int32) for each in ([0, *accumulate(lens)], read, write))
    return StateRows(query_start=starts, read=reads, write=writes)


OPS: dict[str, Callable[..., StateOp]] = {
    "convolution": partial(convolution, 37, 4, is_gated=False),
    "gated convolution": partial(convolution, 5 if INTERPRETED else 600, 3, is_gated=True),
    "delta rule": partial(delta_rule, (1, 2), (32, 12)),
    "scan": partial(scan, 4, 20, 2, 24),
}
if not INTERPRETED:
    OPS |= {
        "wide convolution": partial(convolution, 600, 4, is_gated=False),
        "delta rule, large": partial(delta_rule, (2, 4), (128, 128)),
        "delta rule, odd": partial(delta_rule, (2, 4), (20, 37)),
    }
GROUPS_OF_HEADS = [(1, 1), (2, 4), (3, 3), (1, 16)]
"""Key heads and value heads."""
DIMS = [(16, 16), (64, 64), (128, 128), (20, 37), (48, 100), (520, 8)]
"""Elements of keys and values."""
if INTERPRETED:
    GROUPS_OF_HEADS, DIMS = [(1, 1), (2, 2), (1, 3)], [(16, 1), (16, 8), (48, 20), (96, 12)]
CUTS = {"rows": [1] * 9, "two": [5, 4], "several": [2, 0, 3, 1, 3], "last": [8, 1]}
if not INTERPRETED:
    CUTS |= {"rows": [1] * 37, "two": [16, 21], "several": [5, 0, 17, 1, 14], "last": [36, 1]}


def assert_equals_reference(op: StateOp, *, is_strided: bool = True) -> None:
    """Compare a step of every kind of sequence; what is not to be read is NaN, and other slots stay what they are."""
    rows = rows_of(*KINDS)
    inputs = op.draw_inputs(TOKENS + NUM_PADDING, is_strided=is_strided)
    state = op.draw_states(KINDS[1], is_strided=is_strided)
    for each in inputs:
        each[TOKENS:] = torch.nan
    before = state.clone()
    expected, states = op.expect(inputs, state, rows)
    actual = op.run(inputs, state, rows)
    assert (actual.dtype, actual.shape) == (op.dtype, expected.shape)
    # In fp32 sums of a scan's states show the order in which they are added.
    roundings = 16 if op.name == "mamba2_scan" and op.dtype == torch.float32 else 4
    assert_within_roundings(actual[:TOKENS], expected[:TOKENS], roundings)
    torch.testing.assert_close(state, states, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert state[5:14].isfinite().all()
    others = [*range(5), 14]
    torch.testing.assert_close(state[others], before[others], rtol=0.0, atol=0.0, equal_nan=True)


@parametrize_pairwise(
    dtype=DTYPES,
    channels=[1, 130] if INTERPRETED else [1, 16, 37, 300, 1024],
    width=[1, 2, 4, 8] if INTERPRETED else [1, 2, 3, 4, 17],
    is_gated=[False, True],
    has_bias=[False, True],
    is_activated=[False, True],
    is_strided=[False, True],
)
def test_convolutions_equal_their_references(
    dtype: torch.dtype,
    channels: int,
    width: int,
    *,
    is_gated: bool,
    has_bias: bool,
    is_activated: bool,
    is_strided: bool,
) -> None:
    op = convolution(channels, width, dtype, is_gated=is_gated, has_bias=has_bias, is_activated=is_activated)
    assert_equals_reference(op, is_strided=is_strided)


@parametrize_pairwise(dtype=DTYPES, heads=GROUPS_OF_HEADS, dims=DIMS, is_strided=[False, True])
def test_the_delta_rule_equals_its_reference(
    dtype: torch.dtype, heads: tuple[int, int], dims: tuple[int, int], *, is_strided: bool
) -> None:
    assert_equals_reference(delta_rule(heads, dims, dtype), is_strided=is_strided)


@pytest.mark.parametrize("name", ["delta rule", "scan"])
def test_matrices_kept_in_bf16_are_rounded_once_after_a_step(name: str) -> None:
    op, rows = replace(OPS[name](dtype=torch.bfloat16), state_dtype=torch.bfloat16), rows_of(*KINDS)
    inputs, state = op.draw_inputs(TOKENS), op.draw_states(KINDS[1])
    exact = state.float()
    expected, states = op.expect(inputs, exact, rows)
    assert_within_roundings(op.run(inputs, state, rows), expected, 4)
    torch.testing.assert_close(state[5:14].float(), states[5:14], rtol=2**-7, atol=2**-12)
    assert not torch.equal(state[5:14].float(), states[5:14])


def test_the_delta_rule_takes_key_heads_of_256() -> None:
    assert_equals_reference(delta_rule((1, 1), (256, 8), torch.float16))


@parametrize_pairwise(dtype=DTYPES, sizes=[(1, 1, 1, 1), (4, 20, 2, 24), (2, 37, 1, 130)], is_strided=[False, True])
def test_the_scan_equals_its_reference(
    dtype: torch.dtype, sizes: tuple[int, int, int, int], *, is_strided: bool
) -> None:
    assert_equals_reference(scan(*sizes, dtype), is_strided=is_strided)


def test_heads_of_a_scan_in_several_programs_equal_the_reference() -> None:
    scan_call((1, 6), (2, 64, 1, 128), torch.float32).compare(torch.device("cpu"))


@parametrize_pairwise(op=[*OPS], dtype=DTYPES, cut=[*CUTS], threads=[1] if INTERPRETED else [1, 2])
def test_a_sequence_has_the_same_bits_in_any_steps(op: str, dtype: torch.dtype, cut: str, threads: int) -> None:
    made, lens = OPS[op](dtype=dtype), CUTS[cut]
    inputs, company = made.draw_inputs(sum(lens)), made.draw_inputs(2)
    whole, parts = made.draw_states([0]), made.draw_states([0, 1])
    parts[0] = whole[0]
    whole_out = made.run(inputs, whole, rows_of([sum(lens)], [0], [2]))
    part_outs, start, slot = [], 0, 0
    with torch_threads(threads):
        for length in lens:
            step = [torch.cat([other, own[start : start + length]]) for own, other in zip(inputs, company, strict=True)]
            rows = rows_of([2, length], [1, slot], [-1, 3 - slot if slot else 2])
            part_outs.append(made.run(step, parts, rows)[2:])
            start, slot = start + length, 3 - slot if slot else 2
    assert torch.equal(torch.cat(part_outs), whole_out)
    assert torch.equal(parts[slot], whole[2])


@parametrize_pairwise(op=[*OPS], dtype=DTYPES, threads=[1] if INTERPRETED else [1, 2])
def test_a_sequence_has_the_same_bits_alone_and_beside_others(op: str, dtype: torch.dtype, threads: int) -> None:
    made, (lens, read, write) = OPS[op](dtype=dtype), KINDS
    inputs, together = made.draw_inputs(TOKENS), made.draw_states(read)
    before = together.clone()
    with torch_threads(threads):
        out = made.run(inputs, together, rows_of(*KINDS))
    for index, (length, end) in enumerate(zip(lens, accumulate(lens), strict=True)):
        alone, own = before.clone(), slice(end - length, end)
        part = made.run([each[own] for each in inputs], alone, rows_of([length], [read[index]], [write[index]]))
        assert torch.equal(part, out[own])
        if write[index] >= 0:
            assert torch.equal(alone[write[index]], together[write[index]])


@pytest.mark.parametrize("op", OPS)
def test_padded_sequences_do_nothing(op: str) -> None:
    made = OPS[op](dtype=torch.bfloat16)
    inputs, state = made.draw_inputs(3), made.draw_states([1])
    alone = state.clone()
    expected = made.run([each[:1] for each in inputs], alone, rows_of([1], [1], [2]))
    for each in inputs:
        each[1:] = torch.nan
    actual = made.run(inputs, state, rows_of([1, 0, 0], [1, -1, -1], [2, -1, -1]))
    assert torch.equal(actual[:1], expected)
    torch.testing.assert_close(state, alone, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("op", OPS)
def test_a_step_without_sequences_does_nothing(op: str) -> None:
    made = OPS[op](dtype=torch.float16)
    state = made.draw_states([])
    assert len(made.run(made.draw_inputs(0), state, rows_of([], [], []))) == 0
    assert state.isnan().all()


IN_TURN = [*SEQUENCES] if INTERPRETED else [*SEQUENCES, "without rows"]
"""Kernels on a GPU compute no sequences that go on without rows."""
OPS_IN_TURN = [name for name in STATE_OPS if name in ("convolution", "gated convolution") or name.startswith("small")]


@parametrize_pairwise(
    name=OPS_IN_TURN if INTERPRETED else [*STATE_OPS],
    sequences=IN_TURN,
    dtype=[torch.float32] if INTERPRETED else DTYPES,
    threads=[1] if INTERPRETED else [1, 2],
)
def test_rows_of_one_sequence_may_be_given_as_several(
    name: str, sequences: str, dtype: torch.dtype, threads: int
) -> None:
    # As drafts are: each leaves the state behind it.
    with torch_threads(threads):
        assert_as_in_turn(name, (SEQUENCES | {"without rows": WITHOUT_ROWS})[sequences], dtype)


@pytest.mark.usefixtures("cpu_only")
@parametrize_each_value(op=["convolution", "gated convolution", "delta rule", "scan"])
def test_gradients_equal_those_of_the_reference(op: str) -> None:
    made, rows = OPS[op](dtype=torch.float32), rows_of(*KINDS)
    inputs, state = made.draw_inputs(TOKENS), made.draw_states(range(NUM_SLOTS))
    given = (*inputs, *made.weights, *(each for each in made.options.values() if isinstance(each, Tensor)))
    leaves = [each.requires_grad_() for each in given]
    expected = made.expect(inputs, state, rows)[0]
    loss_weights = torch.randn(expected.shape)
    gradients = torch.autograd.grad((expected * loss_weights).sum(), leaves)
    actual = torch.autograd.grad((made.run(inputs, state, rows) * loss_weights).sum(), leaves)
    torch.testing.assert_close(actual, gradients)
    assert all(each.any() for each in actual)
    assert not state.requires_grad

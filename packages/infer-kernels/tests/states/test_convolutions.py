"""Causal convolutions on both paths of a CPU: values, slots, and bits that depend on a sequence's own tokens alone."""

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels import StateRows, causal_convolution, gated_convolution
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import causal_convolution_reference, gated_convolution_reference
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("cpu_path")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ([3, 0, 1, 1, 19, 0, 2, 1], [-1, 0, 1, -1, 2, -1, 3, 4], [5, 6, 7, 8, 9, 10, -1, -1])
"""Rows, slots that are read and slots that are written: every kind of sequence."""
TOKENS, NUM_SLOTS = sum(KINDS[0]), 12


def rows_of(counts: list[int], read: list[int], write: list[int]) -> StateRows:
    query_start, reads, writes = (
        torch.tensor(each, dtype=torch.int32)
        for each in ([sum(counts[:index]) for index in range(len(counts) + 1)], read, write)
    )
    return StateRows(query_start=query_start, read=reads, write=writes)


class Layer:
    """A convolution of one of both kinds."""

    def __init__(self, channels: int, width: int, dtype: torch.dtype, *, is_gated: bool, has_bias: bool = True) -> None:
        self.weight, bias = torch.randn(channels, width).to(dtype), torch.randn(channels).to(dtype)
        self.bias = bias if has_bias else None
        self.columns, self.dtype, self.is_gated = 3 * channels if is_gated else channels, dtype, is_gated

    def some_rows(self, *, is_strided: bool = False) -> Tensor:
        x = torch.randn(TOKENS, self.columns + 5).to(self.dtype)[:, 3:-2]
        return x if is_strided else x.contiguous()

    def some_state(self, *, is_strided: bool = False) -> Tensor:
        channels, width = self.weight.shape
        state = torch.randn(NUM_SLOTS, width + 1, channels + 3).to(self.dtype)[:, 1:-1, 1:-2]
        return state if is_strided else state.contiguous()

    def compute(
        self, x: Tensor, state: Tensor, rows: StateRows, *, activation: Literal["silu"] | None = None
    ) -> Tensor:
        if self.is_gated:
            return gated_convolution(x, state, rows, self.weight, bias=self.bias)
        return causal_convolution(x, state, rows, self.weight, bias=self.bias, activation=activation)

    def expect(
        self, x: Tensor, state: Tensor, rows: StateRows, *, activation: Literal["silu"] | None = None
    ) -> tuple[Tensor, Tensor]:
        if self.is_gated:
            return gated_convolution_reference(x, state, rows, self.weight, bias=self.bias)
        return causal_convolution_reference(x, state, rows, self.weight, bias=self.bias, activation=activation)


@parametrize_pairwise(
    dtype=DTYPES,
    channels=[1, 16, 37, 300, 1024],
    width=[1, 2, 3, 4, 17],
    is_gated=[False, True],
    activation=["silu", None],
    has_bias=[False, True],
    is_strided=[False, True],
)
def test_every_kind_of_sequence_equals_the_reference(
    channels: int,
    width: int,
    dtype: torch.dtype,
    activation: Literal["silu"] | None,
    *,
    is_gated: bool,
    has_bias: bool,
    is_strided: bool,
) -> None:
    layer, rows = Layer(channels, width, dtype, is_gated=is_gated, has_bias=has_bias), rows_of(*KINDS)
    x, state = layer.some_rows(is_strided=is_strided), layer.some_state(is_strided=is_strided)
    expected, expected_state = layer.expect(x, state, rows, activation=activation)
    assert_within_roundings(layer.compute(x, state, rows, activation=activation), expected)
    assert torch.equal(state, expected_state)


def test_a_whole_sequence_is_a_convolution_of_pytorch() -> None:
    layer = Layer(24, 4, torch.float32, is_gated=False)
    x, state = layer.some_rows(), layer.some_state()
    out = layer.compute(x, state, rows_of([TOKENS], [-1], [0]))
    padded = functional.pad(x.T, (3, 0))[None]
    expected = functional.conv1d(padded, layer.weight[:, None], layer.bias, groups=24)[0].T
    assert_within_roundings(out, expected)
    assert torch.equal(state[0], x[-3:])


@pytest.mark.parametrize("is_gated", [False, True])
def test_only_slots_of_the_step_are_read_and_written(*, is_gated: bool) -> None:
    layer = Layer(40, 4, torch.float32, is_gated=is_gated)
    x, state = layer.some_rows(), layer.some_state()
    state[5:] = torch.nan  # nothing reads what is written or nobody's
    before = state.clone()
    assert layer.compute(x, state, rows_of(*KINDS)).isfinite().all()
    assert torch.equal(state[:5], before[:5])
    assert state[5:11].isfinite().all()
    assert state[11].isnan().all()


@parametrize_pairwise(
    threads=[1, 2],
    steps=[[1] * TOKENS, [16, 11], [2, 0, 17, 1, 7], [26, 1]],
    dtype=DTYPES,
    channels=[37, 600],
    width=[3, 4],
    is_gated=[False, True],
)
def test_a_sequence_has_the_same_bits_in_any_steps(
    steps: list[int], dtype: torch.dtype, channels: int, width: int, threads: int, *, is_gated: bool
) -> None:
    layer = Layer(channels, width, dtype, is_gated=is_gated)
    x, whole_state = layer.some_rows(), layer.some_state()
    state = whole_state.clone()
    with torch_threads(1):
        whole = layer.compute(x, whole_state, rows_of([TOKENS], [0], [1]), activation="silu")
    slot, first, parts = 0, 0, []
    with torch_threads(threads):
        for count in steps:
            rows = rows_of([count], [slot], [3 - slot if slot else 1])
            parts.append(layer.compute(x[first : first + count], state, rows, activation="silu"))
            slot, first = (3 - slot if slot else 1), first + count
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(state[slot], whole_state[1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_sequence_has_the_same_bits_alone_and_beside_others(threads: int, *, is_gated: bool) -> None:
    layer, (counts, read, write) = Layer(600, 4, torch.bfloat16, is_gated=is_gated), KINDS
    x, together = layer.some_rows(), layer.some_state()
    before = together.clone()
    with torch_threads(threads):
        out = layer.compute(x, together, rows_of(*KINDS), activation="silu")
    for index, count in enumerate(counts):
        alone, own = before.clone(), slice(sum(counts[:index]), sum(counts[: index + 1]))
        with torch_threads(1):
            part = layer.compute(x[own], alone, rows_of([count], [read[index]], [write[index]]), activation="silu")
        assert torch.equal(part, out[own])
        if write[index] >= 0:
            assert torch.equal(alone[write[index]], together[write[index]])


@pytest.mark.parametrize("is_gated", [False, True])
def test_gradients_equal_those_of_the_reference(*, is_gated: bool) -> None:
    layer = Layer(5, 3, torch.float32, is_gated=is_gated)
    assert layer.bias is not None
    x, state, rows = layer.some_rows(), layer.some_state(), rows_of(*KINDS)
    leaves = [each.requires_grad_() for each in (x, layer.weight, layer.bias)]
    loss_weights = torch.randn(TOKENS, 5)
    expected = torch.autograd.grad((layer.expect(x, state, rows)[0] * loss_weights).sum(), leaves)
    actual = torch.autograd.grad((layer.compute(x, state, rows) * loss_weights).sum(), leaves)
    torch.testing.assert_close(actual, expected)
    assert all(each.any() for each in actual)
    assert not state.requires_grad

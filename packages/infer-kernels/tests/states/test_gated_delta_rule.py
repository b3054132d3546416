"""The gated delta rule on both paths of a CPU: values, slots, and bits that depend on a sequence's own tokens alone."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from infer_kernels import StateRows, gated_delta_rule
from infer_kernels.reference import gated_delta_rule_reference
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("cpu_path")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ([3, 0, 1, 1, 19, 0, 2, 1], [-1, 0, 1, -1, 2, -1, 3, 4], [5, 6, 7, 8, 9, 10, -1, -1])
"""Rows, slots that are read and slots that are written: every kind of sequence."""
NUM_SLOTS = 12


def rows_of(counts: list[int], read: list[int], write: list[int]) -> StateRows:
    query_start, reads, writes = (
        torch.tensor(each, dtype=torch.int32)
        for each in ([sum(counts[:index]) for index in range(len(counts) + 1)], read, write)
    )
    return StateRows(query_start=query_start, read=reads, write=writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The inputs of some rows, and the numbers of a layer."""

    qkv: Tensor
    a: Tensor
    b: Tensor
    a_log: Tensor
    dt_bias: Tensor
    key_heads: int

    def compute(self, state: Tensor, rows: StateRows, *, first: int = 0, end: int | None = None) -> Tensor:
        part = slice(first, end)
        return gated_delta_rule(
            self.qkv[part],
            self.a[part],
            self.b[part],
            state,
            rows,
            a_log=self.a_log,
            dt_bias=self.dt_bias,
            key_heads=self.key_heads,
        )

    def expect(self, state: Tensor, rows: StateRows) -> tuple[Tensor, Tensor]:
        numbers = {"a_log": self.a_log, "dt_bias": self.dt_bias, "key_heads": self.key_heads}
        return gated_delta_rule_reference(self.qkv, self.a, self.b, state, rows, **numbers)  # type: ignore[arg-type]


def some_layer(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype, *, is_strided: bool = False
) -> Layer:
    (key_heads, value_heads), (key_dim, value_dim) = heads, dims
    width = 2 * key_heads * key_dim + value_heads * value_dim
    packed = torch.randn(tokens, width + 2 * value_heads + 3).to(dtype)
    parts = torch.split(packed, [3, width, value_heads, value_heads], dim=1)
    _, qkv, a, b = parts if is_strided else tuple(part.contiguous() for part in parts)
    a_log, dt_bias = torch.randn(2, value_heads)
    return Layer(qkv=qkv, a=a, b=b, a_log=a_log, dt_bias=dt_bias, key_heads=key_heads)


def some_state(heads: tuple[int, int], dims: tuple[int, int], *, is_strided: bool = False) -> Tensor:
    state = torch.randn(NUM_SLOTS, heads[1], dims[0], dims[1] + 3)
    return state[..., 1:-2] if is_strided else state[..., 3:].contiguous()


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=max(1e-5, 2 * torch.finfo(expected.dtype).eps), atol=1e-5)


@parametrize_pairwise(
    dtype=DTYPES,
    heads=[(1, 1), (2, 4), (3, 3), (1, 16)],
    dims=[(16, 16), (64, 64), (128, 128), (20, 37), (48, 100), (520, 8)],
    is_strided=[False, True],
)
def test_every_kind_of_sequence_equals_the_reference(
    dtype: torch.dtype, heads: tuple[int, int], dims: tuple[int, int], *, is_strided: bool
) -> None:
    layer, rows = some_layer(sum(KINDS[0]), heads, dims, dtype, is_strided=is_strided), rows_of(*KINDS)
    state = some_state(heads, dims, is_strided=is_strided)
    expected, expected_state = layer.expect(state, rows)
    assert_close(layer.compute(state, rows), expected)
    assert_close(state, expected_state)


def test_only_slots_of_the_step_are_read_and_written() -> None:
    heads, dims = (2, 2), (32, 32)
    layer, rows, state = some_layer(sum(KINDS[0]), heads, dims, torch.float32), rows_of(*KINDS), some_state(heads, dims)
    state[5:] = torch.nan  # nothing reads what is written or nobody's
    before = state.clone()
    out = layer.compute(state, rows)
    assert out.isfinite().all()
    assert torch.equal(state[:5], before[:5])
    assert state[5:11].isfinite().all()
    assert state[11].isnan().all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("steps", [[1] * 37, [16, 21], [5, 0, 17, 1, 14], [36, 1]], ids=str)
@pytest.mark.parametrize("dims", [(16, 16), (128, 128), (20, 37)])
def test_a_sequence_has_the_same_bits_in_any_steps(steps: list[int], dims: tuple[int, int], threads: int) -> None:
    heads = (2, 4)
    layer, whole_state = some_layer(37, heads, dims, torch.bfloat16), some_state(heads, dims)
    state = whole_state.clone()
    with torch_threads(1):
        whole = layer.compute(whole_state, rows_of([37], [0], [1]))
    slot, first, parts = 0, 0, []
    with torch_threads(threads):
        for count in steps:
            end = first + count
            parts.append(
                layer.compute(state, rows_of([count], [slot], [3 - slot if slot else 1]), first=first, end=end)
            )
            slot, first = (3 - slot if slot else 1), end
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(state[slot], whole_state[1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dims", [(16, 16), (128, 128), (20, 37)])
def test_a_sequence_has_the_same_bits_alone_and_beside_others(dims: tuple[int, int], threads: int) -> None:
    heads, (counts, read, write) = (2, 4), KINDS
    layer, together = some_layer(sum(counts), heads, dims, torch.bfloat16), some_state(heads, dims)
    before = together.clone()
    with torch_threads(threads):
        out = layer.compute(together, rows_of(counts, read, write))
    for index, count in enumerate(counts):
        alone, first = before.clone(), sum(counts[:index])
        rows = rows_of([count], [read[index]], [write[index]])
        with torch_threads(1):
            assert torch.equal(layer.compute(alone, rows, first=first, end=first + count), out[first : first + count])
        if write[index] >= 0:
            assert torch.equal(alone[write[index]], together[write[index]])


@pytest.mark.parametrize("gate", [-100.0, 100.0])
@pytest.mark.parametrize("a_log", [-20.0, 0.0, 12.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_numbers_stay_finite(dtype: torch.dtype, a_log: float, gate: float) -> None:
    heads, dims = (1, 2), (64, 32)
    layer, rows, state = some_layer(sum(KINDS[0]), heads, dims, dtype), rows_of(*KINDS), some_state(heads, dims)
    layer.qkv.mul_(100.0)
    layer.a.fill_(gate)
    layer.b.fill_(-gate)
    layer.a_log.fill_(a_log)
    expected, expected_state = layer.expect(state, rows)
    out = layer.compute(state, rows)
    assert out.isfinite().all()
    assert state.isfinite().all()
    torch.testing.assert_close(out, expected, rtol=max(1e-4, 2 * torch.finfo(dtype).eps), atol=1e-3)
    torch.testing.assert_close(state, expected_state, rtol=1e-4, atol=1e-3)


def test_queries_and_keys_of_zeros_read_and_write_nothing() -> None:
    layer, state = some_layer(4, (1, 1), (16, 16), torch.float32), torch.zeros(2, 1, 16, 16)
    layer.qkv[:, :32] = 0.0
    assert not layer.compute(state, rows_of([4], [-1], [0])).any()
    assert not state.any()


def test_a_step_without_sequences_changes_nothing() -> None:
    layer, state = some_layer(3, (1, 1), (16, 16), torch.float32), some_state((1, 1), (16, 16))
    before = state.clone()
    assert layer.compute(state, rows_of([], [], [])).shape == (3, 1, 16)
    assert torch.equal(state, before)


def test_gradients_equal_those_of_the_reference() -> None:
    heads, dims, counts = (1, 2), (8, 5), [3, 4]
    layer, state, rows = (
        some_layer(7, heads, dims, torch.float32),
        some_state(heads, dims),
        rows_of(counts, [-1, 0], [1, 2]),
    )
    leaves = [each.requires_grad_() for each in (layer.qkv, layer.a, layer.b, layer.a_log, layer.dt_bias)]
    loss_weights = torch.randn(7, 2, 5)
    expected = torch.autograd.grad((layer.expect(state, rows)[0] * loss_weights).sum(), leaves)
    actual = torch.autograd.grad((layer.compute(state, rows) * loss_weights).sum(), leaves)
    torch.testing.assert_close(actual, expected)
    assert all(each.any() for each in actual)
    assert not state.requires_grad

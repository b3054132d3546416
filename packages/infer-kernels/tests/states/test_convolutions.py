"""Facts of causal convolutions alone, on every path. `test_state_ops.py` has values, slots and bits."""

import pytest
import torch
from torch.nn import functional

from infer_kernels import StateRows, causal_convolution
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import causal_convolution_reference

pytestmark = pytest.mark.usefixtures("every_path")


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_a_whole_sequence_is_a_convolution_of_pytorch() -> None:
    x, state, weight, bias = torch.randn(27, 24), torch.randn(2, 3, 24), torch.randn(24, 4), torch.randn(24)
    rows = StateRows(query_start=ints(0, 27), read=ints(-1), write=ints(0))
    out = causal_convolution(x, state, rows, weight, bias=bias)
    padded = functional.pad(x.T, (3, 0))[None]
    assert_within_roundings(out, functional.conv1d(padded, weight[:, None], bias, groups=24)[0].T)
    assert torch.equal(state[0], x[-3:])


def test_rows_of_many_sequences_are_found() -> None:
    starts = torch.tensor([index % 3 for index in range(300)]).cumsum(0)
    rows = StateRows(query_start=ints(0, *starts), read=ints(*[-1] * 300), write=ints(*range(300)))
    x, state, weight = torch.randn(int(starts[-1]), 3), torch.full((300, 2, 3), torch.nan), torch.randn(3, 3)
    expected, states = causal_convolution_reference(x, state, rows, weight)
    assert_within_roundings(causal_convolution(x, state, rows, weight), expected)
    assert torch.equal(state, states)

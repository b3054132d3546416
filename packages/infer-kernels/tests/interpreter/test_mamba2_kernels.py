"""The kernels of Mamba 2, interpreted: blocks of rows, sequences without tokens, and steps of any length."""

import pytest
import torch

from infer_kernels.checks.cases.mamba2 import mamba2_calls, scan_call
from infer_kernels.states.mamba2_scan import mamba2_scan
from infer_kernels.states.state_rows import StateRows

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_results_are_close_to_the_references(dtype: torch.dtype) -> None:
    for call in mamba2_calls(dtype):
        call.compare(CPU)


def test_heads_of_several_programs_are_close_to_the_reference() -> None:
    scan_call((1, 6), (2, 64, 1, 128), torch.float32).compare(CPU)


def test_a_sequence_in_two_steps_has_the_bits_of_one_step() -> None:
    xbc, dt, pool, _, _, _, a_log, d, dt_bias = scan_call((5, 4), (4, 16, 2, 16), torch.float32).tensors

    def scan(first: int, end: int, read: int, write: int) -> torch.Tensor:
        starts, own, to = (torch.tensor(each, dtype=torch.int32) for each in ([0, end - first], [read], [write]))
        rows = StateRows(query_start=starts, read=own, write=to)
        return mamba2_scan(xbc[first:end], dt[first:end], pool, rows, a_log=a_log, d=d, dt_bias=dt_bias, num_groups=2)

    whole = scan(0, 9, 0, 1)
    parts = torch.cat([scan(0, 4, 0, 2), scan(4, 9, 2, 3)])
    assert torch.equal(parts, whole)
    assert torch.equal(pool[3], pool[1])

"""Mamba 2's ops in a captured step."""

from typing import Any

import torch
from torch import Tensor

from infer_kernels import StateRows, mamba2_scan, rms_norm_of_gated
from infer_kernels.cpu.calls import CapturedStep
from infer_kernels.reference import mamba2_scan_reference, rms_norm_of_gated_reference
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@needs_cpu_kernels
def test_a_replay_computes_as_many_sequences_as_it_is_told() -> None:
    heads, head_dim, groups, state_size = 6, 20, 2, 24
    xbc, dt = torch.randn(8, heads * head_dim + 2 * groups * state_size), torch.randn(8, heads)
    pool, weight = torch.randn(8, heads, head_dim, state_size), torch.randn(heads * head_dim)
    given: dict[str, Any] = {name: torch.randn(heads) for name in ("a_log", "d", "dt_bias")}
    given["num_groups"] = groups
    rows = StateRows(query_start=ints(0, 1, 2, 3, 4), read=ints(0, 1, 2, 3), write=ints(4, 5, 6, 7))
    gate = torch.randn(8, heads * head_dim)
    step = CapturedStep(8, 4)
    with step.recording():
        y = mamba2_scan(xbc, dt, pool, rows, **given)
        normalized = rms_norm_of_gated(y, gate, weight, 1e-5, num_groups=groups)
    before = pool.clone()
    rows.query_start.copy_(ints(0, 3, 8, 8, 8))
    step.replay(8, 2)
    first_two = StateRows(query_start=ints(0, 3, 8), read=ints(0, 1), write=ints(4, 5))
    expected, written = mamba2_scan_reference(xbc, dt, before, first_two, **given)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(pool, written, rtol=1e-4, atol=1e-4)
    expected = rms_norm_of_gated_reference(expected, gate, weight, 1e-5, num_groups=groups)
    torch.testing.assert_close(normalized, expected, rtol=1e-4, atol=1e-4)

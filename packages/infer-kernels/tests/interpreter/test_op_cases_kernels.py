"""Calls of each op at odd shapes over Triton's kernels, interpreted, against their references."""

import pytest
import torch

from infer_kernels.checks.cases.all_ops import ALL_OPS
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.self_check import misaligned

CPU = torch.device("cpu")
WITH_CALLS = [cases for cases in ALL_OPS if [*cases.calls(torch.float32)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cases", WITH_CALLS, ids=str)
def test_interpreted_calls_at_odd_shapes_agree_with_their_references(cases: OpCases, dtype: torch.dtype) -> None:
    for call in cases.calls(dtype):
        call.compare(CPU)
        if call.rows and dtype == torch.bfloat16:  # where rows lie does not depend on what they hold
            call.compare(CPU, place_rows=misaligned)

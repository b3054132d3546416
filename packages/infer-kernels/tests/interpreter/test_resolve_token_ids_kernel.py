"""The kernel that fills in token ids on the device, interpreted, against its reference."""

import pytest
import torch

from infer_kernels.reference import resolve_token_ids_reference
from infer_kernels.resolve_token_ids import resolve_token_ids


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (7, 3), (256, 256), (257, 5), (1031, 64)])
def test_ids_equal_reference(tokens: int, rows: int, dtype: torch.dtype) -> None:
    input_ids = torch.randint(-rows, 1000, (tokens,), dtype=torch.int32)
    input_ids[0] = -rows
    latest = torch.randint(200_000, (rows,), dtype=dtype)
    expected = resolve_token_ids_reference(input_ids, latest)
    resolve_token_ids(input_ids, latest)
    assert torch.equal(input_ids, expected)

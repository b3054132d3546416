"""Rows of one sequence that are given as several, as drafts are: each leaves the state behind it."""

import pytest
import torch

from infer_proofs.kernels.states_in_turn import SEQUENCES, STATE_OPS, WITHOUT_ROWS, assert_as_in_turn
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("cpu_path")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sequences", [*SEQUENCES.values(), WITHOUT_ROWS], ids=[*SEQUENCES, "without rows"])
@pytest.mark.parametrize("name", STATE_OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_as_in_turn(
    name: str, sequences: tuple[tuple[int, int, int], ...], dtype: torch.dtype, threads: int
) -> None:
    with torch_threads(threads):
        assert_as_in_turn(name, sequences, dtype)

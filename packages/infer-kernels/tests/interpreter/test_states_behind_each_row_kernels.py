"""Kernels of ops with states, interpreted, on rows of one sequence that are given as several, as drafts are."""

import pytest
import torch

from infer_kernels.checks.cases.states.in_turn import SEQUENCES, assert_as_in_turn


@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("name", ["convolution", "gated convolution", "small delta rule", "small scan"])
def test_it_is_as_in_turn(name: str, sequences: tuple[tuple[int, int, int], ...]) -> None:
    assert_as_in_turn(name, sequences, torch.float32)

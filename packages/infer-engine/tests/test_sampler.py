"""Requests' parameters reach the sampling call: each row is chosen by its own, in whatever batch it stands."""

from typing import Any

import pytest
import torch

from infer_engine.protocol import SamplingParams
from infer_engine.sampler import SampledRow, sample
from infer_kernels.sampling import sample_reference

VOCAB = 50


def logits(rows: int = 1, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def row(position: int = 0, *, seed: int = 3, **params: Any) -> SampledRow:
    return SampledRow(SamplingParams(**params), seed, position)


KINDS: list[dict[str, Any]] = [
    {},
    {"top_k": 7},
    {"top_p": 0.5},
    {"temperature": 0},
    {"min_p": 0.1, "top_p": 0.9},
    {"temperature": 3.0},
    {"top_k": 2**40, "min_p": 0.05},
]


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 9e-6}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}]
)
def test_parameters_that_leave_one_token_take_the_most_probable(params: dict[str, Any]) -> None:
    batch = logits(4)
    assert sample(batch, [row(**params)] * 4) == batch.argmax(-1).tolist()
    assert sample(batch, [row(**params)] * 3 + [row(9)])[:3] == batch[:3].argmax(-1).tolist()


def test_each_row_is_sampled_by_its_own_parameters_seed_and_position() -> None:
    batch = logits(7, seed=1)
    rows = [row(10 * i, seed=i - 3, **kind) for i, kind in enumerate(KINDS)]
    expected = sample_reference(
        batch,
        temperatures=torch.tensor([each.params.temperature for each in rows]),
        top_k=torch.tensor([0, 7, 0, 0, 0, 0, 0]),
        top_p=torch.tensor([each.params.top_p for each in rows]),
        min_p=torch.tensor([each.params.min_p for each in rows]),
        seeds=torch.tensor([each.seed for each in rows]),
        positions=torch.tensor([each.position for each in rows]),
    )
    assert sample(batch, rows) == expected.tolist()


def test_a_rows_choice_is_the_same_in_any_company() -> None:
    batch = logits(7, seed=1)
    rows = [row(i, seed=i, **kind) for i, kind in enumerate(KINDS)]
    together = sample(batch, rows)
    alone = [sample(batch[i : i + 1], [rows[i]])[0] for i in range(7)]
    reversed_ = sample(batch.flip(0), rows[::-1])[::-1]
    assert together == alone == reversed_


def test_a_seed_beyond_64_bits_counts_by_its_lower_ones() -> None:
    many = logits(1).expand(40, -1)
    beyond = sample(many, [row(i, seed=2**63 + 5) for i in range(40)])
    assert beyond == sample(many, [row(i, seed=5 - 2**63) for i in range(40)])
    assert beyond != sample(many, [row(i, seed=5) for i in range(40)])


def test_positions_and_seeds_draw_different_tokens() -> None:
    many = logits(1).expand(200, -1)
    assert len(set(sample(many, [row(i) for i in range(200)]))) > 10
    assert len(set(sample(many, [row(seed=i) for i in range(200)]))) > 10


def test_no_rows_are_no_tokens() -> None:
    assert sample(logits(0), []) == []

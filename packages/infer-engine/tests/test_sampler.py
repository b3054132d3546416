"""One row's choice depends on its logits, parameters, seed and position alone, and follows its distribution."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infer_engine.protocol import SamplingParams
from infer_engine.sampler import SampledRow, sample, uniform

VOCAB = 50


def logits(rows: int = 1, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def row(position: int = 0, *, seed: int = 3, **params: Any) -> SampledRow:
    return SampledRow(SamplingParams(**params), seed, position)


def test_temperature_zero_takes_the_most_probable_token() -> None:
    batch = logits(4)
    assert sample(batch, [row(temperature=0)] * 4) == batch.argmax(-1).tolist()


def test_top_k_of_one_takes_the_most_probable_token() -> None:
    batch = logits(4)
    assert sample(batch, [row(top_k=1)] * 4) == batch.argmax(-1).tolist()


def test_a_tiny_top_p_takes_the_most_probable_token() -> None:
    batch = logits(4)
    assert sample(batch, [row(top_p=1e-6)] * 4) == batch.argmax(-1).tolist()


def test_min_p_of_one_takes_the_most_probable_token() -> None:
    batch = logits(4)
    assert sample(batch, [row(min_p=1.0)] * 4) == batch.argmax(-1).tolist()


def test_a_tiny_temperature_does_not_overflow() -> None:
    batch = logits(1) * 1000
    assert sample(batch, [row(temperature=2e-5)]) == batch.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 5}, lambda p: p >= p.sort(descending=True).values[4]),
        ({"min_p": 0.2}, lambda p: p >= 0.2 * p.max()),
        ({"top_p": 0.7}, lambda p: p >= _smallest_kept(p, 0.7)),
    ],
)
def test_truncation_draws_all_of_the_kept_tokens_and_no_other(
    params: dict[str, Any], allowed: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    one = logits(1)
    drawn = set(sample(one.expand(4000, -1), [row(i, **params) for i in range(4000)]))
    kept = allowed(one[0].softmax(-1)).nonzero().flatten().tolist()
    assert drawn <= set(kept)
    likely = [i for i in kept if one[0].softmax(-1)[i] > 0.01]
    assert set(likely) <= drawn


def _smallest_kept(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    ordered = probs.sort(descending=True).values
    num_kept = int((ordered.cumsum(-1) < top_p).sum()) + 1
    return ordered[num_kept - 1]


def test_min_p_drops_before_top_p_takes_its_share() -> None:
    one = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    drawn = set(sample(one.expand(500, -1), [row(i, min_p=0.3, top_p=0.75) for i in range(500)]))
    # min-p drops 0.1; of what is left 0.4 and 0.3 have 78%. The other order would need 0.2 for the 75%.
    assert drawn == {0, 1}


@pytest.mark.parametrize("params", [{}, {"top_k": 49}, {"temperature": 1.7}])
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    one = logits(1)
    num_draws = 20_000
    drawn = torch.tensor(sample(one.expand(num_draws, -1), [row(i, **params) for i in range(num_draws)]))
    expected = (one[0] / params.get("temperature", 1.0)).softmax(-1)
    observed = drawn.bincount(minlength=VOCAB) / num_draws
    # Five standard deviations of each token's share, and what a dropped tail token would have had.
    assert torch.all((observed - expected).abs() <= 5 * (expected / num_draws).sqrt() + 1e-3)


def test_a_rows_choice_is_the_same_in_any_company() -> None:
    batch = logits(6, seed=1)
    kinds: list[dict[str, Any]] = [
        {},
        {"top_k": 7},
        {"top_p": 0.5},
        {"temperature": 0},
        {"min_p": 0.1, "top_p": 0.9},
        {"temperature": 3.0},
    ]
    rows = [row(i, seed=i, **kind) for i, kind in enumerate(kinds)]
    together = sample(batch, rows)
    alone = [sample(batch[i : i + 1], [rows[i]])[0] for i in range(6)]
    reversed_ = sample(batch.flip(0), rows[::-1])[::-1]
    assert together == alone == reversed_


def test_uniform_numbers_differ_by_seed_and_position_and_fill_the_unit_interval() -> None:
    numbers = [uniform(seed, position) for seed in range(40) for position in range(50)]
    assert len(set(numbers)) == 2000
    assert min(numbers) >= 0
    assert max(numbers) < 1
    assert abs(sum(numbers) / 2000 - 0.5) < 0.03


def test_consecutive_seeds_draw_independently() -> None:
    pairs = [(uniform(seed, 5), uniform(seed + 1, 5)) for seed in range(2000)]
    covariance = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / 2000
    assert abs(covariance) < 0.01

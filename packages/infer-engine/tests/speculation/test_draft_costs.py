"""What drafts cost on a CPU and on a GPU, and how many a step gets by that."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infer_engine.model_runner.loading import rank_loading
from infer_engine.protocol import SamplingParams
from infer_engine.speculation.acceptance_rate import AcceptanceRate
from infer_engine.speculation.draft_costs import ON_CPU, DraftCosts, costs_on_gpu
from infer_proofs.engine.formula import tokens_of
from infer_proofs.engine.models import ModelEngine, random_prompt

LLAMA_8B = replace(costs_on_gpu("suffix"), key=131_072 / 16e9)
"""128 KiB of keys and values for a token, beside 16 GB of weights."""


@pytest.mark.parametrize(
    ("costs", "num_tokens", "right", "most"),
    [
        (ON_CPU, 0, 0.4, 1),
        (ON_CPU, 0, 0.2, 0),
        (LLAMA_8B, 1000, 0.4, 3),
        (LLAMA_8B, 1000, 0.9, 16),
        (LLAMA_8B, 32_000, 0.4, 1),  # 4.2 GB of keys are read again for each
        (LLAMA_8B, 128_000, 0.9, 0),
    ],
)
def test_as_many_drafts_are_made_as_pay(costs: DraftCosts, num_tokens: int, right: float, most: int) -> None:
    assert AcceptanceRate(right).best_count(16, cost=costs.of_row(num_tokens)) == most


def test_many_sequences_get_drafts_on_a_gpu_unless_each_is_drafted_by_itself() -> None:
    by_text, by_layer = costs_on_gpu("ngram"), costs_on_gpu("mtp")
    assert [each.most_drafts(20) for each in (ON_CPU, by_layer, by_text)] == [0, 0, 2]
    assert [each.most_drafts(33) for each in (ON_CPU, by_layer, by_text)] == [0, 0, 0]
    assert [each.most_rows for each in (ON_CPU, by_layer, by_text)] == [16, 16, 64]


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_twenty_sequences_that_get_drafts_have_the_same_tokens(
    family: str, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(**config: Any) -> tuple[dict[str, list[int]], int]:
        engine = ModelEngine(folder_of(family), max_batch_size=20, block_size=16, **config)
        found: dict[str, list[int]] = {}
        for turn in range(2):  # the second time the answers are known
            for number in range(20):
                params = SamplingParams(temperature=0, ignore_eos=True)
                prompt = random_prompt(4, seed=number) * 4
                engine.submit(f"{turn} {number}", prompt, max_tokens=24, params=params)
            found |= {name: tokens_of(each) for name, each in engine.run().items()}
        return found, engine.core.stats.num_drafts

    expected, _ = answers(speculative_config="none")
    monkeypatch.setattr(rank_loading, "ON_CPU", costs_on_gpu("suffix"))
    found, num_drafts = answers()
    assert found == expected
    assert num_drafts > 20

"""Log-probabilities of prompts where steps fail, and where a model's output is not finite."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infer_engine.messages import TokenOutput
from infer_engine.protocol import SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import FormulaEngine, expected_prompt_logprobs, expected_tokens, tokens_of
from infer_proofs.engine.models import GREEDY, ModelEngine, random_prompt, save_servable

ASKS = SamplingParams(temperature=0, ignore_eos=True, prompt_logprobs=2)
POISON = 2  # no token of any `random_prompt`


def engine(*faults: Fault, **config: Any) -> FormulaEngine:
    return FormulaEngine(
        num_blocks=64,
        block_size=2,
        limits=SchedulerLimits(max_batch_size=4, max_num_batched_tokens=32, prefill_chunk_size=4, kv_reserve=0.0),
        faults=FaultPlan(list(faults)),
        **config,
    )


def prompt_of(name: str) -> list[int]:
    return [ord(name) + i for i in range(11)]


def serve(served: FormulaEngine) -> dict[str, list[TokenOutput]]:
    for name in "abc":
        served.submit(name, prompt_of(name), max_tokens=3, params=ASKS)
    return served.run()


@pytest.mark.parametrize("stage", ["forward", "sample", "schedule", "allocate"])
@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("caches", [False, True], ids=["not caching", "caching"])
def test_a_failure_that_passes_neither_loses_nor_repeats_any(stage: Any, step: int, *, caches: bool) -> None:
    outputs = serve(engine(Fault(stage=stage, step=step, times=1), use_prefix_caching=caches))
    for name in "abc":
        assert outputs[name][0].prompt_logprobs == expected_prompt_logprobs(prompt_of(name), 2)
        assert tokens_of(outputs[name]) == expected_tokens(prompt_of(name), 3)


def test_a_step_that_is_tried_in_parts_tells_the_neighbours_all() -> None:
    outputs = serve(engine(Fault(stage="forward", request_id="b", step=1)))
    assert [out.error.code for out in outputs["b"] if out.error] == ["step_failed"]
    for name in "ac":
        assert outputs[name][0].prompt_logprobs == expected_prompt_logprobs(prompt_of(name), 2)


def test_too_little_memory_for_all_is_enough_for_each() -> None:
    outputs = serve(engine(max_items=1))
    assert [out[0].prompt_logprobs for out in outputs.values()] == [
        expected_prompt_logprobs(prompt_of(name), 2) for name in outputs
    ]


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose output is not finite once it has read one certain token."""
    folder = tmp_path_factory.mktemp("poisoned")
    save_servable("llama", folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_prompt_whose_output_is_not_finite_fails_in_that_chunk_and_alone(poisoned: Path) -> None:
    engine = ModelEngine(poisoned, block_size=4, prefill_chunk_size=8)
    sound, bad = random_prompt(30), [*random_prompt(4), POISON, *random_prompt(25)]
    engine.submit("sound", sound, params=ASKS)
    engine.submit("bad", bad, params=ASKS)
    engine.submit("did not ask", sound, params=GREEDY)
    [failed] = engine.step().outputs
    assert failed.error is not None
    assert (failed.request_id, failed.error.code) == ("bad", "not_finite")
    outputs = engine.run()
    assert tokens_of(outputs["sound"]) == tokens_of(outputs["did not ask"])
    assert len(outputs["sound"][0].prompt_logprobs or ()) == 30


def test_a_prompt_that_ends_in_what_is_not_finite_fails_once(poisoned: Path) -> None:
    engine = ModelEngine(poisoned)
    engine.submit("bad", [*random_prompt(4), POISON, *random_prompt(4)], params=ASKS)
    [failed] = engine.run()["bad"]
    assert failed.error is not None
    assert failed.error.code == "not_finite"
    assert engine.core.stats.num_failed == 1

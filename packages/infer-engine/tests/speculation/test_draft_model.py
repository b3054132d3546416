"""Drafts by a smaller model: what it is asked for, and that no token changes whatever it says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infer_engine import LLM
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_proofs.engine.formula import tokens_of
from infer_proofs.engine.models import ModelEngine, Twin, random_prompt, save_servable

PROMPTS = {"a": random_prompt(9), "b": random_prompt(40), "c": random_prompt(21)}
ASKED = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "drawn": SamplingParams(temperature=0.8, top_p=0.9, logprobs=1, ignore_eos=True),
    "penalties": SamplingParams(temperature=0.5, repetition_penalty=1.3, frequency_penalty=0.5, ignore_eos=True),
}


def by(model: Path, **more: Any) -> str:
    return json.dumps({"method": "draft_model", "model": str(model), **more})


def cheap(served: ModelEngine) -> ModelEngine:
    """Return an engine whose drafts are said to cost little: a tiny twin that is right is as large as the model."""
    speculator = served.core._speculator  # noqa: SLF001 - as said
    assert speculator is not None
    speculator._draft_model_cost = 0.05  # noqa: SLF001 - as above
    return served


def said(served: ModelEngine, params: SamplingParams) -> dict[str, Any]:
    for seed, (name, prompt) in enumerate(PROMPTS.items()):
        served.submit(name, prompt, max_tokens=30 + seed, params=params, seed=seed)
    outputs = served.run()
    return {name: (tokens_of(each), [output.logprobs for output in each]) for name, each in outputs.items()}


@pytest.mark.covers("scheduling/no-draft-changes-a-token")
@pytest.mark.parametrize("asked", ASKED)
def test_a_model_that_says_the_same_is_right_and_another_one_changes_nothing(
    asked: str, twin_of: Callable[[str], Twin], tmp_path: Path
) -> None:
    folder = twin_of("llama").folder
    save_servable("qwen3", tmp_path)
    plain = said(ModelEngine(folder, speculative_config="none"), ASKED[asked])
    same, other = (cheap(ModelEngine(folder, speculative_config=by(model))) for model in (folder, tmp_path))
    assert said(same, ASKED[asked]) == plain
    assert said(other, ASKED[asked]) == plain
    stats = same.core.stats
    assert stats.num_accepted_tokens >= 0.9 * stats.num_draft_tokens > 20
    assert 0 < other.core.stats.num_draft_tokens < 40  # it is asked no more


@pytest.mark.parametrize("how", [{"tensor_parallel_size": 2}, {"use_async_scheduling": True}], ids=str)
def test_it_drafts_for_two_ranks_and_where_steps_are_scheduled_ahead(
    how: dict[str, Any], twin_of: Callable[[str], Twin]
) -> None:
    folder = twin_of("llama").folder
    answers: list[dict[str, Any]] = []
    for speculation in ("none", by(folder)):
        served = ModelEngine(folder, speculative_config=speculation, **how)
        try:
            answers.append(said(served if speculation == "none" else cheap(served), ASKED["drawn"]))
            num_accepted = served.core.stats.num_accepted_tokens
        finally:
            served.close()
    assert answers[0] == answers[1]
    assert num_accepted > 20


@pytest.mark.covers("configuration/speculative-model")
def test_the_short_form_names_the_model_alone() -> None:
    short, long = EngineConfig(speculative_model="a/b"), EngineConfig(speculative_config=by(Path("a/b")))
    assert short.speculation == long.speculation
    assert short.default_speculation is None


def test_a_model_that_costs_more_than_it_can_gain_is_not_asked(twin_of: Callable[[str], Twin]) -> None:
    engine = ModelEngine(twin_of("llama").folder, speculative_config=by(twin_of("llama").folder))
    engine.submit("a", random_prompt(9), max_tokens=100)
    engine.run()
    assert engine.core.stats.num_draft_tokens == 0


# ikawrakow/ik_llama.cpp#732: a draft model past its context made answers slower
def test_sequences_that_are_longer_than_it_takes_get_no_drafts(twin_of: Callable[[str], Twin], tmp_path: Path) -> None:
    save_servable("qwen3", tmp_path, max_position_embeddings=24)
    engine = cheap(ModelEngine(twin_of("llama").folder, speculative_config=by(tmp_path)))
    engine.submit("long", random_prompt(60), max_tokens=20)
    engine.run()
    assert engine.core.stats.num_draft_tokens == 0
    engine.submit("short", random_prompt(8), max_tokens=30)
    engine.run()
    assert engine.core.stats.num_draft_tokens > 0


# LostRuins/koboldcpp#2325
def test_a_model_with_other_tokens_is_refused(twin_of: Callable[[str], Twin]) -> None:
    with pytest.raises(ValueError, match="whose tokens are not those of"):
        LLM(str(twin_of("llama").folder), max_seq_len=64, speculative_config=by(Path("infer-demo")))


def test_a_model_that_is_not_there_is_refused_by_its_name(twin_of: Callable[[str], Twin], tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nowhere"):
        LLM(str(twin_of("llama").folder), max_seq_len=64, speculative_config=by(tmp_path / "nowhere"))

"""A step is read while the next one computes: what that costs, caches, and does with failures and constraints."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from infer_engine.messages import TokenOutput
from infer_engine.protocol import FinishReason, SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan, Stage
from infer_proofs.engine.formula import FormulaEngine, expected_tokens, tokens_of
from infer_proofs.engine.models import ModelEngine, random_prompt, sound_tokens

NAMES = "abcdefgh"


def engine(*faults: Fault, is_ahead: bool = True, **more: Any) -> FormulaEngine:
    """Return an engine; one that schedules ahead has a device that lags behind."""
    return FormulaEngine(
        num_blocks=512,
        block_size=2,
        limits=SchedulerLimits(max_batch_size=8, max_num_batched_tokens=64, prefill_chunk_size=4),
        faults=FaultPlan(list(faults)),
        use_async_scheduling=is_ahead,
        lag=Random(3) if is_ahead else None,  # noqa: S311 - a test's choices
        **more,
    )


def prompt_of(name: str) -> list[int]:
    return [ord(name)] * 7


def serve(served: FormulaEngine, *, max_tokens: int = 6) -> dict[str, list[TokenOutput]]:
    for name in NAMES:
        served.submit(name, prompt_of(name), max_tokens=max_tokens)
    return served.run(max_steps=200)


def num_rows(served: FormulaEngine) -> int:
    """Return how many tokens were computed in all passes."""
    return sum(count for items in served.runner.schedules for _, count in items)


@pytest.mark.parametrize("stage", ["forward", "sample", "execute", "wait"])
def test_a_request_that_always_fails_fails_alone_and_the_others_get_their_tokens(stage: Stage) -> None:
    outputs = serve(engine(Fault(stage=stage, request_id="c")))
    failed = {name: out[-1].error.code for name, out in outputs.items() if out[-1].error is not None}
    assert failed == {"c": "step_failed"}
    for name in NAMES.replace("c", ""):
        assert tokens_of(outputs[name]) == expected_tokens(prompt_of(name), 6)


@pytest.mark.parametrize("stage", ["execute", "wait"])
def test_after_a_pass_that_failed_once_steps_are_scheduled_ahead_again(stage: Stage) -> None:
    served = engine(Fault(stage=stage, step=4, times=1))
    outputs = serve(served, max_tokens=20)
    assert {name: tokens_of(out) for name, out in outputs.items()} == {
        name: expected_tokens(prompt_of(name), 20) for name in NAMES
    }
    served.submit("last", [5], max_tokens=2)
    assert served.step().outputs == []  # launched, and not read


def test_a_step_returns_what_the_one_before_has_computed() -> None:
    served = engine()
    served.submit("a", [1, 2], max_tokens=2)
    assert [len(served.step().outputs) for _ in range(3)] == [0, 1, 1]
    assert not served.core.has_work


def test_a_request_that_ends_by_its_last_token_is_computed_no_further() -> None:
    ahead, in_turn = engine(), engine(is_ahead=False)
    assert serve(ahead) == serve(in_turn)
    assert num_rows(ahead) == num_rows(in_turn)


def test_a_request_that_ends_by_a_token_costs_one_row_that_nobody_gets() -> None:
    third = expected_tokens([5, 6], 3)[2]
    ahead, in_turn = (engine(is_ahead=is_ahead, eos_token_ids=frozenset({third})) for is_ahead in (True, False))
    outputs = []
    for served in (ahead, in_turn):
        served.submit("a", [5, 6], max_tokens=9)
        outputs.append(served.run())
    assert outputs[0] == outputs[1]
    assert outputs[0]["a"][-1].finish_reason is FinishReason.EOS
    assert num_rows(ahead) == num_rows(in_turn) + 1
    assert ahead.core.stats.num_computed_tokens == in_turn.core.stats.num_computed_tokens


def test_blocks_of_an_answer_are_cached_as_they_are_without() -> None:
    found = []
    for is_ahead in (True, False):
        served = engine(is_ahead=is_ahead, use_prefix_caching=True)
        served.submit("a", [5, 6, 7], max_tokens=9)
        answer = tokens_of(served.run()["a"])
        found.append(served.num_reused_tokens([5, 6, 7, *answer]))
    assert found == [10, 10]


@pytest.mark.parametrize(
    ("params", "grammar"),
    [
        (SamplingParams(temperature=0, ignore_eos=True), "start: /[a-f]{3,9}/"),
        (SamplingParams(temperature=1.0, repetition_penalty=1.4, frequency_penalty=0.5, ignore_eos=True), None),
        (SamplingParams(temperature=0, min_tokens=4, logprobs=2, prompt_logprobs=1), None),
    ],
    ids=["grammar", "penalties", "minimum and log-probabilities"],
)
def test_what_depends_on_the_pending_token_is_as_without(
    folder_of: Callable[[str], Path], params: SamplingParams, grammar: str | None
) -> None:
    found = []
    for is_ahead in (True, False):
        served = ModelEngine(
            folder_of("llama"), use_async_scheduling=is_ahead, prefill_chunk_size=8, speculative_config="none"
        )
        for number in range(3):
            served.submit(
                str(number), random_prompt(20, seed=number), params=params, max_tokens=8, seed=number, grammar=grammar
            )
        outputs = served.run()
        sound_tokens(outputs)
        found.append(outputs)
    assert found[0] == found[1]

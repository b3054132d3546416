"""A step that fails costs no more requests than it must: computing and sampling, and a device without memory."""

import math
from typing import Any

import pytest

from infer_engine.messages import TokenOutput
from infer_engine.scheduling import SchedulerLimits
from infer_engine.step_runner import EngineFailedError
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import FormulaEngine, collect, expected_tokens, tokens_of

NAMES = "abcdefgh"


def engine(*faults: Fault, batch: int = 8, max_items: int | None = None, **more: Any) -> FormulaEngine:
    limits = {"max_batch_size": batch, "max_num_batched_tokens": 512, "prefill_chunk_size": 4}
    config = {name: more.pop(name) for name in tuple(more) if name in ("use_prefix_caching", "scheduler_policy")}
    return FormulaEngine(
        num_blocks=512,
        block_size=2,
        limits=SchedulerLimits(**{**limits, **more}),
        faults=FaultPlan(list(faults)),
        max_items=max_items,
        **config,
    )


def prompt_of(name: str) -> list[int]:
    return [ord(name)] * 7


def serve(served: FormulaEngine, names: str = NAMES, *, max_tokens: int = 6) -> dict[str, list[TokenOutput]]:
    for name in names:
        served.submit(name, prompt_of(name), max_tokens=max_tokens)
    return served.run(max_steps=100)


def codes(outputs: dict[str, list[TokenOutput]]) -> dict[str, str]:
    """Return the code of each request that failed."""
    errors = {name: out[-1].error for name, out in outputs.items()}
    return {name: error.code for name, error in errors.items() if error is not None}


def assert_served(outputs: dict[str, list[TokenOutput]], names: str, *, max_tokens: int = 6) -> None:
    """Check that all of `names` got what they get alone."""
    expected = {name: expected_tokens(prompt_of(name), max_tokens) for name in names}
    assert {name: tokens_of(outputs[name]) for name in names} == expected


@pytest.mark.covers("scheduling/failing-step")
@pytest.mark.parametrize("stage", ["forward", "sample"])
@pytest.mark.parametrize("policy", ["fcfs", "prefill_first"])
def test_a_step_that_fails_by_one_request_fails_that_one_alone(stage: Any, policy: str) -> None:
    failing = engine(Fault(stage=stage, request_id="c"), scheduler_policy=policy)
    outputs = serve(failing)
    assert codes(outputs) == {"c": "step_failed"}
    assert_served(outputs, "abdefgh")


@pytest.mark.parametrize("stage", ["forward", "sample"])
def test_a_step_that_fails_once_fails_no_request(stage: Any) -> None:
    outputs = serve(engine(Fault(stage=stage, times=1)))
    assert codes(outputs) == {}
    assert_served(outputs, NAMES)


@pytest.mark.parametrize("stage", ["forward", "sample"])
def test_two_requests_that_fail_are_found_both(stage: Any) -> None:
    outputs = serve(engine(Fault(stage=stage, request_id="a"), Fault(stage=stage, request_id="f")))
    assert codes(outputs) == {"a": "step_failed", "f": "step_failed"}
    assert_served(outputs, "bcdegh")


@pytest.mark.covers("scheduling/no-culprit")
def test_sampling_that_fails_for_all_fails_all_and_the_next_are_served() -> None:
    failing = engine(Fault(stage="sample", times=8 + 7))  # the batch, its parts, and each alone
    assert codes(serve(failing)) == dict.fromkeys(NAMES, "step_failed")
    assert_served(serve(failing, "ijkl"), "ijkl")


@pytest.mark.covers("scheduling/no-culprit")
def test_a_model_that_fails_without_a_request_ends_the_engine() -> None:
    failing = engine(Fault(stage="forward"))
    failing.submit("a", [1], max_tokens=1)
    with pytest.raises(EngineFailedError, match="not even a step without a request succeeds"):
        failing.core.step()


@pytest.mark.covers("scheduling/goes-on-after-failure")
def test_the_engine_goes_on_after_a_failure_with_all_its_rows_and_blocks() -> None:
    failing = engine(Fault(stage="forward", request_id="b"), Fault(stage="sample", request_id="h"))
    serve(failing)
    outputs = serve(failing, "ijklmnop")
    assert_served(outputs, "ijklmnop")
    assert len(failing.runner.schedules[-1]) == 8


@pytest.mark.covers("requests/failed")
def test_a_failure_in_a_later_chunk_of_a_prompt_fails_that_prompt_alone_and_leaks_nothing() -> None:
    failing = engine(Fault(stage="forward", request_id="long", step=1))
    failing.submit("long", list(range(16)), max_tokens=2)
    failing.submit("other", prompt_of("x"), max_tokens=6)
    outputs = failing.run()
    assert codes(outputs) == {"long": "step_failed"}
    assert outputs["long"][-1].num_completion_tokens == 0
    assert tokens_of(outputs["other"]) == expected_tokens(prompt_of("x"), 6)


@pytest.mark.covers("requests/step-output")
def test_a_failed_requests_last_output_has_the_error_and_no_token() -> None:
    failing = engine(Fault(stage="forward", request_id="a", step=4))
    *_, last = serve(failing, "ab")["a"]
    assert (last.token_ids, last.finish_reason, last.num_completion_tokens) == ([], None, 3)
    assert last.error is not None
    assert last.error.message.startswith("This request failed inside the engine")


def test_a_row_that_is_not_finite_fails_alone_and_costs_no_second_pass() -> None:
    failing = engine(Fault(stage="sample", action="nan", request_id="d", step=3))
    outputs = serve(failing)
    assert codes(outputs) == {"d": "not_finite"}
    assert_served(outputs, "abcefgh")
    assert failing.runner.num_attempts == len(failing.runner.schedules)
    assert len(outputs["d"]) == 3


@pytest.mark.covers("scheduling/no-culprit")
def test_rows_that_are_all_not_finite_fail_all() -> None:
    outputs = serve(engine(Fault(stage="sample", action="nan", step=1)))
    assert codes(outputs) == dict.fromkeys(NAMES, "not_finite")


def test_nothing_of_a_failed_request_is_found_afterwards() -> None:
    failing = engine(Fault(stage="sample", action="nan", request_id="a", step=3), use_prefix_caching=True)
    serve(failing, "a")
    assert failing.num_reused_tokens(prompt_of("a")) == 0


@pytest.mark.parametrize(("max_items", "num_passes"), [(4, 2), (3, 4), (2, 4), (1, 8)])
def test_a_step_without_memory_succeeds_in_parts(max_items: int, num_passes: int) -> None:
    failing = engine(max_items=max_items)
    outputs = serve(failing)
    assert codes(outputs) == {}
    assert_served(outputs, NAMES)
    assert len(failing.runner.schedules[0]) <= max_items
    passes = failing.runner.schedules[:num_passes]
    assert [name for items in passes for name, _ in items] == list(NAMES)


@pytest.mark.parametrize("chunk_size", [4, 8])  # of a part of the prompt, and of all of it, which is sampled
def test_a_request_without_memory_even_alone_fails_with_out_of_memory(chunk_size: int) -> None:
    failing = engine(max_items=0, prefill_chunk_size=chunk_size)
    assert codes(serve(failing, "ab")) == {"a": "out_of_memory", "b": "out_of_memory"}


@pytest.mark.covers("scheduling/failing-step")
def test_one_culprit_among_64_is_found_in_a_logarithm_of_passes() -> None:
    failing = engine(Fault(stage="sample", request_id="37", step=2), batch=64)
    for i in range(64):
        failing.submit(str(i), [i] * 2, max_tokens=4)
    outputs: dict[str, list[TokenOutput]] = {}
    collect(failing.step(), outputs)
    collect(failing.step(), outputs)
    before = failing.runner.num_attempts
    collect(failing.step(), outputs)
    assert codes(outputs) == {"37": "step_failed"}
    assert failing.runner.num_attempts - before <= 1 + 2 * math.log2(64)
    failing.run()


@pytest.mark.parametrize("use_prefix_caching", [False, True])
def test_readers_of_what_a_failed_pass_did_not_write_compute_it_themselves(*, use_prefix_caching: bool) -> None:
    failing = engine(Fault(stage="forward", request_id="writer"), use_prefix_caching=use_prefix_caching)
    for name in ("writer", "reader", "another"):
        failing.submit(name, prompt_of("x"), max_tokens=4, sibling_group="one request")
    outputs = failing.run()
    assert codes(outputs) == {"writer": "step_failed"}
    for name in ("reader", "another"):
        assert tokens_of(outputs[name]) == expected_tokens(prompt_of("x"), 4)

"""Failures while a schedule is made: which request fails, and that all others get the same tokens."""

from typing import Any

import pytest

from infer_engine.assembly.core import CoreParts
from infer_engine.messages import TokenOutput
from infer_engine.scheduling import SchedulerLimits
from infer_engine.step_runner import EngineFailedError
from infer_proofs.engine.faults import Fault, FaultPlan, InjectedFaultError
from infer_proofs.engine.formula import FormulaEngine, ManualClock, expected_tokens, tokens_of

NAMES = "abcd"
STEPS = 200


def engine(*faults: Fault, num_blocks: int = 200, windows: Any = (), **config: Any) -> FormulaEngine:
    return FormulaEngine(
        num_blocks=num_blocks,
        block_size=2,
        limits=SchedulerLimits(
            max_batch_size=4, max_num_batched_tokens=32, prefill_chunk_size=4 if "batching_mode" not in config else None
        ),
        faults=FaultPlan(list(faults)),
        windows=dict(windows),
        **config,
    )


def prompt_of(name: str) -> list[int]:
    return [ord(name)] * 9


def serve(served: FormulaEngine, names: str = NAMES, *, max_tokens: int = 8) -> dict[str, list[TokenOutput]]:
    for name in names:
        served.submit(name, prompt_of(name), max_tokens=max_tokens)
    return served.run(max_steps=STEPS)


def failed(outputs: dict[str, list[TokenOutput]]) -> str:
    """Return which requests failed, after a check that all others got what they get alone."""
    names = ""
    for name, out in outputs.items():
        if error := out[-1].error:
            assert error.code == "step_failed"
            names += name
        else:
            assert tokens_of(out) == expected_tokens(prompt_of(name), len(tokens_of(out)))
            assert out[-1].finish_reason is not None
    return "".join(sorted(names))


ONCE, ALWAYS = 1, None


@pytest.mark.covers("requests/failed")
@pytest.mark.parametrize(
    ("stage", "request_id", "times", "expected"),
    [
        ("schedule", None, ONCE, ""),
        ("grow", "c", ONCE, ""),
        ("grow", None, ONCE, ""),
        ("grow", "c", ALWAYS, "c"),
        ("grow", None, ALWAYS, NAMES),
        ("allocate", "c", ONCE, ""),
        ("allocate", None, ONCE, ""),
        ("allocate", "c", ALWAYS, "c"),
        ("allocate", None, ALWAYS, NAMES),
        ("forward", "c", ONCE, ""),
        ("forward", None, ONCE, ""),
        ("forward", "c", ALWAYS, "c"),
        ("sample", "c", ONCE, ""),
        ("sample", None, ONCE, ""),
        ("sample", "c", ALWAYS, "c"),
        ("sample", None, ALWAYS, NAMES),
    ],
)
@pytest.mark.parametrize("policy", ["fcfs", "prefill_first", "priority"])
def test_a_fault_of_any_stage_fails_the_request_that_caused_it_alone(
    stage: Any, request_id: str | None, times: int | None, expected: str, policy: str
) -> None:
    failing = engine(Fault(stage=stage, request_id=request_id, times=times), scheduler_policy=policy)
    outputs = serve(failing, max_tokens=20)
    assert failed(outputs) == expected
    assert set(outputs) == set(NAMES)
    assert failing.faults.triggered
    failing.faults.faults.clear()
    assert failed(serve(failing, "efgh")) == ""


@pytest.mark.parametrize(
    ("stage", "request_id", "times", "expected"),
    [
        ("schedule", None, ONCE, ""),
        ("allocate", "c", ONCE, ""),
        ("allocate", "c", ALWAYS, "c"),
        ("forward", "c", ALWAYS, "c"),
        ("sample", "c", ALWAYS, "c"),
    ],
)
@pytest.mark.parametrize("mode", ["static", "continuous"])
def test_a_fault_over_slots_fails_the_request_that_caused_it_alone(
    stage: Any, request_id: str | None, times: int | None, expected: str, mode: Any
) -> None:
    config: dict[str, Any] = {"batching_mode": "static", "batch_wait_timeout_s": 0} if mode == "static" else {}
    failing = engine(Fault(stage=stage, request_id=request_id, times=times), kv_cache_backend="contiguous", **config)
    assert failed(serve(failing)) == expected
    failing.faults.faults.clear()
    assert failed(serve(failing, "efgh")) == ""


def test_a_prompt_that_fails_to_grow_in_a_later_chunk_is_given_up_and_not_tried_for_ever() -> None:
    failing = engine(Fault(stage="grow", request_id="c"), windows={4: 60})
    assert failed(serve(failing)) == "c"


def test_memory_that_a_failed_admission_took_is_there_again() -> None:
    failing = engine(Fault(stage="allocate", request_id="a", times=1))
    failing.submit("a", prompt_of("a"), max_tokens=1)
    assert failing.core.step().stats.num_free_blocks == 200


def test_scheduling_that_fails_twice_in_a_row_without_a_culprit_ends_the_engine() -> None:
    failing = engine(Fault(stage="schedule"))
    failing.submit("a", [1], max_tokens=1)
    assert failing.core.step().outputs == []
    with pytest.raises(EngineFailedError, match="no request can be scheduled"):
        failing.core.step()


def test_scheduling_that_fails_now_and_then_goes_on() -> None:
    faults = [Fault(stage="schedule", step=step) for step in (1, 3, 5, 7)]
    assert failed(serve(engine(*faults))) == ""


def test_a_failure_without_a_culprit_after_one_with_a_culprit_fails_no_request() -> None:
    failing = engine(Fault(stage="allocate", request_id="a", step=0), Fault(stage="schedule", step=1))
    assert failed(serve(failing)) == ""


@pytest.mark.parametrize("step", range(3, 14))
def test_refused_memory_preempts_and_changes_no_token(step: int) -> None:
    failing = engine(Fault(stage="grow", action="refuse", step=step, times=1))
    outputs = serve(failing)
    assert failed(outputs) == ""
    assert failing.core.step().stats.num_preemptions == len(failing.faults.triggered)


def test_refused_memory_of_one_request_for_ever_costs_no_other_its_tokens() -> None:
    outputs = serve(engine(Fault(stage="grow", action="refuse", request_id="c")))
    assert failed(outputs) in ("", "c")


def test_the_oldest_request_alone_refused_for_ever_fails_and_the_engine_goes_on() -> None:
    failing = engine(Fault(stage="grow", action="refuse", request_id="a"))
    outputs = serve(failing)
    assert failed(outputs) == "a"
    assert failed(serve(failing, "efgh")) == ""


def test_refusals_from_a_given_block_on_are_preemptions_until_one_is_alone() -> None:
    failing = engine(Fault(stage="grow", action="refuse", block=24, times=6))
    assert failed(serve(failing)) == ""
    assert failing.core.step().stats.num_preemptions > 0


def test_a_plan_triggers_faults_only_where_when_and_as_often_as_it_says() -> None:
    plan = FaultPlan([Fault(stage="forward", request_id="a", step=2, times=1)], step=2)
    assert plan.trigger("sample", ["a"]) == []
    assert plan.trigger("forward", ["b"]) == []
    with pytest.raises(InjectedFaultError, match="a fault on purpose"):
        plan.trigger("forward", ["a", "b"])
    assert plan.trigger("forward", ["a"]) == []
    assert plan.triggered == ["forward"]


def test_an_empty_plan_wraps_nothing() -> None:
    served = engine()
    parts = CoreParts(
        runner=served.runner,
        kv_cache_manager=served.kv_cache_manager,
        build_scheduler=lambda _: pytest.fail("nothing asks for a scheduler"),
    )
    assert FaultPlan().wrap_parts(parts) is parts


@pytest.mark.covers("kv-cache/leaks-are-named")
def test_starting_over_reclaims_memory_that_no_request_holds(caplog: pytest.LogCaptureFixture) -> None:
    failing = engine(Fault(stage="schedule", times=1))
    failing.paged_manager.groups[0].block_pool.allocate(3, holder="gone")
    failing.submit("a", [1, 2, 3], max_tokens=2)
    failing.core.step()
    assert failing.paged_manager.audit() == []
    assert "3 leaked KV blocks are freed: 3 of `gone`." in caplog.messages


def test_a_step_that_sleeps_where_a_request_grows_preempts_no_request() -> None:
    clock = ManualClock()
    slow = FormulaEngine(
        num_blocks=200,
        block_size=2,
        limits=SchedulerLimits(max_batch_size=4, max_num_batched_tokens=32),
        faults=FaultPlan([Fault(stage="grow", action="sleep", request_id="c", seconds=1)], sleep=clock.sleep),
    )
    assert failed(serve(slow)) == ""
    assert clock.now > 0
    assert slow.step().stats.num_preemptions == 0

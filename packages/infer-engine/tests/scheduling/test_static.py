"""Static batching: a batch forms, runs until all of it has finished, and only then the next one."""

import pytest

from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import FormulaEngine, ManualClock, expected_tokens, tokens_of

TIMEOUT_S = 0.5


def engine(clock: ManualClock, *, batch: int = 2, num_tokens: int = 64, timeout_s: float = TIMEOUT_S) -> FormulaEngine:
    return FormulaEngine(
        num_blocks=batch * 16,
        block_size=4,
        limits=SchedulerLimits(max_batch_size=batch, max_num_batched_tokens=num_tokens, prefill_chunk_size=None),
        clock=clock,
        batching_mode="static",
        batch_wait_timeout_s=timeout_s,
    )


def submit(static: FormulaEngine, *names: str, length: int = 3, max_tokens: int = 3) -> None:
    for name in names:
        static.submit(name, [ord(name[0])] * length, max_tokens=max_tokens)


@pytest.mark.covers("scheduling/static-full-batch")
def test_a_full_batch_is_dispatched_at_once() -> None:
    static = engine(ManualClock(100.0))
    submit(static, "a", "b")
    assert static.core.seconds_until_work() == 0
    assert static.step().admitted == ["a", "b"]


@pytest.mark.covers("configuration/batch-wait-timeout", "scheduling/static-batch-forms", "scheduling/static-clock")
def test_a_batch_that_is_not_full_waits_for_the_timeout_and_no_longer() -> None:
    clock = ManualClock(100.0)
    static = engine(clock)
    submit(static, "a")
    clock.now += TIMEOUT_S - 0.01
    assert static.step().admitted == []
    assert static.core.seconds_until_work() == pytest.approx(0.01)
    clock.now += 0.01
    assert static.core.seconds_until_work() == 0
    assert static.step().admitted == ["a"]


@pytest.mark.covers("scheduling/static-batch-forms")
def test_the_timeout_counts_from_the_first_waiting_request_not_from_the_last() -> None:
    clock = ManualClock(100.0)
    static = engine(clock, batch=3)
    submit(static, "a")
    clock.now += TIMEOUT_S / 2
    submit(static, "b")
    clock.now += TIMEOUT_S / 2
    assert static.step().admitted == ["a", "b"]


def test_requests_that_arrive_while_a_batch_forms_join_it_up_to_the_batch_size() -> None:
    static = engine(ManualClock(100.0), batch=3)
    submit(static, "a")
    assert static.step().admitted == []
    submit(static, "b", "c", "d")
    assert static.step().admitted == ["a", "b", "c"]


@pytest.mark.covers("scheduling/static-runs-to-the-end")
def test_no_request_joins_a_batch_that_runs() -> None:
    clock = ManualClock(100.0)
    static = engine(clock, batch=4)
    submit(static, "a", "b", max_tokens=5)
    clock.now += TIMEOUT_S
    assert static.step().admitted == ["a", "b"]
    submit(static, "late", "later")
    clock.now += 10 * TIMEOUT_S
    for _ in range(4):
        assert static.step().admitted == []
    assert static.step().stats.num_running == 0


@pytest.mark.covers("scheduling/static-runs-to-the-end")
def test_a_row_left_by_a_short_request_stays_empty_until_the_batch_has_finished() -> None:
    static = engine(ManualClock(100.0))
    submit(static, "short", max_tokens=1)
    submit(static, "long", max_tokens=6)
    submit(static, "next", "one more")
    admitted = [static.step().admitted for _ in range(7)]
    assert admitted == [["short", "long"], [], [], [], [], [], ["next", "one more"]]


@pytest.mark.covers("scheduling/static-timer")
def test_the_timer_starts_afresh_when_a_batch_has_finished() -> None:
    clock = ManualClock(100.0)
    static = engine(clock)
    submit(static, "a", "b", max_tokens=2)
    static.step()
    submit(static, "waits during the batch")
    clock.now += 10 * TIMEOUT_S
    static.step()
    assert static.core.seconds_until_work() == pytest.approx(TIMEOUT_S)
    clock.now += TIMEOUT_S
    assert static.step().admitted == ["waits during the batch"]


@pytest.mark.covers("scheduling/static-timer")
def test_the_timer_starts_afresh_for_each_batch_that_forms() -> None:
    clock = ManualClock(100.0)
    static = engine(clock)
    for name in ("a", "b", "c"):
        submit(static, name, max_tokens=1)
        assert static.core.seconds_until_work() == pytest.approx(TIMEOUT_S)
        clock.now += TIMEOUT_S
        assert static.step().admitted == [name]
        clock.now += 3.0


def test_an_abort_of_all_waiting_requests_stops_the_timer() -> None:
    clock = ManualClock(100.0)
    static = engine(clock)
    submit(static, "a")
    clock.now += TIMEOUT_S - 0.1
    static.abort("a")
    assert static.core.seconds_until_work() is None
    submit(static, "b")
    assert static.core.seconds_until_work() == pytest.approx(TIMEOUT_S)


def test_an_abort_of_one_waiting_request_leaves_the_timer_to_the_others() -> None:
    clock = ManualClock(100.0)
    static = engine(clock, batch=3)
    submit(static, "a", "b")
    clock.now += TIMEOUT_S - 0.1
    static.abort("a")
    assert static.core.seconds_until_work() == pytest.approx(0.1)


def test_an_abort_of_a_whole_running_batch_lets_the_next_one_form() -> None:
    clock = ManualClock(100.0)
    static = engine(clock)
    submit(static, "a", "b", max_tokens=9)
    static.step()
    submit(static, "c")
    static.abort("a")
    static.abort("b")
    assert static.core.seconds_until_work() == pytest.approx(TIMEOUT_S)
    clock.now += TIMEOUT_S
    assert static.step().admitted == ["c"]


def test_an_engine_without_requests_has_no_work_to_wait_for() -> None:
    static = engine(ManualClock(100.0))
    assert static.core.seconds_until_work() is None
    assert static.step().outputs == []


def test_a_timeout_of_zero_does_not_wait() -> None:
    static = engine(ManualClock(100.0), timeout_s=0)
    submit(static, "a")
    assert static.step().admitted == ["a"]


def test_prompts_are_computed_whole() -> None:
    static = engine(ManualClock(100.0))
    submit(static, "a", length=31, max_tokens=1)
    submit(static, "b", length=33, max_tokens=1)
    static.step()
    assert static.runner.schedules == [[("a", 31), ("b", 33)]]


def test_a_prompt_over_the_step_is_the_only_prompt_of_its_step() -> None:
    static = engine(ManualClock(100.0), batch=3, num_tokens=10)
    submit(static, "a", length=6, max_tokens=3)
    submit(static, "over", length=20, max_tokens=1)
    submit(static, "b", length=2, max_tokens=1)
    static.run()
    assert static.runner.schedules == [[("a", 6), ("b", 2)], [("a", 1), ("over", 20)], [("a", 1)]]


def test_a_batch_that_exceeds_the_step_takes_turns_and_all_requests_finish() -> None:
    static = engine(ManualClock(100.0), batch=4, num_tokens=3)
    submit(static, "a", "b", "c", "d", length=2, max_tokens=4)
    outputs = static.run(max_steps=40)
    assert {name: tokens_of(out) for name, out in outputs.items()} == {
        name: expected_tokens([ord(name)] * 2, 4) for name in "abcd"
    }


@pytest.mark.covers("scheduling/static-order")
def test_batches_are_formed_in_order_of_arrival() -> None:
    static = engine(ManualClock(100.0))
    submit(static, "a", "b", "c", "d", "e", "f")
    order = []
    while static.core.has_work:
        order += static.step().admitted
    assert order == list("abcdef")


def test_a_first_pass_that_fails_whole_leaves_the_rest_of_the_batch_its_memory() -> None:
    plan = FaultPlan([Fault(stage="forward", request_id="a")])
    limits = SchedulerLimits(max_batch_size=2, max_num_batched_tokens=5, prefill_chunk_size=None)
    formed = FormulaEngine(num_blocks=32, limits=limits, batching_mode="static", faults=plan)
    for name in "ab":  # a step has room for one of the two prompts
        formed.submit(name, [ord(name)] * 5, max_tokens=3)
    outputs = formed.run()
    assert outputs["a"][-1].error is not None
    assert tokens_of(outputs["b"]) == expected_tokens([ord("b")] * 5, 3)


def test_a_batch_whose_start_fails_forms_again() -> None:
    clock = ManualClock()
    plan = FaultPlan([Fault(stage="allocate", times=1)])
    limits = SchedulerLimits(max_batch_size=4, max_num_batched_tokens=64, prefill_chunk_size=None)
    formed = FormulaEngine(
        num_blocks=64, limits=limits, batching_mode="static", batch_wait_timeout_s=TIMEOUT_S, faults=plan, clock=clock
    )
    formed.submit("a", [1] * 5, max_tokens=2)
    clock.sleep(TIMEOUT_S)
    formed.step()
    assert formed.core.seconds_until_work() == TIMEOUT_S
    clock.sleep(TIMEOUT_S)
    assert tokens_of(formed.run(max_steps=5)["a"]) == expected_tokens([1] * 5, 2)

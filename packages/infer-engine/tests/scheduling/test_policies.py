"""The four policies of continuous batching: which request is computed when."""

from dataclasses import replace
from typing import Any

import pytest

from infer_cache import PagedKVCacheManager
from infer_engine.core.engine_core import EngineCore
from infer_engine.core.prefix_sharing import share_with_none
from infer_engine.messages import Submit
from infer_engine.protocol import SamplingParams
from infer_engine.scheduling import POLICIES, ContinuousScheduler, Policy, SchedulerLimits
from infer_engine.scheduling.policies import AGING_STEPS, MAX_AGING_LEVELS
from infer_proofs.engine.formula import FormulaEngine, expected_tokens, tokens_of
from infer_proofs.engine.formula_runner import FormulaRunner


def engine(policy: str, *, num_blocks: int = 1000, **limits: Any) -> FormulaEngine:
    return FormulaEngine(
        num_blocks=num_blocks,
        limits=SchedulerLimits(**{"max_batch_size": 4, "max_num_batched_tokens": 64, **limits}),
        scheduler_policy=policy,
    )


def serve_three(served: FormulaEngine) -> tuple[dict[str, int], dict[str, int]]:
    """Serve the specification's three simulated requests; return the steps of their admission and of their end."""
    arrivals = {0: [("romeo", 9, 17), ("to be", 9, 22)], 3: [("henry", 12, 15)]}
    admitted: dict[str, int] = {}
    completed: dict[str, int] = {}
    for step in range(30):
        for name, length, max_tokens in arrivals.get(step, []):
            served.submit(name, [len(name)] * length, max_tokens=max_tokens)
        result = served.step()
        admitted |= dict.fromkeys(result.admitted, step)
        completed |= {output.request_id: step for output in result.outputs if output.finish_reason}
    return admitted, completed


@pytest.mark.covers("experiments/nanogpt-simulation")
def test_prefill_first_serves_the_three_simulated_requests_in_the_published_steps() -> None:
    served = engine("prefill_first")
    admitted, completed = serve_three(served)
    assert admitted == {"romeo": 0, "to be": 0, "henry": 3}
    assert completed == {"romeo": 15, "to be": 20, "henry": 16}


@pytest.mark.covers("experiments/nanogpt-positions")
def test_prefill_first_computes_prompt_plus_generated_minus_1_positions_of_each() -> None:
    served = engine("prefill_first")
    serve_three(served)
    positions: dict[str, int] = {}
    for name, count in (item for schedule in served.runner.schedules for item in schedule):
        positions[name] = positions.get(name, 0) + count
    assert positions == {"romeo": 9 + 17 - 1, "to be": 9 + 22 - 1, "henry": 12 + 15 - 1}


def test_fcfs_serves_the_same_requests_a_step_later_each() -> None:
    admitted, completed = serve_three(engine("fcfs"))
    assert admitted == {"romeo": 0, "to be": 0, "henry": 3}
    assert completed == {"romeo": 16, "to be": 21, "henry": 17}


@pytest.mark.covers("configuration/scheduler-policy", "scheduling/one-forward-pass", "scheduling/fcfs")
def test_fcfs_computes_prompts_beside_decodes_in_one_pass() -> None:
    served = engine("fcfs")
    served.submit("a", [1] * 3, max_tokens=4)
    served.step()
    served.submit("b", [2] * 5, max_tokens=4)
    served.step()
    assert served.runner.schedules == [[("a", 3)], [("a", 1), ("b", 5)]]


@pytest.mark.covers("scheduling/prefill-first")
def test_prefill_first_computes_prompts_and_then_all_decodes_newcomers_included() -> None:
    served = engine("prefill_first")
    served.submit("a", [1] * 3, max_tokens=9)
    served.step()
    served.submit("b", [2] * 5, max_tokens=9)
    result = served.step()
    assert served.runner.schedules[2:] == [[("b", 5)], [("a", 1), ("b", 1)]]
    assert [output.request_id for output in result.outputs] == ["b", "a", "b"]


def test_prefill_first_skips_the_decodes_of_a_request_that_its_first_token_ended() -> None:
    served = engine("prefill_first")
    served.submit("a", [1] * 3, max_tokens=1)
    assert len(served.step().outputs) == 1
    assert served.runner.schedules == [[("a", 3)]]


@pytest.mark.covers("scheduling/decodes-first")
@pytest.mark.parametrize("policy", ["fcfs", "decode_round_robin", "priority"])
def test_no_decode_waits_where_prompts_take_what_decodes_leave(policy: str) -> None:
    served = engine(policy, max_batch_size=8, max_num_batched_tokens=3)
    for i in range(8):
        served.submit(str(i), [i + 1] * (i + 1), max_tokens=6)
    started: dict[str, int] = {}
    for step in range(200):
        result = served.step()
        tokens = {output.request_id for output in result.outputs}
        ended = {output.request_id for output in result.outputs if output.finish_reason}
        assert set(started) <= tokens
        started = {name: step for name in tokens | set(started) if name not in ended}
    assert not served.core.has_work


def longest_wait(policy: Policy) -> int:
    """Return the most steps between two tokens of any decode, of six where a pass computes two."""
    kv_cache_manager = PagedKVCacheManager([200], 1)
    scheduler = ContinuousScheduler(
        kv_cache_manager, SchedulerLimits(max_batch_size=6, max_num_batched_tokens=2), policy
    )
    core = EngineCore(
        FormulaRunner(kv_cache_manager),
        scheduler,
        kv_cache_manager,
        eos_token_ids=frozenset(),
        share_prefix=share_with_none,
    )
    for i in range(6):
        params = SamplingParams(temperature=0)
        core.handle(Submit(request_id=str(i), prompt_token_ids=[i], max_tokens=12, seed=0, params=params))
    last: dict[str, int] = {}
    waits = []
    for step in range(100):
        for name in {output.request_id for output in core.step().outputs}:
            waits.append(step - last.get(name, step))
            last[name] = step
    assert not core.has_work
    return max(waits)


@pytest.mark.covers("scheduling/decode-round-robin")
def test_decodes_in_turn_wait_for_no_more_steps_than_their_number_takes() -> None:
    # Only a pass of prompts alone makes more decodes than a pass computes: six of them, two at a time.
    assert longest_wait(replace(POLICIES["decode_round_robin"], prefill_pass=True)) == 3


def test_decodes_in_order_of_arrival_wait_until_those_before_them_have_finished() -> None:
    assert longest_wait(replace(POLICIES["fcfs"], prefill_pass=True)) > 6


@pytest.mark.covers("scheduling/priority")
def test_priority_admits_the_lower_number_first_and_equals_by_arrival() -> None:
    served = engine("priority", max_batch_size=1)
    for name, priority in (("c", 2), ("a", 0), ("d", 2), ("b", -0), ("first", -5)):
        served.submit(name, [1], max_tokens=1, priority=priority)
    order = []
    while served.core.has_work:
        order += served.step().admitted
    assert order == ["first", "a", "b", "c", "d"]


def test_priority_of_a_request_means_nothing_to_the_other_policies() -> None:
    served = engine("fcfs", max_batch_size=1)
    served.submit("a", [1], max_tokens=1, priority=9)
    served.submit("b", [1], max_tokens=1, priority=0)
    assert served.step().admitted == ["a"]


@pytest.mark.covers("scheduling/priority-aging")
@pytest.mark.parametrize("priority", [1, 3])
def test_priority_with_aging_admits_a_low_one_within_a_bound_however_many_better_ones_come(priority: int) -> None:
    served = engine("priority", max_batch_size=1)
    served.submit("low", [1], max_tokens=1, priority=priority)
    admitted: list[str] = []
    for step in range(1000):
        for i in range(2):  # twice as many as can be served
            served.submit(f"{step}.{i}", [1], max_tokens=1, priority=0)
        admitted += served.step().admitted
        if "low" in admitted:
            break
    # Before it go those that came within AGING_STEPS steps for each level: two each, and one is served in a step.
    assert len(admitted) == 2 * priority * AGING_STEPS + 1


def test_priority_without_rivals_that_keep_coming_is_strict() -> None:
    served = engine("priority", max_batch_size=1)
    served.submit("low", [1], max_tokens=1, priority=1)
    for i in range(50):
        served.submit(str(i), [1], max_tokens=1, priority=0)
    order = []
    while served.core.has_work:
        order += served.step().admitted
    assert order[-1] == "low"


def preempted_first(policy: str, priorities: dict[str, int]) -> str:
    """Fill a pool with requests in order and return which one loses its memory first."""
    served = engine(policy, num_blocks=40, kv_reserve=0.0)
    for name, priority in priorities.items():
        served.submit(name, [ord(name)] * 4, max_tokens=30, priority=priority)
    before = served.step()
    assert before.stats.num_running == len(priorities)
    while True:
        result = served.step()
        if result.stats.num_preemptions:
            running = {name for name, _ in served.runner.schedules[-1]}
            outputs = served.run()
            assert {name: tokens_of(out)[-1] for name, out in outputs.items()} == {
                name: expected_tokens([ord(name)] * 4, 30)[-1] for name in priorities
            }
            return "".join(sorted(set(priorities) - running))


@pytest.mark.covers("scheduling/preemption-victim")
@pytest.mark.parametrize(
    ("policy", "priorities", "victim"),
    [
        ("fcfs", {"a": 0, "b": 5, "c": 0}, "c"),
        ("priority", {"a": 0, "b": 5, "c": 0}, "b"),
        ("priority", {"a": 0, "b": 5, "c": 5}, "c"),
        ("priority", {"a": 9, "b": 5, "c": 0}, "b"),
        ("decode_round_robin", {"a": 0, "b": 0, "c": 0}, "c"),
        ("prefill_first", {"a": 0, "b": 0, "c": 0}, "c"),
    ],
)
def test_preemption_takes_the_lowest_priority_then_the_latest_and_never_the_oldest(
    policy: str, priorities: dict[str, int], victim: str
) -> None:
    assert preempted_first(policy, priorities) == victim


def overload(policy: str) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Offer ten times what can be served, with a bound on who waits.

    Returns (priority, arrival in computed steps) of each accepted request, and the order of first admissions.
    """
    served = engine(policy, num_blocks=40, kv_reserve=0.0, max_batch_size=4, max_num_batched_tokens=8)
    accepted: dict[str, tuple[int, int]] = {}
    admitted: list[str] = []
    finished = num_steps = 0
    while num_steps < 600 or served.core.has_work:
        for i in range(4 if num_steps < 600 else 0):
            if served.core.stats.num_waiting < 30:
                name, priority = f"{num_steps}.{i}", (num_steps + i) % 3
                served.submit(name, [priority] * (1 + num_steps % 9), max_tokens=1 + num_steps % 20, priority=priority)
                accepted[name] = (priority, served.core.stats.num_steps)
        result = served.step()
        assert result.stats.num_step_tokens > 0
        admitted += result.admitted
        finished += sum(output.finish_reason is not None for output in result.outputs)
        num_steps += 1
    assert finished == len(accepted) > 200
    return accepted, list(dict.fromkeys(admitted))


@pytest.mark.covers("scheduling/overload-finishes")
@pytest.mark.parametrize("policy", ["fcfs", "prefill_first", "decode_round_robin"])
def test_under_sustained_overload_all_accepted_requests_are_served_in_order_of_arrival(policy: str) -> None:
    accepted, admitted = overload(policy)
    assert admitted == list(accepted)


@pytest.mark.covers("scheduling/overload-order")
def test_under_sustained_overload_with_priorities_no_request_is_overtaken_beyond_its_age() -> None:
    accepted, admitted = overload("priority")
    place = {name: index for index, name in enumerate(admitted)}
    for name, (priority, arrival) in accepted.items():
        for other, (other_priority, other_arrival) in accepted.items():
            if place[other] < place[name] and other_arrival > arrival:
                assert other_arrival - arrival <= AGING_STEPS * (priority - other_priority)


def test_priorities_beyond_the_levels_of_aging_count_as_the_last_of_them() -> None:
    served = engine("priority", max_batch_size=1)
    served.submit("huge", [1], max_tokens=1, priority=2**31 - 1)
    served.submit("at the edge", [1], max_tokens=1, priority=MAX_AGING_LEVELS)
    assert served.step().admitted == ["huge"]

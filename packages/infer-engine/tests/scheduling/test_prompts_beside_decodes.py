"""How prompts share the few tokens of steps in which others decode: who waits how long, and what stays whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.scheduling import SchedulerLimits
from infer_engine.scheduling.continuous import MAX_PROMPTS_IN_TURN
from infer_engine.scheduling.policies import AGING_STEPS
from infer_proofs.engine.formula import FormulaEngine, collect, expected_tokens, tokens_of

MOST = 48


def busy(*, num_blocks: int = 1000, block_size: int = 16, num_decodes: int = 2, **more: Any) -> FormulaEngine:
    """Return an engine of requests that decode, and go on to."""
    defaults = {"max_batch_size": 32, "max_num_batched_tokens": 2048, "max_prefill_tokens_beside_decodes": MOST}
    limits = {key: more.pop(key) for key in tuple(more) if key in SchedulerLimits.__slots__}
    engine = FormulaEngine(
        num_blocks=num_blocks,
        block_size=block_size,
        limits=SchedulerLimits(**{**defaults, **limits}),
        **more,
    )
    for number in range(num_decodes):
        engine.submit(f"decode {number}", [number], max_tokens=3000, priority=-5)
    engine.step()
    return engine


def steps_to_first_tokens(engine: FormulaEngine, *names: str, max_steps: int = 1000) -> list[int]:
    """Step until each of `names` has its first token; return how many steps each one took."""
    steps: dict[str, int] = {}
    for number in range(1, max_steps + 1):
        for output in engine.step().outputs:
            steps.setdefault(output.request_id, number)
        if steps.keys() >= set(names):
            return [steps[name] for name in names]
    raise AssertionError(f"{set(names) - set(steps)} have no token after {max_steps} steps")


def counts(engine: FormulaEngine) -> dict[str, int]:
    """Compute a step; return how many tokens of which prompt it computed."""
    engine.step()
    return {name: count for name, count in engine.runner.schedules[-1] if not name.startswith("decode")}


def finish(engine: FormulaEngine, **prompts: list[int]) -> None:
    """End the decodes, serve the others, and check that each ends with the last token that it gets alone."""
    for number in range(3):
        engine.abort(f"decode {number}")
    outputs = engine.run()
    for name, prompt in prompts.items():
        last = outputs[name][-1]
        assert tokens_of([last])[-1:] == expected_tokens(prompt, last.num_completion_tokens)[-1:]


@pytest.mark.covers("scheduling/prompts-take-turns")
@pytest.mark.parametrize("num_steps", range(5))
@pytest.mark.parametrize("num_long", [1, 2, MAX_PROMPTS_IN_TURN - 1])
def test_a_prompt_of_20_tokens_behind_prompts_of_2000_has_its_first_token_within_2_steps(
    num_long: int, num_steps: int
) -> None:
    engine = busy()
    for number in range(num_long):
        engine.submit(f"long {number}", [number] * 2000, max_tokens=1)
    for _ in range(num_steps):
        engine.step()
    engine.submit("short", [9] * 20, max_tokens=1)
    assert steps_to_first_tokens(engine, "short")[0] <= 2


def test_a_long_prompt_ends_though_short_ones_never_stop_coming() -> None:
    engine = busy()
    engine.submit("long", [1] * 2000, max_tokens=1)
    ended: set[str] = set()
    for number in range(2 * 2000 // MOST + 3):
        for name in ("a", "b", "c"):
            engine.submit(f"{number} {name}", [2] * 30, max_tokens=1)
        ended.update(output.request_id for output in engine.step().outputs)
    assert "long" in ended


def test_a_long_prompt_alone_gets_all_tokens_beside_decodes() -> None:
    engine = busy()
    engine.submit("long", [1] * 200, max_tokens=1)
    assert [counts(engine) for _ in range(5)] == [{"long": MOST}] * 4 + [{"long": 8}]


def test_prompts_of_equal_length_go_in_order_of_arrival() -> None:
    engine = busy()
    for name in "abc":
        engine.submit(name, [1] * 96, max_tokens=1)
    assert steps_to_first_tokens(engine, *"abc") == [2, 4, 6]


def test_several_long_prompts_are_not_cut_into_many_small_chunks() -> None:
    engine = busy()
    for number in range(5):
        engine.submit(str(number), [number] * (400 + 100 * (number % 3)), max_tokens=1)
    steps = []
    while prompts := counts(engine):
        steps.append(prompts)
    assert all(sum(prompts.values()) == MOST for prompts in steps[:-1])
    assert sum(len(prompts) for prompts in steps) <= len(steps) + 5  # a chunk a step, and one more for each that ends


@pytest.mark.parametrize("chunks", [1, 2])
def test_no_step_has_more_chunks_than_allowed_and_a_short_prompt_still_takes_its_turn(chunks: int) -> None:
    engine = busy(max_prefill_chunks_per_step=chunks)
    for number in range(4):
        engine.submit(f"long {number}", [number] * 500, max_tokens=1)
    engine.step()
    engine.submit("short", [9] * 20, max_tokens=1)
    assert steps_to_first_tokens(engine, "short")[0] <= 2
    assert all(sum(count > 1 for _, count in step) <= chunks for step in engine.runner.schedules)


def test_a_long_prompt_whose_prefix_is_cached_counts_as_short() -> None:
    engine = busy(use_prefix_caching=True)
    prompt = list(range(900))
    engine.submit("warm", prompt, max_tokens=1)
    steps_to_first_tokens(engine, "warm")
    engine.submit("cold", [7] * 600, max_tokens=1)
    engine.step()
    engine.submit("again", [*prompt, 5], max_tokens=1)
    assert steps_to_first_tokens(engine, "again")[0] <= 2


def test_a_waiting_prompt_keeps_the_cached_blocks_that_it_found() -> None:
    engine = busy(num_blocks=100, use_prefix_caching=True, kv_reserve=0.0)
    prompt = list(range(480))
    engine.submit("warm", prompt, max_tokens=1)
    steps_to_first_tokens(engine, "warm")
    for number in range(3):  # they need every block that is left
        engine.submit(f"cold {number}", [number] * 320, max_tokens=1)
    engine.submit("again", [*prompt, 5], max_tokens=1)
    steps_to_first_tokens(engine, "again")
    assert engine.core.stats.num_cached_tokens >= 480


def test_prompts_with_a_common_prefix_compute_it_once_in_steps_that_end_within_blocks() -> None:
    engine = busy(block_size=64, use_prefix_caching=True)
    prefix = list(range(640))
    lengths = [90, 30, 60, 31]
    for number, length in enumerate(lengths):
        engine.submit(str(number), [*prefix, *[number] * length], max_tokens=1)
    steps_to_first_tokens(engine, *"0123")
    computed = sum(count for step in engine.runner.schedules[1:] for name, count in step if name in "0123")
    assert computed == 640 + sum(lengths)


def test_the_prompt_that_others_wait_for_goes_as_early_as_they_would() -> None:
    engine = busy(block_size=64, use_prefix_caching=True)
    prefix = list(range(128))
    engine.submit("other", [1] * 300, max_tokens=1)
    engine.submit("long", [*prefix, *[2] * 900], max_tokens=1)
    engine.submit("short", [*prefix, 3], max_tokens=1)
    assert counts(engine) == {"long": MOST}


def test_a_prompt_whose_prefix_another_has_computed_meanwhile_counts_as_short() -> None:
    engine = busy(use_prefix_caching=True)
    prefix = list(range(2 * MOST))
    engine.submit("long", [1] * 2000, max_tokens=1)
    engine.submit("first", prefix, max_tokens=1)
    engine.submit("same", [*prefix, 5], max_tokens=1)
    assert [counts(engine) for _ in range(4)] == [{"first": MOST}, {"long": MOST}] * 2
    engine.submit("other", [7] * 50, max_tokens=1)
    assert counts(engine) == {"same": 1, "other": MOST - 1}


def test_an_abort_of_the_prompt_that_others_wait_for_lets_the_next_one_compute() -> None:
    engine = busy(block_size=64, use_prefix_caching=True)
    prompt = list(range(200))
    for name in ("first", "second"):
        engine.submit(name, prompt, max_tokens=3)
    assert counts(engine) == {"first": MOST}
    engine.abort("first")
    assert counts(engine) == {"second": MOST}
    finish(engine, second=prompt)


def test_an_answer_that_lost_its_memory_goes_on_before_a_shorter_new_prompt() -> None:
    engine = busy(num_blocks=20, num_decodes=1, kv_reserve=0.0)
    for name in ("old", "young"):
        engine.submit(name, [1] * 100, max_tokens=150)
    while not engine.core.stats.num_preemptions:
        engine.step()
    engine.abort("old")
    engine.submit("new", [2] * 20, max_tokens=1)
    assert counts(engine) == {"young": MOST}
    assert counts(engine) == {"young": MOST}
    finish(engine, young=[1] * 100, new=[2] * 20)


def test_prompts_that_fill_the_pool_neither_stall_decodes_nor_wait_for_each_other() -> None:
    engine = busy(num_blocks=40, block_size=4, num_decodes=1, max_prefill_tokens_beside_decodes=5, kv_reserve=0.0)
    prompts = {f"prompt {number}": [number] * (30 + number) for number in range(6)}
    for name, prompt in prompts.items():
        engine.submit(name, prompt, max_tokens=20)
    outputs: dict[str, Any] = {}
    for number in range(1, 101):  # the oldest never waits, whatever becomes of the others
        collect(engine.step(), outputs)
        assert len(outputs["decode 0"]) == number
    assert engine.core.stats.num_preemptions > 0
    engine.abort("decode 0")
    for name, each in engine.run().items():
        outputs.setdefault(name, []).extend(each)
    for name, prompt in prompts.items():
        assert tokens_of(outputs[name]) == expected_tokens(prompt, 20)


def test_a_prompt_that_waits_holds_no_block_behind_enough_others() -> None:
    engine = busy()
    for number in range(MAX_PROMPTS_IN_TURN + 4):
        engine.submit(str(number), [number] * 400, max_tokens=1)
    engine.step()
    assert (engine.core.stats.num_waiting, engine.core.stats.num_running) == (4, 2 + MAX_PROMPTS_IN_TURN)


def test_more_prompts_are_admitted_while_a_step_has_tokens_for_them() -> None:
    engine = busy()
    for number in range(20):
        engine.submit(str(number), [number] * 2, max_tokens=1)
    assert counts(engine) == {str(number): 2 for number in range(20)}


def test_a_better_priority_goes_before_any_shorter_prompt() -> None:
    engine = busy(scheduler_policy="priority")
    engine.submit("short", [1] * 20, max_tokens=1, priority=1)
    engine.submit("long", [2] * 400, max_tokens=1, priority=0)
    engine.submit("better", [3] * 200, max_tokens=1, priority=-1)
    better, long, short = steps_to_first_tokens(engine, "better", "long", "short")
    assert (better, long, short) == (5, 13, 13)


def test_a_better_priority_needs_no_prompt_to_end_before_it_is_admitted() -> None:
    engine = busy(scheduler_policy="priority", num_blocks=4000)
    for number in range(20):
        engine.submit(str(number), [1] * 2000, max_tokens=1, priority=1)
    engine.step()
    engine.submit("better", [2] * 90, max_tokens=1, priority=0)
    assert steps_to_first_tokens(engine, "better") == [2]


def test_a_prompt_of_a_low_priority_rises_while_it_waits_for_tokens() -> None:
    engine = busy(scheduler_policy="priority")
    engine.submit("low", [1] * 96, max_tokens=1, priority=2)
    ended: list[str] = []
    while "low" not in ended:
        engine.submit(f"{len(engine.runner.schedules)}", [2] * MOST, max_tokens=1, priority=0)
        ended += [output.request_id for output in engine.step().outputs]
        assert len(engine.runner.schedules) < 3 * AGING_STEPS
    assert len(engine.runner.schedules) > 2 * AGING_STEPS


def test_prefill_first_computes_whole_prompts_in_a_pass_of_their_own() -> None:
    engine = busy(scheduler_policy="prefill_first")
    engine.submit("long", [1] * 200, max_tokens=1)
    engine.step()
    assert engine.runner.schedules[-2] == [("long", 200)]


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=MAX_PROMPTS_IN_TURN),
    caching=st.booleans(),
    kinds=st.integers(1, 8),
    policy=st.sampled_from(["fcfs", "decode_round_robin", "priority"]),
)
def test_each_prompt_ends_by_twice_the_steps_that_all_tokens_before_it_take(
    lengths: list[int], kinds: int, policy: str, *, caching: bool
) -> None:
    engine = busy(use_prefix_caching=caching, scheduler_policy=policy)
    for number, length in enumerate(lengths):
        engine.submit(str(number), [number % kinds] * length, max_tokens=1)
    steps = steps_to_first_tokens(engine, *map(str, range(len(lengths))))
    for number, step in enumerate(steps):
        assert step <= 2 * -(-sum(lengths[: number + 1]) // MOST) + 2
    assert max(steps) <= -(-sum(lengths) // MOST)


def test_the_same_requests_give_the_same_steps() -> None:
    def schedules() -> list[Any]:
        engine = busy(use_prefix_caching=True)
        for number in range(40):
            engine.submit(str(number), [number % 3] * (number * 37 % 211 + 1), max_tokens=number % 5 + 1)
            engine.step()
        finish(engine)
        return engine.runner.schedules

    assert schedules() == schedules()

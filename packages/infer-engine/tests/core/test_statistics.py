"""What a snapshot says, field by field."""

from collections.abc import Sequence
from typing import Any

import pytest

from infer_cache.block_pool import BlockPool
from infer_engine.protocol import EngineStats
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import FormulaEngine, ManualClock

NUM_BLOCKS = 20


def engine(*faults: Fault, windows: Any = (), **config: Any) -> FormulaEngine:
    clock = ManualClock()
    return FormulaEngine(
        num_blocks=NUM_BLOCKS,
        block_size=2,
        limits=SchedulerLimits(max_batch_size=2, max_num_batched_tokens=16, prefill_chunk_size=8, kv_reserve=0.0),
        faults=FaultPlan(list(faults), sleep=clock.sleep),
        clock=clock,
        windows=dict(windows),
        **config,
    )


def stats_after(served: FormulaEngine, *, num_steps: int) -> EngineStats:
    for _ in range(num_steps - 1):
        served.step()
    return served.step().stats


def test_a_core_that_did_nothing_counts_nothing() -> None:
    served = engine()
    expected = EngineStats(num_blocks=NUM_BLOCKS, num_free_blocks=NUM_BLOCKS)
    assert served.core.stats == served.step().stats == expected


def test_a_snapshot_is_the_cores_own() -> None:
    served = engine()
    served.submit("a", [1, 2, 3], max_tokens=3)
    assert served.step().stats == served.core.stats


def test_steps_are_those_that_computed_something() -> None:
    served = engine()
    served.step()
    served.submit("a", [1, 2, 3], max_tokens=3)
    assert stats_after(served, num_steps=5).num_steps == 3


def test_a_step_of_two_passes_is_one_step() -> None:
    served = engine(scheduler_policy="prefill_first")
    served.submit("a", [1, 2, 3], max_tokens=2)
    stats = served.step().stats
    assert (stats.num_steps, stats.num_step_tokens, len(served.runner.schedules)) == (1, 4, 2)


@pytest.mark.parametrize(
    ("num_tokens", "entry"),
    [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11), (32_768, 15), (32_769, 16), (70_000, 16)],
)
def test_a_step_is_counted_where_its_tokens_rounded_up_to_a_power_of_two_are(num_tokens: int, entry: int) -> None:
    served = FormulaEngine(
        num_blocks=-(-num_tokens // 4096),
        block_size=4096,
        limits=SchedulerLimits(max_batch_size=1, max_num_batched_tokens=num_tokens, prefill_chunk_size=num_tokens),
    )
    served.submit("a", [1] * num_tokens, max_tokens=1)
    assert [index for index, count in enumerate(served.step().stats.steps_by_tokens) if count] == [entry]


def test_steps_by_tokens_are_all_steps_that_computed_something() -> None:
    served = engine(scheduler_policy="prefill_first")
    served.submit("a", [1] * 11, max_tokens=4)
    stats = stats_after(served, num_steps=9)
    assert stats.steps_by_tokens[:4] == [2, 0, 1, 1]  # a chunk of 8; one of 3, and a decode; two decodes
    assert sum(stats.steps_by_tokens) == stats.num_steps


def test_a_snapshot_does_not_change_with_the_steps_after_it() -> None:
    served = engine()
    served.submit("a", [1, 2, 3], max_tokens=3)
    before = served.step().stats
    counted = list(before.steps_by_tokens)
    served.run()
    assert before.steps_by_tokens == counted != served.core.stats.steps_by_tokens


def test_requests_run_and_wait() -> None:
    served = engine()
    for name in "abc":
        served.submit(name, [1], max_tokens=3)
    assert served.core.stats.num_waiting == 3
    stats = served.step().stats
    assert (stats.num_running, stats.num_waiting) == (2, 1)


def test_blocks_and_usage_follow_what_requests_hold() -> None:
    served = engine()
    served.submit("a", [1] * 8, max_tokens=3)
    stats = served.step().stats
    assert (stats.num_blocks, stats.num_free_blocks) == (20, 16)
    assert stats.kv_usage == pytest.approx(4 / 20)
    stats = served.step().stats
    assert stats.num_free_blocks == 15
    assert stats.kv_usage == pytest.approx(5 / 20)
    assert stats_after(served, num_steps=2).kv_usage == 0


def test_usage_is_that_of_the_fullest_group_of_layers() -> None:
    served = engine(windows={4: 10})
    served.submit("a", [1] * 8, max_tokens=3)
    stats = served.step().stats
    assert (stats.num_blocks, stats.num_free_blocks) == (30, 22)
    assert stats.kv_usage == pytest.approx(4 / 10)


def test_idle_blocks_are_those_kept_for_the_prefix_in_them() -> None:
    served = engine(use_prefix_caching=True)
    served.submit("a", [1] * 8, max_tokens=1)
    assert served.step().stats.num_idle_blocks == 4
    assert served.core.stats.num_free_blocks == NUM_BLOCKS


def test_evictions_are_blocks_whose_prefix_was_given_up() -> None:
    served = engine(use_prefix_caching=True)
    for name, token in (("a", 1), ("b", 2)):
        served.submit(name, [token] * 30, max_tokens=1)
        served.run()
    assert served.core.stats.num_evictions == 2 * 15 - NUM_BLOCKS


def test_an_idle_step_counts_leaked_blocks() -> None:
    served = engine()
    served.paged_manager.groups[0].block_pool.allocate(3)
    assert served.core.step().stats.num_leaked_blocks == 3
    assert served.kv_cache_manager.reclaim() == 3
    assert served.core.step().stats.num_leaked_blocks == 0


class ForgetfulPool(BlockPool):
    """A pool that keeps the last block of whatever is given back."""

    def release(self, block_ids: Sequence[int], *, holder: str | None = None) -> None:
        super().release(block_ids[:-1], holder=holder)


@pytest.mark.covers("kv-cache/leaks-are-named")
def test_the_log_names_the_requests_whose_blocks_were_leaked_once(caplog: pytest.LogCaptureFixture) -> None:
    served = engine(use_prefix_caching=True)
    for name, max_tokens in (("a", 1), ("b", 5)):
        served.submit(name, [ord(name)] * 6, max_tokens=max_tokens)
    served.paged_manager.groups[0].block_pool = ForgetfulPool(NUM_BLOCKS, keeps_idle=True)
    while served.core.has_work:
        served.core.step()
    assert caplog.messages == []
    for _ in range(3):
        assert served.core.step().stats.num_leaked_blocks == 2
    [message] = caplog.messages
    assert message.startswith("2 KV blocks are leaked, which is a bug: 1 of `a` (1 cached), 1 of `b` (1 cached). ")
    assert message.endswith("not among the 6 free blocks that are kept for the prefixes in them.")


def test_preemptions_are_requests_put_back() -> None:
    served = engine(Fault(stage="grow", action="refuse", request_id="b", times=2))
    for name in "ab":
        served.submit(name, [1] * 4, max_tokens=8)
    served.run()
    assert served.core.stats.num_preemptions == 2


def test_prompt_and_cached_tokens_count_with_the_first_token() -> None:
    served = engine(use_prefix_caching=True)
    served.submit("a", [1] * 10, max_tokens=2)
    assert served.step().stats.num_prompt_tokens == 0
    assert served.step().stats.num_prompt_tokens == 10
    served.run()
    served.submit("b", [*[1] * 10, 2], max_tokens=2)
    stats = served.step().stats
    assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (21, 10)


def test_computed_tokens_are_prompts_decodes_and_recomputations() -> None:
    served = engine()
    served.submit("a", [1] * 10, max_tokens=3)
    assert [served.step().stats.num_step_tokens for _ in range(5)] == [8, 2, 1, 1, 0]
    assert served.core.stats.num_computed_tokens == 12
    disturbed = engine(Fault(stage="grow", action="refuse", times=1))
    for name in "ab":
        disturbed.submit(name, [1] * 4, max_tokens=3)
    disturbed.run()
    assert disturbed.core.stats.num_computed_tokens == 2 * 6 + 4


def test_generated_tokens_and_ends_are_counted_by_kind() -> None:
    served = engine(Fault(stage="sample", action="nan", request_id="c"))
    for name in "abcd":
        served.submit(name, [1], max_tokens=3)
    served.step()
    served.abort("b")
    served.run()
    stats = served.core.stats
    assert (stats.num_finished, stats.num_aborted, stats.num_failed) == (2, 1, 1)
    assert stats.num_generated_tokens == 3 + 1 + 3


@pytest.mark.parametrize(
    ("fault", "num_failed_passes"),
    [
        (Fault(stage="sample", action="nan", request_id="a"), 1),
        (Fault(stage="forward", request_id="a"), 1),
        (Fault(stage="forward", times=1), 1),
        (Fault(stage="schedule", times=1), 1),
        (Fault(stage="allocate", request_id="a"), 2),
    ],
)
def test_failed_steps_are_those_in_which_something_failed_even_if_no_request_failed(
    fault: Fault, num_failed_passes: int
) -> None:
    served = engine(fault)
    for name in "ab":
        served.submit(name, [1], max_tokens=3)
    served.run()
    assert served.core.stats.num_failed_passes == num_failed_passes


def test_an_abort_of_an_unknown_request_is_not_counted() -> None:
    served = engine()
    served.abort("unknown")
    assert served.core.stats.num_aborted == 0


def sleeper(**config: Any) -> FormulaEngine:
    """Return an engine whose parts take 1, 10 and 100 seconds each."""
    return engine(
        Fault(stage="schedule", action="sleep", seconds=1),
        Fault(stage="forward", action="sleep", seconds=10),
        Fault(stage="sample", action="sleep", seconds=100),
        **config,
    )


def test_times_are_those_of_the_latest_step_and_busy_time_is_all() -> None:
    served = sleeper()
    served.submit("a", [1] * 10, max_tokens=2)
    times = []
    for _ in range(3):
        stats = served.step().stats
        times.append((stats.schedule_s, stats.execute_s, stats.sample_s, stats.busy_s))
    assert times == [(1, 10, 0, 11), (1, 10, 100, 122), (1, 10, 100, 233)]


def test_times_of_a_step_of_two_passes_are_their_sums() -> None:
    served = sleeper(scheduler_policy="prefill_first")
    served.submit("a", [1], max_tokens=3)
    stats = served.step().stats
    assert (stats.schedule_s, stats.execute_s, stats.sample_s, stats.busy_s) == (2, 20, 200, 222)


def test_a_step_with_nothing_to_compute_forgets_the_times_of_the_one_before() -> None:
    served = sleeper()
    served.submit("a", [1], max_tokens=1)
    served.step()
    stats = served.step().stats
    assert (stats.execute_s, stats.sample_s, stats.num_step_tokens) == (0, 0, 0)

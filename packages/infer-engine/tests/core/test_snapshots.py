"""What a snapshot of the batch shows, and when there is one."""

from typing import Any

import pytest

from infer_engine.messages import Inspect
from infer_engine.protocol.snapshot import MAX_BLOCKS_SHOWN, MAX_SEQUENCES_SHOWN
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.formula import FormulaEngine

SHARED = [1, 2, 3, 4]


def engine(*, num_blocks: int = 16, batch: int = 4, **config: Any) -> FormulaEngine:
    return FormulaEngine(
        num_blocks=num_blocks,
        block_size=2,
        limits=SchedulerLimits(max_batch_size=batch, max_num_batched_tokens=32, prefill_chunk_size=4, kv_reserve=0.0),
        **config,
    )


def test_a_step_that_was_not_inspected_has_none() -> None:
    served = engine()
    assert served.step().snapshot is None
    served.inspect()
    assert served.step().snapshot is None


def test_who_asks_twice_gets_one() -> None:
    served = engine()
    served.core.handle(Inspect())
    served.core.handle(Inspect())
    assert [served.step().snapshot is None for _ in range(2)] == [False, True]


def test_an_idle_step_shows_an_engine_without_requests() -> None:
    shown = engine().inspect()
    assert (shown.sequences, shown.num_blocks, shown.block_size, shown.holders) == ([], 16, 2, [0] * 16)
    assert shown.stats.num_blocks == 16


@pytest.mark.covers("requests/states")
def test_it_is_of_the_moment_after_the_step() -> None:
    served = engine()
    served.submit("a", [5, 6, 7], max_tokens=4)
    shown = served.inspect()
    assert shown.stats == served.core.stats
    [sequence] = shown.sequences
    assert (sequence.num_prompt_tokens, sequence.num_computed_tokens, sequence.num_completion_tokens) == (3, 3, 1)
    assert sequence.block_ids == list(served.paged_manager.blocks("a"))


def test_those_that_run_come_first_and_then_those_that_wait_in_their_order() -> None:
    served = engine(batch=2, scheduler_policy="priority")
    served.submit("decodes", [1], max_tokens=9)
    served.step()
    served.submit("late", [2], max_tokens=9, priority=9)
    served.submit("long", [3] * 9, max_tokens=9)
    served.submit("soon", [4], max_tokens=9, priority=3)
    shown = served.inspect()
    assert [(each.request_id, each.state) for each in shown.sequences] == [
        ("decodes", "decode"),
        ("long", "prefill"),
        ("soon", "waiting"),
        ("late", "waiting"),
    ]
    assert [len(each.block_ids) for each in shown.sequences] == [1, 5, 0, 0]


def test_a_preempted_request_waits_with_its_tokens_and_without_blocks() -> None:
    served = engine(num_blocks=8)
    for name in "ab":
        served.submit(name, [ord(name)] * 4, max_tokens=8)
    while not (shown := served.inspect()).stats.num_preemptions:
        pass
    first, second = shown.sequences
    assert (first.state, second.request_id, second.state) == ("decode", "b", "waiting")
    assert (second.block_ids, second.num_computed_tokens) == ([], 0)
    assert second.num_completion_tokens > 0


def test_a_shared_prefix_is_held_by_two() -> None:
    served = engine(use_prefix_caching=True)
    for name in "ab":
        served.submit(name, [*SHARED, ord(name)], max_tokens=6)
    served.step()
    shown = served.inspect()
    first, second = (each.block_ids for each in shown.sequences)
    assert first[:2] == second[:2]
    assert set(first[2:]).isdisjoint(second[2:])
    assert [shown.holders[block_id] for block_id in first] == [2, 2] + [1] * (len(first) - 2)
    assert {each.request_id: each.num_cached_tokens for each in shown.sequences} == {"a": 0, "b": 4}


def test_blocks_that_are_kept_for_their_prefix_are_told_from_free_ones() -> None:
    served = engine(use_prefix_caching=True)
    served.submit("a", SHARED, max_tokens=1)
    served.run()
    assert sorted(served.inspect().holders) == [-1, -1] + [0] * 14


def test_the_blocks_shown_are_of_the_layers_that_keep_everything() -> None:
    served = engine(windows={4: 9})
    served.submit("a", list(range(12)), max_tokens=3)
    for _ in range(3):
        shown = served.inspect()
    assert (shown.num_blocks, len(shown.sequences[0].block_ids)) == (16, 6)


def test_a_slot_is_held_whole_by_its_request() -> None:
    served = engine(kv_cache_backend="contiguous", use_prefix_caching=None)
    served.submit("a", [1, 2, 3], max_tokens=3)
    shown = served.inspect()
    assert len(shown.sequences[0].block_ids) == 4
    assert [index for index, count in enumerate(shown.holders) if count] == shown.sequences[0].block_ids
    assert (shown.num_blocks, max(shown.holders)) == (16, 1)


def test_a_static_batch_is_shown_while_it_forms() -> None:
    served = engine(
        batching_mode="static", kv_cache_backend="contiguous", batch_wait_timeout_s=9, use_prefix_caching=None
    )
    served.submit("a", [1], max_tokens=2)
    assert [each.state for each in served.inspect().sequences] == ["waiting"]


@pytest.mark.parametrize("num_waiting", [MAX_SEQUENCES_SHOWN - 1, MAX_SEQUENCES_SHOWN + 9])
def test_a_snapshot_stays_within_its_limits(num_waiting: int) -> None:
    served = engine(num_blocks=MAX_BLOCKS_SHOWN + 1, batch=1)
    for number in range(1 + num_waiting):
        served.submit(str(number), [1], max_tokens=9)
    shown = served.inspect()
    assert (len(shown.holders), shown.num_blocks) == (MAX_BLOCKS_SHOWN, MAX_BLOCKS_SHOWN + 1)
    assert [each.request_id for each in shown.sequences] == [
        str(number) for number in range(min(1 + num_waiting, MAX_SEQUENCES_SHOWN))
    ]

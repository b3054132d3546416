"""The statistics and snapshots of several cores, as one engine shows them."""

import pytest

from infer_engine.protocol import BatchSnapshot, EngineStats
from infer_engine.protocol.snapshot import MAX_BLOCKS_SHOWN, MAX_SEQUENCES_SHOWN, SequenceSnapshot
from infer_engine.protocol.stats import NUM_STEP_SIZES
from infer_engine.replicas.combining import add_counts, combine_snapshots, combine_stats


def sequence(name: str, *block_ids: int, state: str = "decode") -> SequenceSnapshot:
    return SequenceSnapshot(
        request_id=name,
        state=state,  # type: ignore[arg-type]  # one of the three words
        num_prompt_tokens=1,
        num_computed_tokens=1,
        num_cached_tokens=0,
        num_completion_tokens=0,
        block_ids=list(block_ids),
    )


def snapshot(*sequences: SequenceSnapshot, num_blocks: int = 4) -> BatchSnapshot:
    held = [block for each in sequences for block in each.block_ids]
    holders = [held.count(block) for block in range(min(num_blocks, MAX_BLOCKS_SHOWN))]
    return BatchSnapshot(
        stats=EngineStats(), sequences=list(sequences), block_size=16, num_blocks=num_blocks, holders=holders
    )


def test_statistics_are_summed_and_the_step_is_the_latest() -> None:
    small = [1, *[0] * (NUM_STEP_SIZES - 1)]
    one = EngineStats(num_steps=3, num_running=1, num_blocks=8, num_free_blocks=6, kv_usage=0.25, steps_by_tokens=small)
    two = EngineStats(num_steps=5, num_running=2, num_blocks=24, kv_usage=0.5, execute_s=0.5, steps_by_tokens=small)
    both = combine_stats([one, two], latest=one)
    assert (both.num_steps, both.num_running, both.num_blocks, both.num_free_blocks) == (8, 3, 32, 6)
    assert both.steps_by_tokens[0] == 2
    assert both.kv_usage == (0.25 * 8 + 0.5 * 24) / 32
    assert both.execute_s == 0.0
    assert both.replicas == [one, two]
    assert combine_stats([one, two], latest=two).execute_s == 0.5


def test_every_count_since_the_start_is_kept_when_a_core_is_replaced() -> None:
    """A new field must be summed, or be named here as one of the moment."""
    of_the_moment = {
        *("num_leaked_blocks", "num_step_tokens", "schedule_s", "execute_s", "sample_s", "num_running", "num_waiting"),
        *("num_blocks", "num_free_blocks", "num_idle_blocks", "kv_usage", "num_replaced", "replicas"),
        *("num_state_slots", "num_free_state_slots", "num_kept_states", "prefill_tokens_beside_decodes"),
    }
    for name in EngineStats.__struct_fields__:
        if name in of_the_moment:
            continue
        none = getattr(EngineStats(), name)
        value = [1] * len(none) if isinstance(none, list) else 7
        lost = EngineStats(**{name: value})  # type: ignore[arg-type]  # by name
        assert getattr(add_counts(lost, EngineStats()), name) == value, name
    assert add_counts(EngineStats(num_running=3, num_blocks=8), EngineStats()).num_running == 0


@pytest.mark.covers("replicas/batch-view")
def test_blocks_of_replicas_are_shown_one_after_the_other() -> None:
    first = snapshot(sequence("a", 0, 3), sequence("b", 0), sequence("w", state="waiting"))
    second = snapshot(sequence("c", 1, 2))
    both = combine_snapshots({0: first, 1: second}, stats=EngineStats())
    assert both.num_blocks == 8
    assert both.holders == [2, 0, 0, 1, 0, 1, 1, 0]
    shown = [(each.request_id, each.replica, each.block_ids) for each in both.sequences]
    assert shown == [("a", 0, [0, 3]), ("b", 0, [0]), ("c", 1, [5, 6]), ("w", 0, [])]


def test_each_replica_has_its_share_of_the_blocks_that_are_shown() -> None:
    many = MAX_BLOCKS_SHOWN + 100
    share = MAX_BLOCKS_SHOWN // 2
    large = [snapshot(sequence(name, share - 1, share, many - 1), num_blocks=many) for name in ("a", "b")]
    both = combine_snapshots(dict(enumerate(large)), stats=EngineStats())
    assert len(both.holders) == MAX_BLOCKS_SHOWN
    assert (both.holders[share - 1], both.holders[-1]) == (1, 1)
    ids = [each.block_ids for each in both.sequences]
    assert ids[0][0] == share - 1
    assert ids[1][0] == MAX_BLOCKS_SHOWN - 1
    hidden = [block for each in ids for block in each[1:]]
    assert min(hidden) >= MAX_BLOCKS_SHOWN
    assert len(set(hidden)) == 4


def test_sequences_that_are_shown_are_limited() -> None:
    full = snapshot(*(sequence(f"r{i}") for i in range(MAX_SEQUENCES_SHOWN)))
    assert len(combine_snapshots({0: full, 1: full}, stats=EngineStats()).sequences) == MAX_SEQUENCES_SHOWN

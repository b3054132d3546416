"""Joins the statistics and snapshots of several cores to those of one engine."""

from collections.abc import Mapping, Sequence

import msgspec

from infer_engine.protocol import BatchSnapshot, EngineStats
from infer_engine.protocol.snapshot import MAX_BLOCKS_SHOWN, MAX_SEQUENCES_SHOWN, SequenceSnapshot

_SUMS_SINCE_START = (
    "num_steps",
    "num_preemptions",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_computed_tokens",
    "num_generated_tokens",
    "num_finished",
    "num_aborted",
    "num_failed",
    "num_failed_passes",
    "num_evictions",
    "num_state_evictions",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "busy_s",
)
_SUMS_OF_COLUMNS = ("steps_by_tokens", "num_accepted_by_position")
_SUMS = (
    *_SUMS_SINCE_START,
    *("num_leaked_blocks", "num_running", "num_waiting", "num_blocks", "num_free_blocks", "num_idle_blocks"),
    *("num_state_slots", "num_free_state_slots", "num_kept_states"),
)


def add_counts(earlier: EngineStats, core: EngineStats) -> EngineStats:
    """Return the statistics of `core` with the counts since the start of `earlier` cores in its place."""
    sums: dict[str, object] = {name: getattr(earlier, name) + getattr(core, name) for name in _SUMS_SINCE_START}
    sums |= {name: _sum_columns([getattr(earlier, name), getattr(core, name)]) for name in _SUMS_OF_COLUMNS}
    return msgspec.structs.replace(core, **sums)


def combine_stats(replicas: Sequence[EngineStats], *, latest: EngineStats, num_replaced: int = 0) -> EngineStats:
    """Return the statistics of all `replicas` together; the step is that of `latest`."""
    sums = {name: sum([getattr(stats, name) for stats in replicas]) for name in _SUMS}
    counted = replicas or [EngineStats()]
    columns = {name: _sum_columns([getattr(stats, name) for stats in counted]) for name in _SUMS_OF_COLUMNS}
    held = sum(stats.kv_usage * stats.num_blocks for stats in replicas)
    return msgspec.structs.replace(
        latest,
        **sums,
        **columns,
        kv_usage=held / max(1, sums["num_blocks"]),
        num_replaced=num_replaced,
        replicas=list(replicas),
    )


def _sum_columns(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def combine_snapshots(snapshots: Mapping[int, BatchSnapshot], *, stats: EngineStats) -> BatchSnapshot:
    """Return one snapshot of all replicas, whose blocks are shown one replica after the other.

    Each replica has an equal share of the blocks that are shown. Blocks beyond it have numbers beyond all of those.
    """
    share = MAX_BLOCKS_SHOWN // max(1, len(snapshots))
    holders: list[int] = []
    running: list[SequenceSnapshot] = []
    waiting: list[SequenceSnapshot] = []
    hidden = MAX_BLOCKS_SHOWN
    for replica, snapshot in sorted(snapshots.items()):
        first, num_shown = len(holders), min(share, len(snapshot.holders))
        holders += snapshot.holders[:num_shown]
        for sequence in snapshot.sequences:
            block_ids = [
                first + block if block < num_shown else hidden + block - num_shown for block in sequence.block_ids
            ]
            moved = msgspec.structs.replace(sequence, block_ids=block_ids, replica=replica)
            (waiting if sequence.state == "waiting" else running).append(moved)
        hidden += snapshot.num_blocks - num_shown
    return BatchSnapshot(
        stats=stats,
        sequences=[*running, *waiting][:MAX_SEQUENCES_SHOWN],
        block_size=next(iter(snapshots.values())).block_size,
        num_blocks=sum(snapshot.num_blocks for snapshot in snapshots.values()),
        holders=holders,
    )

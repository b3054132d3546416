"""`Inspection`: the snapshots of several cores, until there is one of each."""

from collections.abc import Iterable

from infer_engine.protocol import BatchSnapshot, EngineStats
from infer_engine.replicas.combining import combine_snapshots


class Inspection:
    """Gathers a snapshot from each core that was asked for one. Not thread-safe."""

    def __init__(self) -> None:
        """Ask nobody yet."""
        self._snapshots: dict[int, BatchSnapshot | None] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a core that has been asked has yet to answer."""
        return bool(self._snapshots)

    @property
    def has_lost_all(self) -> bool:
        """Whether a snapshot is wanted, and there is no core left that was asked for one."""
        return self._snapshots is not None and not self._snapshots

    def begin(self, replicas: Iterable[int]) -> None:
        """Wait for the snapshots of `replicas`."""
        self._snapshots = dict.fromkeys(replicas)

    def leave_out(self, replica: int) -> None:
        """Wait no longer for a replica, whose core is lost or retires."""
        if self._snapshots is not None:
            self._snapshots.pop(replica, None)

    def add(self, replica: int, snapshot: BatchSnapshot | None) -> None:
        """Take what a result of a replica brings."""
        if self._snapshots is not None and snapshot is not None:
            self._snapshots[replica] = snapshot

    def take(self, stats: EngineStats) -> BatchSnapshot | None:
        """Return the snapshot of all, with `stats`, once the last one is there, and end; None before."""
        if not self._snapshots:
            return None
        taken = {replica: snapshot for replica, snapshot in self._snapshots.items() if snapshot is not None}
        if len(taken) < len(self._snapshots):
            return None
        self._snapshots = None
        return combine_snapshots(taken, stats=stats)

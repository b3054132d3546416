"""`SharedSnapshots`: one snapshot of the engine for all pages that ask at about the same time.

Each snapshot costs the engine a message between two steps; a hundred open pages must not cost a hundred messages.
"""

import asyncio

from infer_engine.protocol import BatchSnapshot, Engine

MAX_AGE_S = 0.05


class SharedSnapshots:
    """Takes snapshots of an engine's batch, one at a time."""

    def __init__(self, engine: Engine, *, max_age_s: float = MAX_AGE_S) -> None:
        """Use `engine` on its event loop; a snapshot that is younger than `max_age_s` seconds is returned again."""
        self._engine = engine
        self._max_age_s = max_age_s
        self._task: asyncio.Task[BatchSnapshot] | None = None
        self._arrived_s = 0.0

    async def latest(self) -> BatchSnapshot:
        """Return the latest snapshot if it is young enough, else the pending one, else the next one.

        Raises:
            EngineUnavailableError: the engine is stopped or dead.
        """
        if self._task is None or (self._task.done() and not self._is_fresh(self._task)):
            self._task = asyncio.create_task(self._inspect())
            self._task.add_done_callback(_retrieve_exception)
        # If one caller is cancelled, the others still need the snapshot.
        return await asyncio.shield(self._task)

    async def _inspect(self) -> BatchSnapshot:
        snapshot = await self._engine.inspect()
        self._arrived_s = asyncio.get_running_loop().time()
        return snapshot

    def _is_fresh(self, task: asyncio.Task[BatchSnapshot]) -> bool:
        """Return whether the result of `task`, which is done, can be returned again; a failure cannot."""
        if task.cancelled() or task.exception() is not None:
            return False
        return asyncio.get_running_loop().time() - self._arrived_s < self._max_age_s


def _retrieve_exception(task: asyncio.Task[BatchSnapshot]) -> None:
    """Retrieve the exception of `task`, whose callers may all be cancelled: asyncio logs those never retrieved."""
    if not task.cancelled():
        task.exception()

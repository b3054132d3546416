"""`SharedSnapshots`: one look into the engine for all who look at once. Knows time; knows no HTTP.

Each look costs the engine a message between two steps; a hundred open pages must not cost it a hundred.
"""

import asyncio

from infer_engine.protocol import BatchSnapshot, Engine

MAX_AGE_S = 0.05


class SharedSnapshots:
    """Snapshots of an engine's batch, at most one of them under way at a time."""

    def __init__(self, engine: Engine, *, max_age_s: float = MAX_AGE_S) -> None:
        """Ask `engine`, from its event loop; a snapshot younger than `max_age_s` seconds is handed out again."""
        self._engine = engine
        self._max_age_s = max_age_s
        self._look: asyncio.Task[BatchSnapshot] | None = None
        self._arrived_s = 0.0

    async def latest(self) -> BatchSnapshot:
        """Return the latest snapshot if it is young enough, or the one under way, or the next one.

        Raises:
            EngineUnavailableError: the engine is stopped or dead.
        """
        if self._look is None or (self._look.done() and not self._is_fresh(self._look)):
            self._look = asyncio.create_task(self._inspect())
            self._look.add_done_callback(_retrieve)
        # One caller's end must not end the look of the others.
        return await asyncio.shield(self._look)

    async def _inspect(self) -> BatchSnapshot:
        snapshot = await self._engine.inspect()
        self._arrived_s = asyncio.get_running_loop().time()
        return snapshot

    def _is_fresh(self, look: asyncio.Task[BatchSnapshot]) -> bool:
        """Whether `look`, which is done, can be handed out again; a failure cannot."""
        if look.cancelled() or look.exception() is not None:
            return False
        return asyncio.get_running_loop().time() - self._arrived_s < self._max_age_s


def _retrieve(look: asyncio.Task[BatchSnapshot]) -> None:
    """Look at the failure of a look whose callers have all gone; asyncio complains of those that nobody saw."""
    if not look.cancelled():
        look.exception()

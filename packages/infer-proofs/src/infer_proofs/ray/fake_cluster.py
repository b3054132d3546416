"""A cluster in one process: replicas over scripted cores, and a handle that reaches them as Ray Serve's does."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from infer_engine.ipc.process_messages import CoreReady
from infer_engine.ipc.thread_client import ThreadCoreClient
from infer_engine.protocol import EngineConfig
from infer_proofs.engine.cores import GIVE_UP_S, INFO, GatedCore, ScriptedCore
from infer_ray.replica import CoreReplica
from infer_ray.watching import report_replicas
from infer_ray.wire import decode_description


class ScriptedCoreClient(ThreadCoreClient):
    """Client of a scripted core, which has loaded; `gate` allows its steps."""

    def __init__(self, core: ScriptedCore) -> None:
        """Step `core`."""
        self.gate = GatedCore(core)
        self.ready = CoreReady(info=INFO, stats=core.stats)
        super().__init__(self.gate)


class ScriptedReplica(CoreReplica):
    """A replica over a scripted core; make it on an event loop.

    Attributes:
        core: the core.
        client: connects the replica with it.
        is_routed: whether new calls reach the replica; others wait, as Ray Serve's do.
        death: ends all calls when it is set.
        has_died: whether the replica has ended its process, so to speak.
        calls: unfinished calls of each method without a stream.
        num_calls: number of calls of each method that have begun.
    """

    def __init__(self, replica_id: str, config: EngineConfig) -> None:  # not async: nothing is loaded
        """Start the core."""
        self.core = ScriptedCore(max_batch_size=20)
        self.client = ScriptedCoreClient(self.core)
        self.is_routed = asyncio.Event()
        self.is_routed.set()
        self.death = asyncio.Event()
        self.has_died = False
        self.calls: Counter[str] = Counter()
        self.num_calls: Counter[str] = Counter()
        self._use(config, self.client, replica_id=replica_id)

    @property
    def num_sessions(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    def _die(self) -> None:
        self.has_died = True


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds.

    Raises:
        TimeoutError: it does not, for long.
    """
    async with asyncio.timeout(GIVE_UP_S):
        while not condition():  # noqa: ASYNC110 - threads tell no events
            await asyncio.sleep(0.001)


class FakeCluster:
    """Replicas by id. All methods are for the event loop.

    Attributes:
        app_name: name of the application, unlike those of other clusters.
        handle: reaches the replicas.
    """

    def __init__(self) -> None:
        """Start without replicas."""
        self.app_name = uuid.uuid4().hex
        self.replicas: dict[str, ScriptedReplica] = {}
        self.handle: Any = _Handle(self.replicas)

    def add(self, replica_id: str, config: EngineConfig | None = None) -> ScriptedReplica:
        """Start a replica, and say so to all who watch."""
        replica = self.replicas[replica_id] = ScriptedReplica(replica_id, config or EngineConfig())
        self.report()
        return replica

    def take_away(self, replica_id: str) -> None:
        """Route no more calls to a replica; it goes on with those that it has."""
        self.replicas[replica_id].is_routed.clear()
        self.report()

    def kill(self, replica_id: str) -> None:
        """End all calls of a replica, and fail new ones; nobody is told."""
        self.replicas[replica_id].death.set()

    def revive(self, replica_id: str) -> None:
        """Let calls of a replica reach it again."""
        self.replicas[replica_id].death.clear()

    def report(self) -> None:
        """Tell who watches which replicas there are."""
        report_replicas(
            self.app_name,
            {
                replica_id: decode_description(replica.record_replica_metadata())
                for replica_id, replica in self.replicas.items()
                if replica.is_routed.is_set()
            },
        )

    def close(self) -> None:
        """End all cores."""
        for replica in self.replicas.values():
            replica.client.gate.allow()
            replica.client.stop()


class _Handle:
    """Handle of the deployment: `handle.METHOD.remote(REPLICA_ID, ...)`, and `handle.options(stream=True)`."""

    def __init__(self, replicas: dict[str, ScriptedReplica]) -> None:
        self._replicas = replicas
        self.results = _Method(self, "results")
        self.run = _Method(self, "run")
        self.tell = _Method(self, "tell")
        self.describe = _Method(self, "describe")

    def options(self, *, stream: bool) -> "_Handle":
        assert stream
        return self

    def replica(self, replica_id: str | None) -> ScriptedReplica:
        return next(iter(self._replicas.values())) if replica_id is None else self._replicas[replica_id]


class _Method:
    def __init__(self, handle: _Handle, name: str) -> None:
        self._handle = handle
        self._name = name

    def remote(self, replica_id: str | None, *arguments: Any) -> Any:
        replica = self._handle.replica(replica_id)
        method = getattr(replica, self._name)
        replica.num_calls[self._name] += 1
        if self._name == "results":
            return _Frames(replica, method(replica_id, *arguments))
        replica.calls[self._name] += 1
        call = asyncio.get_running_loop().create_task(_call(replica, lambda: method(replica_id, *arguments)))
        call.add_done_callback(lambda _: replica.calls.subtract([self._name]))
        return call


class _Frames:
    """The frames of a stream, until the replica dies."""

    def __init__(self, replica: ScriptedReplica, frames: AsyncIterator[bytes]) -> None:
        self._replica = replica
        self._frames: Any = frames
        self._is_new = True

    def __aiter__(self) -> "_Frames":
        return self

    async def __anext__(self) -> bytes:
        frame: bytes | None = await _call(self._replica, lambda: anext(self._frames, None), is_new=self._is_new)
        self._is_new = False
        if frame is None:
            raise StopAsyncIteration
        return frame

    def cancel(self) -> None:
        asyncio.get_running_loop().create_task(self._frames.aclose())


async def _call(replica: ScriptedReplica, start: Callable[[], Awaitable[Any]], *, is_new: bool = True) -> Any:
    """Return the result of a call, which starts when it is routed; fail if the replica dies."""

    async def routed() -> Any:
        if is_new:
            await replica.is_routed.wait()
        return await start()

    death = asyncio.create_task(replica.death.wait())
    call = asyncio.create_task(routed())
    try:
        await asyncio.wait({death, call}, return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            raise RuntimeError("The actor died.")
        return await call
    finally:
        death.cancel()
        call.cancel()

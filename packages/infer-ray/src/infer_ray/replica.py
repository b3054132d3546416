"""`CoreReplica`: the deployment whose replicas compute. Each has a core in a process of its own.

    ingress A ══ results ══ one stream for all its requests ═╗
              ── run ────── one call for each request ──────╫── CoreReplica ══ core process
    ingress B ══ results ═══════════════════════════════════╝

A call of `run` lasts as long as its request and carries nothing back; whoever cancels it aborts the request. Ray Serve
counts these calls: it scales by their number, and lets a replica that it takes away finish them.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, Protocol

import msgspec
from ray import serve

from infer_engine.ipc.core_client import CoreCallbacks, CoreClient
from infer_engine.ipc.process_client import ProcessCoreClient
from infer_engine.ipc.process_messages import CoreReady
from infer_engine.messages import Abort, Finish, Inspect, StepResult
from infer_engine.protocol import EngineConfig
from infer_ray.session import Session
from infer_ray.wire import Opened, ReplicaDescription, decode_message, decode_submission, encode_description, split_id

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_S = 30.0
"""Silence of an ingress after which its requests are aborted."""
EXIT_LOST_CORE = 1


class LoadedCore(CoreClient, Protocol):
    """Client of a core that has loaded."""

    @property
    def ready(self) -> CoreReady:
        """The model that it has loaded."""


class CoreReplica:
    """A core for all ingresses. Every call names the replica that it is for first, for `infer_ray.addressing`."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        """Load the model; `config` has the fields of an `EngineConfig`.

        Raises:
            CheckpointUnusableError: the checkpoint is missing, damaged or of no known kind.
            ValueError: the configuration asks for more than the model, the device or the memory has.
            EngineStartError: the core's process ended while it loaded.
        """
        parsed = msgspec.convert(config, EngineConfig)
        core = await asyncio.to_thread(ProcessCoreClient, parsed)
        self._use(parsed, core, replica_id=serve.get_replica_context().replica_id.unique_id)

    def _use(self, config: EngineConfig, core: LoadedCore, *, replica_id: str) -> None:
        self._config = config
        self._replica_id = replica_id
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, Session] = {}
        self._core = core
        self._stats = core.ready.stats
        core.start(CoreCallbacks(on_result=self._on_result, on_lost=lambda _: self._die(), on_ended=self._die))

    def record_replica_metadata(self) -> dict[str, str]:
        """Return what ingresses learn of this replica as soon as it runs."""
        return encode_description(ReplicaDescription(config=self._config, info=self._core.ready.info))

    async def describe(self, _replica_id: str | None) -> dict[str, str]:
        """Return the same to a caller that waits for a replica."""
        return self.record_replica_metadata()

    async def results(self, replica_id: str, session_id: str) -> AsyncIterator[bytes]:
        """Open a session, and yield its frames until the ingress or this replica ends it."""
        self._check_address(replica_id)
        session = self._sessions[session_id] = Session(session_id)
        session.send(Opened(self._stats))
        try:
            while (frame := await session.next_frame()) is not None:
                yield frame
        finally:
            self._close(session)

    async def run(self, replica_id: str, session_id: str, message: bytes) -> None:
        """Queue a sequence, a `Submit`, and return when it has ended."""
        self._check_address(replica_id)
        session = self._sessions.get(session_id)
        if session is None:
            return  # the ingress has gone
        submit = decode_submission(message, session_id)
        _, local_id = split_id(submit.request_id)
        end = session.begin(local_id)
        self._core.send(submit)
        try:
            await end.wait()
        finally:
            if session.end(local_id):
                self._core.send(Abort(request_id=submit.request_id))

    async def tell(self, replica_id: str, session_id: str, message: bytes) -> None:
        """Take a `Finish`, an `Inspect` or a `KeepAlive`."""
        self._check_address(replica_id)
        session = self._sessions.get(session_id)
        if session is None:
            return
        session.heard_s = monotonic()
        told = decode_message(message, session_id)
        match told:
            case Finish(request_id=request_id):
                session.end(split_id(request_id)[1])
                self._core.send(told)
            case Inspect():
                session.wants_snapshot = True
                self._core.send(told)

    async def check_health(self) -> None:
        """End this process if the core is stuck, and the sessions of ingresses that are silent."""
        age_s = self._core.step_age_s()
        if age_s is not None and age_s > self._config.step_timeout_s:
            logger.error("A step takes longer than %g s. %s", self._config.step_timeout_s, self._core.describe_step())
            self._core.abandon()
            self._die()
        now_s = monotonic()
        for session in tuple(self._sessions.values()):
            if now_s - session.heard_s > SESSION_TIMEOUT_S:
                logger.warning("An ingress has been silent for %g s; its requests are aborted.", SESSION_TIMEOUT_S)
                self._close(session)

    def _check_address(self, replica_id: str) -> None:
        """Refuse a call for another replica: it would be lost, and its ingress would wait for ever."""
        if replica_id != self._replica_id:
            raise RuntimeError(f"A call for the Ray replica {replica_id} has reached {self._replica_id}.")

    def _on_result(self, result: StepResult) -> None:
        """Pass a result from the thread that reads results to the event loop."""
        self._loop.call_soon_threadsafe(self._deliver, result)

    def _deliver(self, result: StepResult) -> None:
        self._stats = result.stats
        for session in self._sessions.values():
            session.take(result)

    def _close(self, session: Session) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            for request_id in session.close():
                self._core.send(Abort(request_id=request_id))

    def _die(self) -> None:
        """End this process, and the replica with it: Ray Serve starts another one.

        A replica that lives without a core would answer at once, and so attract requests.
        """
        logging.shutdown()
        sys.stderr.flush()
        os._exit(EXIT_LOST_CORE)

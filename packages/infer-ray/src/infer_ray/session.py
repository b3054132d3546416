"""`Session`: the requests that one ingress has in a replica, and the frames that it gets."""

import asyncio
from time import monotonic

import msgspec

from infer_engine.ipc.chunked_payloads import split_into_chunks
from infer_engine.messages import StepResult, TokenOutput
from infer_ray.wire import Accepted, FromReplica, global_id, split_id

STATS_INTERVAL_S = 0.25
"""How often an ingress gets statistics of steps that computed nothing for it."""


class Session:
    """The requests of one ingress. Used on one event loop.

    Attributes:
        session_id: unique among all sessions, without slashes.
        heard_s: when the ingress was last heard of, on the monotonic clock.
        wants_snapshot: whether the ingress waits for a snapshot of the batch.
    """

    def __init__(self, session_id: str) -> None:
        """Start without requests."""
        self.session_id = session_id
        self.heard_s = monotonic()
        self.wants_snapshot = False
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._encoder = msgspec.msgpack.Encoder()
        self._ends: dict[str, asyncio.Event] = {}
        self._sent_s = 0.0

    def begin(self, request_id: str) -> asyncio.Event:
        """Return what is set when a request ends, and tell the ingress that it is here."""
        end = self._ends[request_id] = asyncio.Event()
        self.send(Accepted(request_id))
        return end

    def end(self, request_id: str) -> bool:
        """Take note that a request has ended; return whether it was running."""
        end = self._ends.pop(request_id, None)
        if end is not None:
            end.set()
        return end is not None

    def take(self, result: StepResult) -> None:
        """Send what a step's result has for this ingress."""
        outputs = [mine for output in result.outputs if (mine := self._mine(output)) is not None]
        admitted = [local for each in result.admitted for owner, local in [split_id(each)] if owner == self.session_id]
        snapshot = result.snapshot if self.wants_snapshot else None
        is_idle = result.stats.num_running + result.stats.num_waiting == 0
        now_s = monotonic()
        if not (outputs or admitted or snapshot or is_idle or now_s - self._sent_s > STATS_INTERVAL_S):
            return
        self._sent_s = now_s
        self.wants_snapshot &= snapshot is None
        part = StepResult(outputs=outputs, admitted=admitted, stats=result.stats, snapshot=snapshot)
        for message in split_into_chunks(part):
            self.send(message)

    def send(self, message: FromReplica) -> None:
        """Send a frame."""
        self._frames.put_nowait(self._encoder.encode(message))

    async def next_frame(self) -> bytes | None:
        """Return the next frame, None after the last one."""
        return await self._frames.get()

    def close(self) -> list[str]:
        """End all requests and the stream of frames; return the global ids of the requests."""
        running = list(self._ends)
        for request_id in running:
            self.end(request_id)
        self._frames.put_nowait(None)
        return [global_id(self.session_id, request_id) for request_id in running]

    def _mine(self, output: TokenOutput) -> TokenOutput | None:
        """Return an output of this session with the id that the ingress knows, None for those of others."""
        owner, request_id = split_id(output.request_id)
        if owner != self.session_id:
            return None
        if output.finish_reason is not None or output.error is not None:
            self.end(request_id)
        return msgspec.structs.replace(output, request_id=request_id)

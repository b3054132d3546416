"""Messages between a core process and its client, beside those of `messages`: setup, heartbeats, log lines.

A frame is one msgpack message, sent over a socket pair of the two processes. A closed socket means that the other
process has ended.
"""

import msgspec

from infer_engine.ipc.chunked_payloads import PromptLogprobsChunk
from infer_engine.messages import Abort, Finish, Halt, Inspect, StepResult, Submit
from infer_engine.processes.child_process import CoreRefused
from infer_engine.processes.log_forwarding import LogLine
from infer_engine.protocol import EngineConfig, EngineInfo, EngineStats


class CoreSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a core process.

    Attributes:
        config: what to load.
        log_level: numeric; log lines below it are not sent.
        heartbeat_s: seconds between heartbeats.
        processors: what to compute on; empty: on all.
    """

    config: EngineConfig
    log_level: int
    heartbeat_s: float
    processors: list[int] = []


class CoreReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is loaded and the core takes requests."""

    info: EngineInfo
    stats: EngineStats


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tells the client that the process is alive.

    Attributes:
        step_age_s: seconds that the current step has taken; None between steps.
        stack: the stack of the step, if it takes too long.
    """

    step_age_s: float | None
    stack: str | None = None


ToCoreProcess = Submit | Abort | Finish | Inspect | Halt
"""Messages from the client to the core process, after the setup."""

FromCoreProcess = StepResult | PromptLogprobsChunk | CoreReady | CoreRefused | Heartbeat | LogLine
"""Messages from the core process to the client."""

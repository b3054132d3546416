"""What a front and a core in another process say to each other beside `messages`: setup, signs of life, log lines.

One msgpack message per frame, over a socket pair that only the two of them hold. A closed socket is the word for "the
other one is gone".
"""

import msgspec

from infer_engine.ipc.chunked_payloads import PromptLogprobsChunk
from infer_engine.ipc.messages import Abort, Finish, Halt, Inspect, StepResult, Submit
from infer_engine.protocol import EngineConfig, EngineInfo, EngineStats

MAX_FRAME_BYTES = 1 << 30
"""A longer frame is no message of ours."""


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a core's process.

    Attributes:
        config: what to load.
        log_level: numeric; lines below it are not sent.
        heartbeat_s: seconds between signs of life.
    """

    config: EngineConfig
    log_level: int
    heartbeat_s: float


class CoreReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is loaded, and the core takes requests."""

    info: EngineInfo
    stats: EngineStats


class CoreRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The core cannot be built: the checkpoint is unusable, or else the configuration asks for what is not there."""

    message: str
    is_checkpoint: bool


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A sign of life.

    Attributes:
        step_age_s: seconds that the step under way has taken; None between steps.
        stack: where that step is, if it takes longer than a step may.
    """

    step_age_s: float | None
    stack: str | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A record of the core's log, tracebacks included, for the front's log."""

    name: str
    level: int
    message: str


ToWorker = Submit | Abort | Finish | Inspect | Halt
"""What the front's process says to the core's, after the setup."""

FromWorker = StepResult | PromptLogprobsChunk | CoreReady | CoreRefused | Heartbeat | LogLine
"""What the core's process says to the front's."""

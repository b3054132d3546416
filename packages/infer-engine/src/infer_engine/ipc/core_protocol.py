"""`CoreProtocol`: what those who drive a core ask of it. Knows messages; knows no scheduler, no thread and no clock."""

from typing import Protocol

from infer_engine.ipc.messages import StepResult, ToCore, TokenOutput
from infer_engine.protocol import EngineStats, StepOutput


class CoreProtocol(Protocol):
    """A core as seen by whoever calls `step`: one caller, in one thread."""

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""

    @property
    def stats(self) -> EngineStats:
        """A snapshot of the core as it is."""

    def handle(self, message: ToCore) -> None:
        """Take a message between two steps; an abort of an unknown request is no error."""

    def seconds_until_work(self) -> float | None:
        """Return 0.0 if there is something to compute, the wait if a batch is forming, None if nobody is here."""

    def step(self) -> StepResult:
        """Compute one step; with nothing to compute, audit the memory and return a snapshot.

        Raises:
            Exception: the engine cannot go on. What concerns single requests is in their outputs.
        """


def ended_by_text(produced: TokenOutput, output: StepOutput) -> bool:
    """Whether a core's output became the last of its request by its text: a stop string, or text that failed.

    The core must be told then, by a `Finish`; it has forgotten a request that it ended itself.
    """
    return output.finished and produced.finish_reason is None and produced.error is None

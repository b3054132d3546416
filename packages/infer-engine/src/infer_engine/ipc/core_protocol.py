"""`CoreProtocol`: the methods by which a core is stepped."""

from typing import Protocol

from infer_engine.messages import StepResult, ToCore, TokenOutput
from infer_engine.protocol import EngineStats, StepOutput


class CoreProtocol(Protocol):
    """A core, used by one caller in one thread."""

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""

    @property
    def stats(self) -> EngineStats:
        """Statistics of the core as it is."""

    def handle(self, message: ToCore) -> None:
        """Handle a message between two steps; an abort of an unknown request does nothing."""

    def seconds_until_work(self) -> float | None:
        """Return 0.0 if there is work, the wait in seconds if a batch is forming, None if there are no requests."""

    def step(self) -> StepResult:
        """Compute one step and return its result; a step without work audits the memory.

        Raises:
            Exception: the engine cannot go on. Failures of single requests are in their outputs.
        """


def ended_by_text(produced: TokenOutput, output: StepOutput) -> bool:
    """Whether the text ended the request, by a stop string or by a failure, and the core has not ended it.

    The core must then be told with a `Finish`.
    """
    return output.finished and produced.finish_reason is None and produced.error is None

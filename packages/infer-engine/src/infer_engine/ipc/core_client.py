"""`CoreClient`: connects the frontend to a core that steps in another thread or process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from infer_engine.messages import StepResult, ToCore
from infer_engine.protocol import RequestFailure

ENGINE_DEAD = RequestFailure(message="The engine failed; its log has the cause.", code="engine_dead")
ENGINE_STUCK = RequestFailure(message="The engine is stuck in a step; its log says where.", code="engine_stuck")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCallbacks:
    """Functions that a core client calls, from any thread, one call at a time.

    Attributes:
        on_result: takes the result of a step. It may block, so that the core does not run far ahead, but not the event
            loop of the engine.
        on_lost: takes the failure when the core ends without a call of `stop`.
        on_ended: called last, when the core has ended for any reason.
    """

    on_result: Callable[[StepResult], None]
    on_lost: Callable[[RequestFailure], None]
    on_ended: Callable[[], None]


class CoreClient(Protocol):
    """Client of a core in a thread or process of its own. All methods but `join` return at once."""

    def start(self, callbacks: CoreCallbacks) -> None:
        """Start the core; call it once."""

    def send(self, message: ToCore) -> None:
        """Send a message to the core; it is dropped if the core has ended.

        Raises:
            InvalidRequestError: the message cannot be encoded.
        """

    def stop(self) -> None:
        """End the core after the current step; may be called repeatedly."""

    def join(self) -> None:
        """Wait for the thread that called `on_ended`."""

    def abandon(self) -> None:
        """Give up a core whose step does not end; kill its process if it has one."""

    def step_age_s(self) -> float | None:
        """Return the age of the current step, or of an unusual silence of the core; None between steps."""

    def describe_step(self) -> str:
        """Return where the current step is, for the log."""

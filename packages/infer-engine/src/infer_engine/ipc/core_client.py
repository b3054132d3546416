"""`CoreClient`: the way from a front to a core that steps elsewhere. Knows messages; knows no thread and no socket."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from infer_engine.ipc.messages import StepResult, ToCore
from infer_engine.protocol import RequestFailure

ENGINE_DEAD = RequestFailure(message="The engine failed; its log has the cause.", code="engine_dead")
ENGINE_STUCK = RequestFailure(message="The engine is stuck in a step; its log says where.", code="engine_stuck")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCallbacks:
    """What a core client calls, from any thread, one call at a time.

    Attributes:
        on_result: takes what a step made. May wait, so that the core does not run far ahead.
        on_lost: takes the failure when no more results will come although the core was not told to stop.
        on_ended: the core is gone, whatever the reason; the last call.
    """

    on_result: Callable[[StepResult], None]
    on_lost: Callable[[RequestFailure], None]
    on_ended: Callable[[], None]


class CoreClient(Protocol):
    """A core in a thread or a process of its own. All methods return at once, but for `join`."""

    def start(self, callbacks: CoreCallbacks) -> None:
        """Let the core step; to be called once."""

    def send(self, message: ToCore) -> None:
        """Hand over a message; one to a core that is gone is nobody's.

        Raises:
            InvalidRequestError: this link cannot carry what is in it.
        """

    def stop(self) -> None:
        """End the core after the step under way; any number of times."""

    def join(self) -> None:
        """Wait for the end of what `on_ended` was called from."""

    def abandon(self) -> None:
        """Give up a core whose step does not end."""

    def step_age_s(self) -> float | None:
        """Return how long the step under way, or the core's silence, has taken; None: neither is longer than usual."""

    def describe_step(self) -> str:
        """Return where the step under way is, for a log."""

"""`SyncEngine`: steps a core in the caller's thread and hands each sequence its outputs. Knows no model."""

import time
from collections.abc import Callable

from infer_engine.frontend.input_processor import ProcessedInput
from infer_engine.frontend.interrupts import deferred_interrupts
from infer_engine.ipc.core_protocol import CoreProtocol, ended_by_text
from infer_engine.ipc.messages import Abort, Finish, TokenOutput
from infer_engine.protocol import EngineStats, StepOutput


class SyncEngine:
    """Everything that its caller has under way in one core. Not safe to share between threads.

    Whoever steps, steps for all: outputs go to whom they belong, so that calls may be nested within each other. An
    interrupt takes effect between steps, so that it costs nobody a token but whoever is interrupted.
    """

    def __init__(self, core: CoreProtocol, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Drive `core`, and `sleep` while it waits for a batch to form."""
        self._core = core
        self._sleep = sleep
        self._open: dict[str, tuple[ProcessedInput, Callable[[StepOutput], None]]] = {}

    def submit(self, prepared: ProcessedInput, take: Callable[[StepOutput], None]) -> None:
        """Queue a sequence; `take` is called with each of its outputs, the last of which is `finished`."""
        with deferred_interrupts():
            self._open[prepared.submission.request_id] = prepared, take
            self._core.handle(prepared.submission)

    def step(self) -> EngineStats:
        """Compute one step, after the wait for a batch to form if there is one; return the snapshot after it.

        Raises:
            Exception: the engine cannot go on.
        """
        wait_s = self._core.seconds_until_work()
        assert wait_s is not None or not self._open, "the core has forgotten a sequence without a last output"
        if wait_s:
            self._sleep(wait_s)
        with deferred_interrupts():
            result = self._core.step()
            for produced in result.outputs:
                if produced.request_id in self._open:
                    self._hand_over(produced)
        return result.stats

    def abort(self, request_id: str) -> None:
        """Forget a sequence and free its memory; one that ended already is left alone."""
        with deferred_interrupts():
            if self._open.pop(request_id, None) is not None:
                self._core.handle(Abort(request_id=request_id))

    def _hand_over(self, produced: TokenOutput) -> None:
        request_id = produced.request_id
        prepared, take = self._open[request_id]
        output = prepared.text.advance(produced)
        if ended_by_text(produced, output):
            self._core.handle(Finish(request_id=request_id, num_completion_tokens=output.num_completion_tokens))
        if output.finished:
            del self._open[request_id]
        take(output)

"""`SyncEngine`: steps a core in the caller's thread and delivers each sequence's outputs."""

import time
from collections.abc import Callable

from infer_engine.frontend.input_processor import ProcessedInput
from infer_engine.frontend.interrupts import deferred_interrupts
from infer_engine.ipc.core_protocol import CoreProtocol, ended_by_text
from infer_engine.messages import Abort, Finish, TokenOutput
from infer_engine.protocol import EngineStats, StepOutput


class SyncEngine:
    """Serves sequences from one core in the caller's thread. Not safe to share between threads.

    Each step computes all sequences and delivers every output to its own consumer, so calls may be nested. An interrupt
    takes effect between steps, so that other sequences lose no token.
    """

    def __init__(self, core: CoreProtocol, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Step `core`; call `sleep` while it waits for a batch to form."""
        self._core = core
        self._sleep = sleep
        self._sequences: dict[str, tuple[ProcessedInput, Callable[[StepOutput], None]]] = {}

    def submit(self, processed: ProcessedInput, consume: Callable[[StepOutput], None]) -> None:
        """Queue a sequence; each of its outputs is passed to `consume`, up to the finished one."""
        with deferred_interrupts():
            self._sequences[processed.submission.request_id] = processed, consume
            self._core.handle(processed.submission)

    def step(self) -> EngineStats:
        """Wait if a batch is forming, compute one step, and return the statistics after it.

        Raises:
            Exception: the engine cannot go on.
        """
        wait_s = self._core.seconds_until_work()
        assert wait_s is not None or not self._sequences, "the core dropped a sequence without a last output"
        if wait_s:
            self._sleep(wait_s)
        with deferred_interrupts():
            result = self._core.step()
            for produced in result.outputs:
                if produced.request_id in self._sequences:
                    self._deliver(produced)
        return result.stats

    def abort(self, request_id: str) -> None:
        """Drop a sequence and free its memory; does nothing if it has ended."""
        with deferred_interrupts():
            if self._sequences.pop(request_id, None) is not None:
                self._core.handle(Abort(request_id=request_id))

    def _deliver(self, produced: TokenOutput) -> None:
        request_id = produced.request_id
        processed, consume = self._sequences[request_id]
        output = processed.output_processor.process(produced)
        if ended_by_text(produced, output):
            self._core.handle(Finish(request_id=request_id, num_completion_tokens=output.num_completion_tokens))
        if output.finished:
            del self._sequences[request_id]
        consume(output)

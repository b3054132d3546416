"""The engine core: `step()` schedules, executes, samples and retires. Knows token ids; no text, no I/O, no clock.

Deterministic: the same messages between the same steps give the same outputs.
"""

from typing import Protocol

from infer_cache import BlockTables
from infer_engine.messages import Abort, StepResult, Submit, TokenOutput
from infer_engine.protocol import EngineStats, FinishReason
from infer_engine.request import Request, RequestState
from infer_engine.scheduler import ContinuousScheduler, Schedule


class StepRunner(Protocol):
    """What turns a schedule into tokens."""

    def execute(self, schedule: Schedule) -> list[int]:
        """Compute the schedule's items and return the next token of each request whose next token is due, in order."""


class EngineCore:
    """Requests in, tokens out, one step at a time, in the caller's thread."""

    def __init__(
        self, runner: StepRunner, scheduler: ContinuousScheduler, tables: BlockTables, *, eos_token_ids: frozenset[int]
    ) -> None:
        """`scheduler` must schedule over the memory of `tables`."""
        self._runner = runner
        self._scheduler = scheduler
        self._tables = tables
        self._eos_token_ids = eos_token_ids
        self._requests: dict[str, Request] = {}
        self._num_arrivals = 0
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_leaked_blocks = 0

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self._requests)

    @property
    def stats(self) -> EngineStats:
        """A snapshot of the core as it is."""
        return EngineStats(
            num_steps=self._num_steps,
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_free_blocks=self._tables.num_free_blocks,
            num_blocks=self._tables.num_blocks,
            num_leaked_blocks=self._num_leaked_blocks,
            num_preemptions=self._num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
        )

    def handle(self, message: Submit | Abort) -> None:
        """Take a message between two steps. An abort frees the request's memory at once; an unknown id is no error.

        Raises:
            ValueError: the id of a submitted request is in use.
        """
        if isinstance(message, Submit):
            self._submit(message)
        elif request := self._requests.pop(message.request_id, None):
            self._scheduler.retire(request, RequestState.ABORTED)

    def step(self) -> StepResult:
        """Compute one step and return what it made. With nothing to do it computes nothing and returns a snapshot."""
        schedule = self._scheduler.schedule()
        outputs = self._compute(schedule) if schedule.items else []
        self._num_preemptions += len(schedule.preempted)
        if not schedule.items:  # the audit walks all blocks: in an idle step nobody waits for it
            self._num_leaked_blocks = len(self._tables.audit())
        admitted = [request.request_id for request in schedule.admitted]
        return StepResult(outputs=outputs, admitted=admitted, stats=self.stats)

    def _submit(self, message: Submit) -> None:
        if message.request_id in self._requests:
            raise ValueError(f"`request_id` {message.request_id!r} is in use; every request needs its own.")
        request = Request(message, arrival=self._num_arrivals)
        self._num_arrivals += 1
        self._requests[message.request_id] = request
        self._scheduler.add(request)

    def _compute(self, schedule: Schedule) -> list[TokenOutput]:
        tokens = iter(self._runner.execute(schedule))
        self._num_steps += 1
        outputs = []
        for request, num_tokens in schedule.items:
            if request.num_computed_tokens < request.num_prompt_tokens:
                self._num_prompt_tokens += min(num_tokens, request.num_prompt_tokens - request.num_computed_tokens)
            if self._scheduler.mark_computed(request, num_tokens):
                outputs.append(self._accept(request, next(tokens)))
        return outputs

    def _accept(self, request: Request, token_id: int) -> TokenOutput:
        self._num_generated_tokens += 1
        reason = request.accept(token_id, eos_token_ids=self._eos_token_ids)
        if reason is not None:
            del self._requests[request.request_id]
            self._scheduler.retire(request, RequestState.FINISHED)
        return _output(request, token_id, reason)


def _output(request: Request, token_id: int, reason: FinishReason | None) -> TokenOutput:
    return TokenOutput(
        request_id=request.request_id,
        token_ids=[token_id],
        finish_reason=reason,
        num_prompt_tokens=request.num_prompt_tokens,
        num_completion_tokens=request.num_completion_tokens,
    )

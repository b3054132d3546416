"""`EngineCore`: each `step()` schedules requests, computes them, samples tokens and ends finished requests.

The same messages between the same steps give the same tokens, where the chunks of prompts change no bits: these may
follow the clock by `PrefillShare`. All else that it serves is statistics.
"""

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from infer_engine.core.constraints import make_constraint
from infer_engine.core.leaks import count_leaks
from infer_engine.core.prefix_sharing import PrefixSharing
from infer_engine.core.snapshots import take_snapshot
from infer_engine.core.step_executor import InFlightStep, StepExecutor, StepOutcome
from infer_engine.core.token_outputs import SCHEDULING_FAILED, grammar_failed_output, make_output
from infer_engine.messages import Abort, Finish, Inspect, StepResult, Submit, ToCore, TokenOutput
from infer_engine.protocol import EngineStats, FinishReason, RequestFailure, TokenLogprob
from infer_engine.protocol.stats import NUM_STEP_SIZES, StepCounts
from infer_engine.request import Request, RequestState, StepRow
from infer_engine.scheduling import BaseScheduler, KVCacheManager, RowEdit, Schedule
from infer_engine.speculation.speculator import Speculator
from infer_engine.step_runner import EngineFailedError, StepRunner
from infer_engine.structured.compiler import GrammarCompiler
from infer_engine.structured.errors import GrammarError

logger = logging.getLogger(__name__)

MAX_ENDED = 256
"""How many ended requests the core remembers, in case a stop string is found in their text later."""


class EngineCore:
    """Serves requests one step at a time, in the caller's thread."""

    def __init__(
        self,
        runner: StepRunner,
        scheduler: BaseScheduler,
        kv_cache_manager: KVCacheManager,
        *,
        eos_token_ids: frozenset[int],
        share_prefix: PrefixSharing,
        grammars: GrammarCompiler | None = None,
        schedules_ahead: bool = False,
        make_speculator: Callable[[BaseScheduler, StepCounts], Speculator] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`scheduler` must use `kv_cache_manager`. Without `grammars` every request with a grammar fails.

        With `schedules_ahead` a step returns what the one before has computed; the scheduler must have one pass.
        """
        self._scheduler, self._kv_cache_manager = scheduler, kv_cache_manager
        self._eos_token_ids = eos_token_ids
        self._share_prefix = share_prefix
        self._grammars = grammars
        self._unstarted: list[TokenOutput] = []  # of requests whose grammars cannot be compiled
        self._clock = clock
        self._executor = StepExecutor(runner, clock=clock, share=scheduler.prefill_share)
        self._run_passes = self._run_ahead if schedules_ahead else self._run_in_turn
        self._in_flight: InFlightStep | None = None  # of the step before, if this core schedules ahead
        self._suspects: list[tuple[Request, int]] = []  # of a pass that failed, and how many tokens each had
        self._requests: dict[str, Request] = {}
        self._ended: dict[str, Request] = {}  # in the order in which they ended
        self._num_arrivals = 0
        self._counts = StepCounts()
        self._speculator = None if make_speculator is None else make_speculator(scheduler, self._counts)
        self._num_unexplained_failures = 0
        self._unapplied_edits: list[RowEdit] = []
        self._is_inspected = False

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running, or a pass was launched whose results were not read."""
        return bool(self._requests or self._unstarted or self._in_flight)

    @property
    def stats(self) -> EngineStats:
        """Statistics of the core as it is."""
        counts = msgspec.structs.asdict(self._counts)
        for name in ("steps_by_tokens", "num_accepted_by_position"):
            counts[name] = counts[name].copy()
        return EngineStats(
            **counts,
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            prefill_tokens_beside_decodes=self._scheduler.prefill_tokens_beside_decodes,
            num_blocks=self._kv_cache_manager.num_blocks,
            num_free_blocks=self._kv_cache_manager.num_free_blocks,
            num_idle_blocks=self._kv_cache_manager.num_idle_blocks,
            **self._kv_cache_manager.states.counts._asdict(),
            num_evictions=self._kv_cache_manager.num_evictions,
            kv_usage=self._kv_cache_manager.usage,
        )

    def seconds_until_work(self) -> float | None:
        """Return 0.0 if there is work, the wait in seconds if a batch is forming, None if there are no requests."""
        return 0.0 if self._unstarted or self._in_flight else self._scheduler.seconds_until_work()

    def handle(self, message: ToCore) -> None:
        """Handle a message between two steps. An abort frees the memory at once; an unknown id is no error.

        Raises:
            ValueError: the id of a submitted request is in use.
        """
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._abort(message.request_id)
            case Finish():
                self._finish(message.request_id, message.num_completion_tokens)
            case Inspect():
                self._is_inspected = True

    def step(self) -> StepResult:
        """Compute one step and return its result; a step without work audits the memory.

        A failure inside a step is in the outputs of the requests that failed; see `StepExecutor`.

        Raises:
            EngineFailedError: the engine cannot go on.
        """
        started = self._clock()
        self._counts.num_step_tokens = 0
        self._counts.schedule_s = self._counts.execute_s = self._counts.sample_s = 0.0
        outputs, self._unstarted = self._unstarted, []
        admitted: list[str] = []
        self._forget_cleared_suspects()
        self._run_passes(admitted, outputs)
        if self._counts.num_step_tokens:
            self._counts.num_steps += 1
            size = (self._counts.num_step_tokens - 1).bit_length()
            self._counts.steps_by_tokens[min(size, NUM_STEP_SIZES - 1)] += 1
        elif self._in_flight is None:  # the audit reads all blocks; in an idle step no request waits for it
            self._counts.num_leaked_blocks = count_leaks(self._kv_cache_manager, self._counts.num_leaked_blocks)
        self._counts.busy_s += self._clock() - started
        stats = self.stats
        is_inspected, self._is_inspected = self._is_inspected, False
        snapshot = take_snapshot(self._scheduler.requests(), self._kv_cache_manager, stats) if is_inspected else None
        return StepResult(outputs=outputs, admitted=admitted, stats=stats, snapshot=snapshot)

    def _submit(self, message: Submit) -> None:
        if message.request_id in self._requests:
            raise ValueError(f"`request_id` {message.request_id!r} is in use; every request needs its own.")
        try:
            constraint = make_constraint(message, self._grammars)
        except GrammarError as error:
            logger.error("The grammar of request %s cannot be compiled: %s", message.request_id, error)  # noqa: TRY400 - no traceback of ours would help
            self._counts.num_failed += 1
            self._unstarted.append(grammar_failed_output(message))
            return
        request = Request(
            message,
            arrival=self._num_arrivals,
            arrival_step=self._counts.num_steps,
            block_hashes=self._share_prefix(message, self._kv_cache_manager.block_size),
            constraint=constraint,
        )
        self._num_arrivals += 1
        self._requests[message.request_id] = request
        self._ended.pop(message.request_id, None)
        self._scheduler.add(request)

    def _abort(self, request_id: str) -> None:
        if request := self._requests.get(request_id):
            self._counts.num_aborted += 1
            self._scheduler.remove(request, RequestState.ABORTED, num_kept_tokens=len(request.token_ids))
            del self._requests[request_id]

    def _finish(self, request_id: str, num_completion_tokens: int) -> None:
        """End a request whose text has ended, and uncache the blocks computed after that point."""
        if request := self._requests.get(request_id):
            self._counts.num_finished += 1
            num_kept = request.num_prompt_tokens + num_completion_tokens
            self._scheduler.remove(request, RequestState.FINISHED, num_kept_tokens=num_kept)
            del self._requests[request_id]
        elif (ended := self._ended.pop(request_id, None)) and ended.block_hashes is not None:
            first = (ended.num_prompt_tokens + num_completion_tokens) // self._kv_cache_manager.block_size
            self._kv_cache_manager.uncache_hashes(
                ended.block_hashes.upto(ended.token_ids, len(ended.token_ids))[first:]
            )

    def _run_in_turn(self, admitted: list[str], outputs: list[TokenOutput]) -> None:
        """Compute the passes of a step, each after the results of the one before."""
        for make_schedule in self._scheduler.passes:
            schedule = self._make_schedule(make_schedule, admitted, outputs)
            if schedule is None:
                break
            if not schedule.items:
                continue
            if self._speculator is not None:
                self._speculator.add_drafts(schedule)
            step = self._executor.launch(schedule)
            step.sample()
            outcome = self._executor.read(step)
            if outcome is None:
                self._recover_pass(step, outputs)
            else:
                self._count_computed(schedule.items, step.sampled)
                self._apply_outcome(outcome, outputs)
            if self._speculator is not None:
                self._speculator.settle(schedule)

    def _run_ahead(self, admitted: list[str], outputs: list[TokenOutput]) -> None:
        """Launch the next pass, and read the results of the one before while the device computes.

            forward N+1 ──> read N, append its tokens ──> sample N+1 ──> schedule and forward N+2 ──> read N+1 ...

        So sampling knows all tokens, and may use them: grammars, penalties, counts. Only the forward pass is launched
        before the host knows the tokens that it is given. Steps that may get drafts are computed in turn, and those
        that a layer which drafts is to see.
        """
        settling, self._in_flight = self._in_flight, None
        may_draft = self._speculator is not None and self._speculator.may_draft()
        if settling is None and (self._suspects or may_draft):
            self._run_in_turn(admitted, outputs)
            return
        [make_schedule] = self._scheduler.passes
        schedule = None if may_draft else self._make_schedule(make_schedule, admitted, outputs)
        step = None if schedule is None or not schedule.items else self._executor.launch(schedule)
        if step is not None and self._speculator is not None:
            self._speculator.pass_over(step.schedule)
        if settling is not None:
            outcome = self._executor.read(settling)
            if outcome is None:
                self._compute_anew(settling, step)
                return
            self._apply_outcome(outcome, outputs)
            if self._speculator is not None:
                self._speculator.forget_ended()
        if step is None:
            return
        items = step.schedule.items = [item for item in step.schedule.items if item[0].row >= 0]  # not ended
        for request, _ in items:
            self._scheduler.cache_last_block(request, step.schedule)
        step.sample()
        if step.error is None:
            self._count_computed(items, step.sampled)
            self._in_flight = step
        else:
            self._recover_pass(step, outputs)

    def _make_schedule(
        self, make_schedule: Callable[[], Schedule], admitted: list[str], outputs: list[TokenOutput]
    ) -> Schedule | None:
        """Return the schedule of the next pass; if that fails, preempt all requests and return None."""
        started = self._clock()
        try:
            schedule = make_schedule()
            self._scheduler.move_states(schedule)
        except Exception as error:
            logger.exception("Scheduling failed; all running requests are computed again.")
            self._recover_scheduling(self._scheduler.current, error, outputs)
            return None
        finally:
            self._counts.schedule_s += self._clock() - started
        self._num_unexplained_failures = 0
        admitted += [request.request_id for request in schedule.admitted]
        self._counts.num_preemptions += len(schedule.preempted)
        # If a pass computes nothing, the runner has not seen its table edits: the next pass applies them.
        schedule.table_edits[:0] = self._unapplied_edits
        self._unapplied_edits = [] if schedule.items else schedule.table_edits
        return schedule

    def _recover_scheduling(self, current: Request | None, error: Exception, outputs: list[TokenOutput]) -> None:
        """Preempt all requests after scheduling `current` failed; a request that fails twice ends."""
        self._counts.num_failed_passes += 1
        self._scheduler.preempt_all()
        if current is None:
            self._num_unexplained_failures += 1
            if self._num_unexplained_failures > 1:
                raise EngineFailedError("no request can be scheduled") from error
        elif current.has_failed_scheduling:
            self._fail(current, SCHEDULING_FAILED, outputs)
        else:
            current.has_failed_scheduling = True

    def _count_computed(self, items: Iterable[tuple[Request, int]], sampled: Iterable[StepRow]) -> None:
        """Count `items` as computed; the next tokens of `sampled` are being chosen, a row of logits for each."""
        decode = RequestState.DECODE
        for request, num_tokens in items:
            request.num_computed_tokens += num_tokens
        for number, row in enumerate(sampled):
            if row.row >= 0:
                row.state = decode
                row.pending_row = number

    def _forget_cleared_suspects(self) -> None:
        """Forget requests of a failed pass that have got their next token; after the last, overwrite states again."""
        if not self._suspects:
            return
        self._suspects = [
            (request, count)
            for request, count in self._suspects
            if not request.has_ended and len(request.token_ids) == count
        ]
        if not self._suspects:
            self._kv_cache_manager.states.require_repeatable(is_repeatable=False)

    def _recover_pass(self, step: InFlightStep, outputs: list[TokenOutput]) -> None:
        """Compute the latest pass, which failed, again in parts; anew, where it may have overwritten states."""
        if not self._kv_cache_manager.states.is_repeatable:
            self._compute_anew(step)
            return
        self._counts.num_failed_passes += 1
        outcome = self._executor.retry(step, self._scheduler.requeue_pending_readers(step.schedule))
        self._count_computed(outcome.computed, [row for row, _ in outcome.chosen])
        self._apply_outcome(outcome, outputs, is_repeated=True)
        if not outcome.computed:
            self._unapplied_edits = step.schedule.table_edits

    def _compute_anew(self, step: InFlightStep, following: InFlightStep | None = None) -> None:
        """Preempt all requests, because a pass failed that cannot be repeated.

        It may have overwritten the states that it read, or the schedule of the pass that follows, `following`, may have
        given away blocks that it needs. Until each of its requests has its next token, passes are computed in turn and
        overwrite no state, which finds one that fails again.
        """
        self._counts.num_failed_passes += 1
        logger.error("A step failed; all running requests are computed again.", exc_info=step.error)
        self._executor.probe()
        self._scheduler.preempt_all()
        self._kv_cache_manager.states.require_repeatable(is_repeatable=True)
        self._unapplied_edits = []  # no row is in use
        for each in (step, following):
            if each is not None:
                self._kv_cache_manager.uncache_hashes(list(each.schedule.pending_hashes))
                for request in each.schedule.readers:
                    request.undo_reuse()
        for row in step.sampled:
            row.pending_row = -1
        items = step.schedule.items
        self._suspects = [(request, len(request.token_ids)) for request, _ in items if not request.has_ended]

    def _apply_outcome(self, outcome: StepOutcome, outputs: list[TokenOutput], *, is_repeated: bool = False) -> None:
        """Append the tokens of a pass to their requests, but to those that have ended since."""
        if outcome.failures and not is_repeated:
            self._counts.num_failed_passes += 1
        self._counts.execute_s += outcome.execute_s
        self._counts.sample_s += outcome.sample_s
        requests, counts = self._requests, self._counts
        for failed, failure in outcome.failures:
            if not failed.has_ended:
                self._fail(failed, failure, outputs)
        num_tokens = sum([count for request, count in outcome.computed if not request.has_ended])
        counts.num_step_tokens += num_tokens
        counts.num_computed_tokens += num_tokens
        for request_id, of_prompt in outcome.prompt_logprobs.items():
            if request_id in requests:
                requests[request_id].add_prompt_logprobs(of_prompt)
        # This loop runs for each token that is generated, and is most of the cost of a step beside the device.
        eos_token_ids, logprobs, num_before = self._eos_token_ids, outcome.logprobs, len(outputs)
        for row, token_id in outcome.chosen:
            if (request := row.verified()) is None or request.has_ended:
                continue
            request_id = request.request_id
            finish_reason = request.append_token(token_id, eos_token_ids)
            num_prompt_tokens = request.num_prompt_tokens
            num_completion_tokens = len(request.token_ids) - num_prompt_tokens
            if finish_reason is None and num_completion_tokens > 1 and row not in logprobs:
                outputs.append(
                    TokenOutput(
                        request_id=request_id,
                        token_ids=[token_id],
                        num_prompt_tokens=num_prompt_tokens,
                        num_completion_tokens=num_completion_tokens,
                        num_cached_tokens=request.num_cached_tokens,
                        drafts=request.draft_counts,
                    )
                )
            else:
                outputs.append(self._make_first_or_last_output(request, token_id, finish_reason, logprobs.get(row)))
        counts.num_generated_tokens += len(outputs) - num_before

    def _make_first_or_last_output(
        self, request: Request, token_id: int, finish_reason: FinishReason | None, logprob: TokenLogprob | None
    ) -> TokenOutput:
        """Return the output of a token that begins or ends an answer, or has a log-probability."""
        prompt_logprobs = None
        if request.num_completion_tokens == 1:
            self._counts.num_prompt_tokens += request.num_prompt_tokens
            self._counts.num_cached_tokens += request.num_cached_tokens
            prompt_logprobs = request.pop_prompt_logprobs()
        if finish_reason is not None:
            self._counts.num_finished += 1
            self._scheduler.remove(request, RequestState.FINISHED, num_kept_tokens=len(request.token_ids))
            del self._requests[request.request_id]
            self._remember_ended(request)
        return make_output(
            request,
            [token_id],
            finish_reason=finish_reason,
            logprobs=None if logprob is None else [logprob],
            prompt_logprobs=prompt_logprobs,
        )

    def _remember_ended(self, request: Request) -> None:
        """Remember a request in whose last tokens the frontend may still find a stop string."""
        if request.submission.params.stop and request.block_hashes is not None:
            self._ended[request.request_id] = request
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def _fail(self, request: Request, failure: RequestFailure, outputs: list[TokenOutput]) -> None:
        """End a request with `failure`; none of its blocks stay cached."""
        self._counts.num_failed += 1
        self._requests.pop(request.request_id, None)
        self._scheduler.remove(request, RequestState.FAILED, num_kept_tokens=0)
        outputs.append(make_output(request, [], error=failure))

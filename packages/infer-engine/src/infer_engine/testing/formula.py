"""A core without a model: a runner whose tokens are a formula of the tokens before them. Imports no torch."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from infer_cache import PagedKVCacheManager
from infer_engine.build import CoreParts, assemble_core, build_kv_cache_manager, build_scheduler, choose_sharing
from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepOutOfMemoryError
from infer_engine.ipc.messages import Abort, Finish, Inspect, StepResult, Submit, TokenOutput
from infer_engine.protocol import BatchSnapshot, EngineConfig, SamplingParams, TokenLogprob
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import KVCacheManager, Schedule, SchedulerLimits
from infer_engine.testing.faults import FaultPlan

_DEFAULTS: Mapping[str, Any] = MappingProxyType({"use_prefix_caching": False})


def next_token(token_ids: list[int], *, vocab_size: int = 997) -> int:
    """Return the token that `FormulaRunner` gives after `token_ids`: a function of all of them."""
    token = 1
    for token_id in token_ids:
        token = (token * 31 + token_id + 7) % vocab_size
    return token


def expected_tokens(prompt: list[int], num_tokens: int) -> list[int]:
    """Return what a request of `num_tokens` tokens must get, whatever runs beside it."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def prompt_logprob(request: Request, position: int) -> TokenLogprob:
    """Return what `FormulaRunner` measures at `position`: of the token after it, by all tokens up to there."""
    best, token_id = next_token(request.token_ids[: position + 1]), request.token_ids[position + 1]
    listed = [(best + i, -float(i)) for i in range(request.sampling.prompt_logprobs or 0)]
    return TokenLogprob(token_id=token_id, logprob=-float(best), rank=1 + position, top=listed)


def expected_prompt_logprobs(prompt: list[int], num_listed: int) -> list[TokenLogprob | None]:
    """Return what a request that lists so many tokens for each of its prompt's must get, whatever runs beside it."""
    params = SamplingParams(prompt_logprobs=num_listed)
    submitted = Submit(request_id="", prompt_token_ids=prompt, max_tokens=1, seed=0, params=params)
    alone = Request(submitted, arrival=0)
    return [None, *(prompt_logprob(alone, position) for position in range(len(prompt) - 1))]


class ManualClock:
    """A clock that stands still until a test moves it.

    Attributes:
        now: what the clock shows.
    """

    def __init__(self, now: float = 0.0) -> None:
        """Start at `now`."""
        self.now = now

    def __call__(self) -> float:
        """Return what the clock shows."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class FormulaRunner:
    """A runner with a formula for a model, and with a memory for a cache: it reads each token where it was written.

    Every slot of the block tables holds the token that was computed there last. What a scheduled token attends to must
    be what its request's slots hold, so that a block that was never written, was written by another request, or was
    released too early is noticed. The core contains every exception of its runner, so violations are listed
    instead of raised.

    Attributes:
        schedules: what each pass that succeeded computed, as (request id, tokens).
        num_attempts: forward passes, those that ran out of memory included.
        violations: what was wrong with them.
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        *,
        windows: tuple[int | None, ...] = (None,),
        max_items: int | None = None,
    ) -> None:
        """Read and write through `kv_cache_manager`; `windows` are those of its groups of layers.

        A pass of more than `max_items` requests runs out of memory.
        """
        self._block_size = kv_cache_manager.block_size
        self._windows = windows
        self._max_items = max_items
        self._rows: dict[tuple[int, int], dict[int, int]] = {}
        self._written: dict[tuple[int, int], tuple[int, int]] = {}  # (group, slot) -> (position, token)
        self.schedules: list[list[tuple[str, int]]] = []
        self.num_attempts = 0
        self.violations: list[str] = []

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Give, in place of logits, the next token of each request whose last known token is computed, as a number.

        Raises:
            StepOutOfMemoryError: there are more than `max_items` requests.
        """
        self.num_attempts += 1
        if self._max_items is not None and len(schedule.items) > self._max_items:
            raise StepOutOfMemoryError("a step of too many requests")
        if schedule.preempted and schedule.admitted:
            self.violations.append(
                "a pass that preempted also admitted: the admitted request takes what its victim needs"
            )
        self.schedules.append([(request.request_id, count) for request, count in schedule.items])
        for row, edit in schedule.table_edits:
            columns = self._rows.setdefault((edit.group, row), {})
            columns.update(enumerate(edit.block_ids, start=edit.column))
        rows = {request.row for request, _ in schedule.items}
        if len(rows) < len(schedule.items) or -1 in rows:
            self.violations.append("two requests share a row, or one has none")
        for request, count in schedule.items:
            self._store(request, count)
        for request, count in schedule.items:
            self._read(request, count)
        return ComputedPass(
            logits=[float(next_token(request.token_ids)) for request in schedule.needs_sampling],
            prompt_logprobs={
                request.request_id: [prompt_logprob(request, position) for position in positions]
                for request, count in schedule.items
                if (positions := self._measured(request, count))
            },
        )

    def sample(self, logits: list[float], requests: list[Request]) -> SamplerOutput:
        """Return the numbers as tokens; one that is not finite is no token."""
        assert len(logits) == len(requests)
        not_finite = frozenset(index for index, number in enumerate(logits) if not math.isfinite(number))
        token_ids = [0 if index in not_finite else int(number) for index, number in enumerate(logits)]
        return SamplerOutput(token_ids=token_ids, not_finite=not_finite)

    def probe(self) -> None:
        """Be alive."""

    def _measured(self, request: Request, count: int) -> range:
        positions = request.missing_prompt_logprobs(count)
        if positions and positions.start < request.num_computed_tokens:
            self.violations.append(f"{request.request_id} skipped what it was to measure")
        return positions

    def _store(self, request: Request, count: int) -> None:
        first = max(request.num_computed_tokens, request.num_reused_tokens)
        end = request.num_computed_tokens + count
        for group in range(len(self._windows)):
            for position, slot in enumerate(self._slots(group, request, first, end), start=first):
                self._written[group, slot] = (position, request.token_ids[position])

    def _read(self, request: Request, count: int) -> None:
        end = request.num_computed_tokens + count
        for group, window in enumerate(self._windows):
            start = 0 if window is None else max(0, request.num_computed_tokens - window + 1)
            read = [self._written.get((group, slot)) for slot in self._slots(group, request, start, end)]
            if read != list(enumerate(request.token_ids[start:end], start=start)):
                self.violations.append(f"{request.request_id} reads in group {group} what it did not write")

    def _slots(self, group: int, request: Request, start: int, end: int) -> list[int]:
        """Return where tokens `start` to `end` are; a negative slot where there is no block."""
        columns, size = self._rows.get((group, request.row), {}), self._block_size
        return [columns.get(position // size, -1) * size + position % size for position in range(start, end)]


class FormulaEngine:
    """A whole core around `FormulaRunner`, stepped by the test."""

    def __init__(
        self,
        *,
        num_blocks: int,
        limits: SchedulerLimits,
        block_size: int = 1,
        eos_token_ids: frozenset[int] = frozenset(),
        windows: Mapping[int, int] = MappingProxyType({}),
        faults: FaultPlan | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        max_items: int | None = None,
        **config: Any,
    ) -> None:
        """Assemble a core as an engine does.

        Args:
            num_blocks: of the pool; of the contiguous cache in all.
            limits: of a step.
            block_size: tokens of a block.
            eos_token_ids: end a request.
            windows: further groups of layers, as window -> blocks.
            faults: what goes wrong.
            clock: seconds, for the static scheduler and for statistics.
            max_items: a pass of more requests runs out of the device's memory.
            config: fields of `EngineConfig`; without any: continuous, paged, no prefix caching.
        """
        self.config = EngineConfig(**{**_DEFAULTS, **config})
        self.faults = plan = faults or FaultPlan()
        self._is_sound = not plan.faults and max_items is None
        self.kv_cache_manager = build_kv_cache_manager(
            self.config,
            limits,
            num_blocks=(num_blocks, *windows.values()),
            windows=(None, *windows),
            block_size=block_size,
        )
        self.runner = FormulaRunner(self.kv_cache_manager, windows=(None, *windows), max_items=max_items)
        parts = CoreParts(
            runner=self.runner,
            kv_cache_manager=self.kv_cache_manager,
            build_scheduler=lambda manager: build_scheduler(self.config, manager, limits, clock=clock),
        )
        self.core = assemble_core(
            plan.wrap_parts(parts),
            eos_token_ids=eos_token_ids,
            share_prefix=choose_sharing(self.config),
            clock=clock,
        )

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds."""
        return self.kv_cache_manager.num_free_blocks

    @property
    def paged_manager(self) -> PagedKVCacheManager:
        """The manager of a paged cache."""
        assert isinstance(self.kv_cache_manager, PagedKVCacheManager)
        return self.kv_cache_manager

    def submit(
        self, request_id: str, prompt: list[int], *, max_tokens: int, params: SamplingParams | None = None, **more: Any
    ) -> None:
        """Queue a request; `more` are further fields of `Submit`."""
        params = params or SamplingParams(temperature=0)
        self.core.handle(
            Submit(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens, seed=0, params=params, **more)
        )

    def abort(self, request_id: str) -> None:
        """Abort a request."""
        self.core.handle(Abort(request_id=request_id))

    def finish(self, request_id: str, *, num_completion_tokens: int) -> None:
        """End a request where its text ended."""
        self.core.handle(Finish(request_id=request_id, num_completion_tokens=num_completion_tokens))

    def inspect(self) -> BatchSnapshot:
        """Compute one step and return the snapshot after it."""
        self.core.handle(Inspect())
        snapshot = self.step().snapshot
        assert snapshot is not None
        return snapshot

    def step(self) -> StepResult:
        """Compute one step.

        Raises:
            AssertionError: a block is leaked or lost, a request read the blocks of another, or one failed
                without an injected fault.
        """
        result = self.core.step()
        self.check()
        if self._is_sound:
            assert [output.error for output in result.outputs if output.error] == []
        return result

    def run(self, *, max_steps: int = 10_000) -> dict[str, list[TokenOutput]]:
        """Step until nothing is left to do; return each request's outputs.

        Raises:
            AssertionError: as `step`, or there is still work after `max_steps` steps, or memory is still held then.
        """
        outputs: dict[str, list[TokenOutput]] = {}
        num_steps = 0
        while self.core.has_work:
            assert num_steps < max_steps, f"still work after {max_steps} steps"
            collect(self.step(), outputs)
            num_steps += 1
        assert self.num_free_blocks == self.kv_cache_manager.num_blocks
        return outputs

    def check(self) -> None:
        """Check what holds between any two steps.

        Raises:
            AssertionError: it does not.
        """
        assert self.runner.violations == []
        assert self.kv_cache_manager.audit() == []
        assert self.kv_cache_manager.reclaim() == 0
        if self.config.resolved_kv_cache_backend == "paged":
            for group in self.paged_manager.groups:
                held = set(group.reachable())
                assert len(held) + group.block_pool.num_free == group.block_pool.num_blocks, "blocks are lost"

    def num_reused_tokens(self, token_ids: list[int], *, cache_salt: str | None = None) -> int:
        """Return how many leading tokens of a prompt a request of this salt would find in the cache."""
        submit = Submit(
            request_id="",
            prompt_token_ids=token_ids,
            max_tokens=1,
            seed=0,
            params=SamplingParams(),
            cache_salt=cache_salt,
        )
        hashes = choose_sharing(self.config)(submit, self.kv_cache_manager.block_size)
        known = [] if hashes is None else hashes.upto(token_ids, len(token_ids))
        return self.kv_cache_manager.find(known, len(token_ids)).num_tokens


def collect(result: StepResult, outputs: dict[str, list[TokenOutput]]) -> None:
    """Append a step's outputs to those of their requests."""
    for output in result.outputs:
        outputs.setdefault(output.request_id, []).append(output)


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    """Return the tokens of a request's outputs, joined."""
    return [token_id for output in outputs for token_id in output.token_ids]

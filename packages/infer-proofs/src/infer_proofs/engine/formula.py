"""A core around `FormulaRunner`, which has a formula for a model, stepped by the test. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

from infer_cache import PagedKVCacheManager, describe_leaks
from infer_engine.assembly.core import CoreParts, assemble_core, build_kv_cache_manager, build_scheduler, choose_sharing
from infer_engine.messages import Abort, Finish, Inspect, StepResult, Submit, TokenOutput
from infer_engine.protocol import BatchSnapshot, EngineConfig, SamplingParams, TokenLogprob
from infer_engine.request import Request
from infer_engine.scheduling import SchedulerLimits
from infer_engine.speculation.proposals import Proposal, Proposer
from infer_engine.speculation.speculator import Speculator
from infer_proofs.engine.faults import FaultPlan
from infer_proofs.engine.formula_runner import FormulaRunner, next_token, prompt_logprob

_DEFAULTS: Mapping[str, Any] = MappingProxyType({"use_prefix_caching": False})


def expected_tokens(prompt: list[int], num_tokens: int) -> list[int]:
    """Return what a request of `num_tokens` tokens must get, whatever runs beside it."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


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
        lag: Random | None = None,
        make_proposer: Callable[[], Proposer] | None = None,
        **config: Any,
    ) -> None:
        """Assemble a core as an engine does.

        Args:
            num_blocks: blocks of the pool, or of the whole contiguous cache.
            limits: limits of a step.
            block_size: tokens of a block.
            eos_token_ids: end a request.
            windows: further groups of layers, as window -> blocks.
            faults: what goes wrong.
            clock: seconds, for the static scheduler and for statistics.
            max_items: a pass of more requests runs out of the device's memory.
            lag: draws how far the device runs behind the host; None: not at all.
            make_proposer: makes what drafts the tokens of a request; None: nothing does.
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
        self.runner = FormulaRunner(
            self.kv_cache_manager,
            windows=(None, *windows),
            max_items=max_items,
            lag=lag,
            on_execute=partial(plan.trigger, "execute"),
        )
        parts = CoreParts(
            runner=self.runner,
            kv_cache_manager=self.kv_cache_manager,
            build_scheduler=lambda manager: build_scheduler(self.config, manager, limits, clock=clock),
        )
        self.core = assemble_core(
            plan.wrap_parts(parts),
            eos_token_ids=eos_token_ids,
            share_prefix=choose_sharing(self.config),
            schedules_ahead=self.config.use_async_scheduling is True,
            make_speculator=None
            if make_proposer is None
            else partial(Speculator, lambda _: make_proposer(), num_tokens=4, max_rows=limits.max_rows),
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
        leaked = self.kv_cache_manager.audit()
        assert not leaked, f"leaked: {describe_leaks(leaked)}"
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


class FormulaProposer:
    """Drafts the tokens of `FormulaRunner`, of which a share is right."""

    def __init__(self, share: float, draw: Random) -> None:
        """Draft right with a probability of `share`."""
        self._share = share
        self._draw = draw

    def propose(self, token_ids: Sequence[int], limit: int) -> Proposal:
        """Return `limit` tokens."""
        tokens = list(token_ids)
        for _ in range(limit):
            tokens.append(next_token(tokens) if self._draw.random() < self._share else self._draw.randrange(997))
        return Proposal(tokens[len(token_ids) :])


def collect(result: StepResult, outputs: dict[str, list[TokenOutput]]) -> None:
    """Append a step's outputs to those of their requests."""
    for output in result.outputs:
        outputs.setdefault(output.request_id, []).append(output)


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    """Return the tokens of a request's outputs, joined."""
    return [token_id for output in outputs for token_id in output.token_ids]

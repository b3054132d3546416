"""`SimulatedReplica`: an engine core, with its scheduler and its KV cache, whose steps take the time of a formula."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy

from infer_cache import PagedKVCacheManager
from infer_engine.core.engine_core import EngineCore
from infer_engine.core.prefix_sharing import share_with_all
from infer_engine.messages import StepResult, Submit
from infer_engine.outputs import SampledTokens
from infer_engine.request import Request
from infer_engine.scheduling import POLICIES, ContinuousScheduler, Schedule, SchedulerLimits
from infer_engine.step_runner import ComputedPass

BLOCK_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of a step: of the weights that are read, of each decode, of each token of a prompt."""

    base_s: float
    decode_s: float
    prompt_token_s: float

    def of(self, num_decodes: int, num_prompt_tokens: int) -> float:
        """Return the seconds of one step."""
        return self.base_s + num_decodes * self.decode_s + num_prompt_tokens * self.prompt_token_s


class _CountingRunner:
    """Computes nothing, and counts what a step has."""

    def __init__(self) -> None:
        self.num_decodes = 0
        self.num_prompt_tokens = 0

    def forward(self, schedule: Schedule) -> ComputedPass:
        counts = [count for _, count in schedule.items]
        self.num_decodes = counts.count(1)
        self.num_prompt_tokens = sum(counts) - self.num_decodes
        return ComputedPass(logits=lambda: [0] * len(schedule.needs_sampling))

    def sample(self, computed: ComputedPass, requests: list[Request]) -> SampledTokens:
        del computed
        return SampledTokens.known([1] * len(requests))

    def probe(self) -> None:
        pass


class SimulatedReplica:
    """One core on the clock of `world`."""

    def __init__(
        self,
        world: simpy.Environment,
        *,
        times: StepTimes,
        num_blocks: int,
        max_batch_size: int,
        deliver: Callable[[StepResult], None],
    ) -> None:
        """Pass the result of each step to `deliver`, when it has ended."""
        self._world = world
        self._times = times
        self._deliver = deliver
        self._runner = _CountingRunner()
        limits = SchedulerLimits(
            max_batch_size=max_batch_size, max_num_batched_tokens=2048, max_prefill_tokens_beside_decodes=48
        )
        manager = PagedKVCacheManager([num_blocks], BLOCK_SIZE, max_chunk=512, keeps_prefixes=True)
        self.core = EngineCore(
            self._runner,
            ContinuousScheduler(manager, limits, POLICIES["fcfs"]),
            manager,
            eos_token_ids=frozenset(),
            share_prefix=share_with_all,
            clock=lambda: 0.0,
        )
        self._work = world.event()
        world.process(self._run())

    def submit(self, submission: Submit) -> None:
        """Queue a request; the core sees it before its next step."""
        self.core.handle(submission)
        if not self._work.triggered:
            self._work.succeed()

    def _run(self) -> Generator[simpy.Event, None, None]:
        while True:
            if not self.core.has_work:
                self._work = self._world.event()
                yield self._work
            result = self.core.step()
            yield self._world.timeout(self._times.of(self._runner.num_decodes, self._runner.num_prompt_tokens))
            self._deliver(result)

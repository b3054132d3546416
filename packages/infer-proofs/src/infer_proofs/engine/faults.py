"""Fault injection: a plan says what fails, where and when, for tests of how an engine fails.

`build_engine(config, wrap_parts=plan.wrap_parts)` wraps the parts of the engine's core:

    stage        what is around it                   actions
    schedule     making a pass's schedule            raise, sleep
    grow         a running request's next blocks     raise, refuse, sleep
    allocate     memory that was just given          raise (with the memory taken), sleep
    forward      the launch of the model             raise, sleep
    sample       the launch of choosing tokens       raise, sleep, nan (the request's logits)
    execute      the device's computing              raise (`infer_proofs.engine.formula_runner` alone)
    wait         the host's wait for tokens          raise, sleep

A failing tokenizer (`infer_proofs.engine.cores.FailingTokenizer`) shows what happens on the text side.
"""

import time
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

from infer_engine.assembly.core import CoreParts
from infer_engine.request import StepRow
from infer_engine.scheduling import BaseScheduler, KVCacheManager, Schedule
from infer_engine.step_runner import ComputedPass, SampledTokens, SamplerOutput, StepRunner

Stage = Literal["schedule", "grow", "allocate", "forward", "sample", "execute", "wait"]
Action = Literal["raise", "refuse", "sleep", "nan"]


class InjectedFaultError(RuntimeError):
    """A fault of a plan."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        stage: where.
        action: what.
        step: in this pass only, counted from 0; None in any.
        request_id: where this request takes part only; None: where any does.
        block: once this many blocks have been given in all; None: at any time.
        times: how often; None: always.
        seconds: how long a `sleep` lasts.
    """

    stage: Stage
    action: Action = "raise"
    step: int | None = None
    request_id: str | None = None
    block: int | None = None
    times: int | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class FaultPlan:
    """The faults of one engine, and those that have happened.

    Attributes:
        faults: what, where and when.
        sleep: waits for seconds.
        step: passes scheduled so far.
        num_blocks: blocks given so far.
        triggered: stages of the faults that have happened, in order.
    """

    faults: list[Fault] = field(default_factory=list)
    sleep: Callable[[float], None] = time.sleep
    step: int = -1
    num_blocks: int = 0
    triggered: list[Stage] = field(default_factory=list)

    def trigger(self, stage: Stage, request_ids: Collection[str] = ()) -> list[Fault]:
        """Let the faults of `stage` happen; return those that the caller carries out.

        Raises:
            InjectedFaultError: one of them raises.
        """
        matching = [fault for fault in self.faults if self._matches(fault, stage, request_ids)]
        for fault in matching:
            if fault.times is not None:
                fault.times -= 1
            self.triggered.append(stage)
            if fault.action == "sleep":
                self.sleep(fault.seconds)
            if fault.action == "raise":
                raise InjectedFaultError(f"a fault on purpose: {fault}")
        return matching

    def _matches(self, fault: Fault, stage: Stage, request_ids: Collection[str]) -> bool:
        return (
            fault.stage == stage
            and fault.times != 0
            and fault.step in (None, self.step)
            and (fault.request_id is None or fault.request_id in request_ids)
            and (fault.block is None or self.num_blocks >= fault.block)
        )

    def wrap_parts(self, parts: CoreParts) -> CoreParts:
        """Return `parts` with this plan's faults: an `infer_engine.assembly.core.WrapParts`."""
        if not self.faults:
            return parts
        return CoreParts(
            runner=_FaultyRunner(parts.runner, self),
            kv_cache_manager=cast("KVCacheManager", _FaultyKVCacheManager(parts.kv_cache_manager, self)),
            build_scheduler=lambda manager: cast(
                "BaseScheduler", _FaultyScheduler(parts.build_scheduler(manager), self)
            ),
        )


class _FaultyRunner:
    def __init__(self, inner: StepRunner, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    def forward(self, schedule: Schedule) -> Any:
        self._plan.trigger("forward", [request.request_id for request, _ in schedule.items])
        return self._inner.forward(schedule)

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        for fault in self._plan.trigger("sample", [row.request_id for row in rows]):
            if fault.action == "nan":
                spoiled = [i for i, each in enumerate(rows) if fault.request_id in (None, each.request_id)]
                computed = _with_nan(computed, spoiled)
        sampled = self._inner.sample(computed, rows)
        request_ids = [row.request_id for row in rows]

        def wait() -> SamplerOutput:
            self._plan.trigger("wait", request_ids)
            return sampled.wait()

        return SampledTokens(wait, sampled.on_device)

    def probe(self) -> None:
        self._plan.trigger("forward")
        self._inner.probe()


def _with_nan(computed: ComputedPass, rows: list[int]) -> ComputedPass:
    """Return `computed` with logits that are not numbers in `rows`."""
    logits = deepcopy(computed.logits())  # the runner's own may not be writable here
    for row in rows:
        logits[row] = float("nan")
    return replace(computed, logits=lambda: logits, choose=None)


class _FaultyKVCacheManager:
    """Passes every call on; memory that is given may be refused or fail."""

    def __init__(self, inner: KVCacheManager, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def admit(self, sequence_id: str, num_tokens: int, hit: Any) -> Any:
        return self._given(sequence_id, self._inner.admit(sequence_id, num_tokens, hit))

    def try_extend(self, sequence_id: str, num_tokens: int, *, first_position: int) -> Any:
        if any(fault.action == "refuse" for fault in self._plan.trigger("grow", [sequence_id])):
            return None
        return self._given(sequence_id, self._inner.try_extend(sequence_id, num_tokens, first_position=first_position))

    def _given(self, sequence_id: str, edits: Any) -> Any:
        self._plan.num_blocks += sum(len(edit.block_ids) for edit in edits or ())
        self._plan.trigger("allocate", [sequence_id])
        return edits


class _FaultyScheduler:
    """Passes every call on; making a schedule may fail."""

    def __init__(self, inner: BaseScheduler, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def passes(self) -> Sequence[Callable[[], Schedule]]:
        return [partial(self._make, make) for make in self._inner.passes]

    def _make(self, make: Callable[[], Schedule]) -> Schedule:
        self._plan.step += 1
        self._plan.trigger("schedule")
        return make()

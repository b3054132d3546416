"""Runs three requests through the engine's continuous batching, step by step, and prints what happens.

    uv run python examples/nanogpt/simulate.py --model nanogpt

Two requests arrive before step 0, one before step 3, with `prefill_first` and a batch of at most 4. The program hands
them to an `EngineCore`, calls `step()` until there is nothing left to do, and prints who was admitted, prefilled,
decoded and completed in each step, and how many positions of the KV cache each request then has.

Nothing of that is assumed: admissions and tokens are what `step()` returns, and a runner around the engine's own notes
what each forward pass computes and the position up to which it fills the cache. (A snapshot of the engine would not do:
it is taken after the step, when a completed request has given back its memory.)
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from infer_engine import EngineConfig, SamplingParams
from infer_engine.assembly.core import CoreParts, build_core
from infer_engine.messages import Submit
from infer_engine.request import Request, StepRow
from infer_engine.scheduling import Schedule
from infer_engine.step_runner import ComputedPass, SampledTokens, StepRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request: its text, the tokens that it wants, and the step before which it comes."""

    name: str
    prompt: str
    num_tokens: int
    step: int


ARRIVALS = (
    Arrival(name="A", prompt="O Romeo, ", num_tokens=17, step=0),
    Arrival(name="B", prompt="To be or ", num_tokens=22, step=0),
    Arrival(name="C", prompt="KING HENRY:\n", num_tokens=15, step=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one forward pass computes for one request: the positions `start` to `end - 1` of its sequence."""

    name: str
    start: int
    end: int
    is_prompt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step did.

    Attributes:
        number: counted from 0.
        admitted: names of those that left the queue.
        passes: what each of its forward passes computed.
        completed: names of those that got their last token.
    """

    number: int
    admitted: tuple[str, ...]
    passes: tuple[tuple[Share, ...], ...]
    completed: tuple[str, ...]

    @property
    def shares(self) -> tuple[Share, ...]:
        """What it computed, pass after pass."""
        return tuple(share for one_pass in self.passes for share in one_pass)

    @property
    def cached(self) -> dict[str, int]:
        """By name, the positions of the KV cache that a request has after the step, or had when it completed in it."""
        return {share.name: share.end for share in self.shares}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one request: its text, and the steps and cache positions of its life."""

    arrival: Arrival
    text: str
    num_prompt_tokens: int
    num_generated_tokens: int
    admitted_at: int
    completed_at: int
    cache_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All steps, and what became of each request, in the order of the arrivals."""

    steps: tuple[Step, ...]
    outcomes: tuple[Outcome, ...]


@dataclass(slots=True)
class PassNotes:
    """What each forward pass computed, in the order of the passes.

    Attributes:
        passes: those that were not collected yet.
    """

    passes: list[tuple[Share, ...]] = field(default_factory=list)

    def wrap_parts(self, parts: CoreParts) -> CoreParts:
        """Return `parts` with a runner that notes its passes."""
        return replace(parts, runner=_NotingRunner(parts.runner, self.passes))

    def collect(self) -> tuple[tuple[Share, ...], ...]:
        """Return the passes since the last call."""
        collected = tuple(self.passes)
        self.passes.clear()
        return collected


class _NotingRunner:
    def __init__(self, inner: StepRunner, passes: list[tuple[Share, ...]]) -> None:
        self._inner = inner
        self._passes = passes

    def forward(self, schedule: Schedule) -> ComputedPass:
        self._passes.append(tuple(_share(request, num_tokens) for request, num_tokens in schedule.items))
        return self._inner.forward(schedule)

    def sample(self, logits: Any, rows: Sequence[StepRow]) -> SampledTokens:
        return self._inner.sample(logits, rows)

    def probe(self) -> None:
        self._inner.probe()


def main() -> None:
    """Simulate the three requests and print the trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("nanogpt"), help="folder that `train.py` wrote")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    simulation = simulate(options.model, ARRIVALS, seed=options.seed)
    print("\n".join([*trace(simulation), "", *summary(simulation)]))


def simulate(folder: Path, arrivals: Sequence[Arrival] = ARRIVALS, *, seed: int = 0) -> Simulation:
    """Run `arrivals` through an engine over the checkpoint in `folder`, from the first step to the last."""
    notes = PassNotes()
    config = EngineConfig(
        model=str(folder),
        scheduler_policy="prefill_first",
        max_batch_size=4,
        speculative_config="none",  # a step is one token of each request
    )
    parts = build_core(config, wrap_parts=notes.wrap_parts)
    submitted = {
        arrival.name: Submit(
            request_id=arrival.name,
            prompt_token_ids=parts.tokenizer.encode(arrival.prompt),
            max_tokens=arrival.num_tokens,
            seed=seed,
            params=SamplingParams(temperature=0.8, ignore_eos=True),
        )
        for arrival in arrivals
    }
    generated: dict[str, list[int]] = {arrival.name: [] for arrival in arrivals}
    steps: list[Step] = []
    while len(steps) <= max(arrival.step for arrival in arrivals) or parts.core.has_work:
        for arrival in arrivals:
            if arrival.step == len(steps):
                parts.core.handle(submitted[arrival.name])
        result = parts.core.step()
        for output in result.outputs:
            generated[output.request_id] += output.token_ids
        completed = tuple(output.request_id for output in result.outputs if output.finish_reason is not None)
        steps.append(
            Step(number=len(steps), admitted=tuple(result.admitted), passes=notes.collect(), completed=completed)
        )
    outcomes = [
        Outcome(
            arrival=arrival,
            text=parts.tokenizer.decode(generated[arrival.name]),
            num_prompt_tokens=len(submitted[arrival.name].prompt_token_ids),
            num_generated_tokens=len(generated[arrival.name]),
            admitted_at=next(step.number for step in steps if arrival.name in step.admitted),
            completed_at=next(step.number for step in steps if arrival.name in step.completed),
            cache_positions=max(step.cached.get(arrival.name, 0) for step in steps),
        )
        for arrival in arrivals
    ]
    return Simulation(steps=tuple(steps), outcomes=tuple(outcomes))


def trace(simulation: Simulation) -> list[str]:
    """Return a line for each step."""
    lines = [f"{'step':>4}  {'admitted':8}  {'prefilled':12}  {'decoded':8}  {'completed':9}  cache positions"]
    for step in simulation.steps:
        prompts = [f"{share.name}:{share.end - share.start}" for share in step.shares if share.is_prompt]
        decodes = [share.name for share in step.shares if not share.is_prompt]
        cached = "  ".join(f"{name}:{positions:2}" for name, positions in sorted(step.cached.items()))
        cells = f"{_names(step.admitted):8}  {_names(prompts):12}  {_names(decodes):8}  {_names(step.completed):9}"
        lines.append(f"{step.number:4}  {cells}  {cached}")
    return lines


def summary(simulation: Simulation) -> list[str]:
    """Return a line for each request."""
    return [
        f"{outcome.arrival.name}: {outcome.arrival.prompt!r} + {outcome.text!r}\n"
        f"   admitted at step {outcome.admitted_at}, completed at step {outcome.completed_at}; "
        f"{outcome.num_prompt_tokens} + {outcome.num_generated_tokens} tokens, "
        f"{outcome.cache_positions} positions in the cache"
        for outcome in simulation.outcomes
    ]


def _share(request: Request, num_tokens: int) -> Share:
    start = request.num_computed_tokens
    return Share(
        name=request.request_id,
        start=start,
        end=start + num_tokens,
        is_prompt=start < request.num_prompt_tokens,
    )


def _names(names: Iterable[str]) -> str:
    return " ".join(names) or "-"


if __name__ == "__main__":
    main()

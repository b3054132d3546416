"""From times of steps to what is said of them: host, device, and shares of what the machine can do. Knows no engine.

    one step, host       |schedule|staging, plan, launches, ...|choose a token each, and wait|outputs|
                         |        '------- launch_ms ----------'---------- wait_ms ----------'       |
                         '------------------------------- step_ms -----------------------------------'
    device, never idle                                          |---------- device_ms ------|

The host's clock cannot see the device, whose work begins with the first launch and ends, at the latest, with the wait.
What it takes is measured apart (`held_runner.py`); what is left of the step is what it idles.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ceilings import Ceilings, ModelCosts, Work
from gpu.parts import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Milliseconds of one step, by the host's clock.

    Attributes:
        step_ms: all of it, from the schedule to the outputs' being made.
        launch_ms: of the forward pass, until it returned: everything of it is queued, and nobody has waited for it.
        wait_ms: from then until each sequence's token is on the host: the few launches of choosing, and waiting.
    """

    step_ms: float
    launch_ms: float
    wait_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpeed:
    """Decode steps of a batch: medians, in milliseconds.

    Attributes:
        num_seqs: sequences of the batch.
        context: tokens of a sequence, on average.
        step_ms: of a step.
        slowest_ms: of the slowest step: where it is much more, something was compiled or collected in it.
        launch_ms: of a step, as of `StepTimes`.
        wait_ms: of a step, as of `StepTimes`.
        device_ms: what the device computes in a step where it never waits for the host; measured in other steps. None
            where it could not be: the forward pass waits for the device.
        least_ms: what reading and multiplying take by the machine's ceilings; None where there are none.
    """

    num_seqs: int
    context: float
    step_ms: float
    slowest_ms: float
    launch_ms: float
    wait_ms: float
    device_ms: float | None
    least_ms: float | None

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences together."""
        return self.num_seqs / self.step_ms * 1e3

    @property
    def host_ms(self) -> float:
        """The host's own work: all of the step but choosing and waiting for tokens."""
        return self.step_ms - self.wait_ms

    @property
    def idle_share(self) -> float | None:
        """Share of the step in which the device has nothing to do; None where `device_ms` is."""
        return None if self.device_ms is None else max(0.0, 1 - self.device_ms / self.step_ms)

    @property
    def bound_share(self) -> float | None:
        """Share of the step that the machine needs at the least; None where `least_ms` is."""
        return None if self.least_ms is None else self.least_ms / self.step_ms

    def as_json(self) -> dict[str, Any]:
        """What is saved."""
        derived = ("tokens_per_s", "host_ms", "idle_share", "bound_share")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def finding(self, what: str) -> Finding:
        """Return a line about the shape `what`."""
        device = "cannot be told" if self.device_ms is None else f"{self.device_ms:.2f}, idle {self.idle_share:.0%}"
        return Finding(
            what=f"{what}, decode, batch {self.num_seqs}",
            found=f"{self.tokens_per_s:,.0f} tokens/s{_of_bound(self.bound_share)}; step {self.step_ms:.2f} ms: host "
            f"{self.host_ms:.2f}, device {device}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSpeed:
    """One prompt, alone.

    Attributes:
        num_tokens: of it.
        chunk_size: tokens of it in one step, at most.
        prompt_ms: milliseconds to its first token, the median.
        least_ms: what reading the weights once and multiplying take by the machine's ceilings; None where there are
            none.
        limit: what sets that time: `memory` or `arithmetic`; None where `least_ms` is.
    """

    num_tokens: int
    chunk_size: int
    prompt_ms: float
    least_ms: float | None
    limit: str | None

    @property
    def tokens_per_s(self) -> float:
        """Of the prompt."""
        return self.num_tokens / self.prompt_ms * 1e3

    @property
    def bound_share(self) -> float | None:
        """Share of the time that the machine needs at the least; None where `least_ms` is."""
        return None if self.least_ms is None else self.least_ms / self.prompt_ms

    def as_json(self) -> dict[str, Any]:
        """What is saved."""
        return asdict(self) | {"tokens_per_s": self.tokens_per_s, "bound_share": self.bound_share}

    def finding(self, what: str) -> Finding:
        """Return a line about the shape `what`."""
        return Finding(
            what=f"{what}, prompt of {self.num_tokens} by {self.chunk_size}",
            found=f"{self.tokens_per_s:,.0f} tokens/s{_of_bound(self.bound_share)}; {self.prompt_ms:.1f} ms",
        )


def decode_work(costs: ModelCosts, *, num_seqs: int, context: int) -> Work:
    """Return the work of a step in which each of `num_seqs` sequences reads `context` tokens: weights are read once."""
    one = costs.decode(context - 1, 1)
    own_bytes = one.num_bytes - costs.step_bytes
    return Work(num_bytes=costs.step_bytes + num_seqs * own_bytes, operations=num_seqs * one.operations)


def summarize_decode(
    steps: Sequence[StepTimes],
    device_ms: Sequence[float | None],
    *,
    num_seqs: int,
    context: float,
    costs: ModelCosts,
    ceilings: Ceilings | None,
) -> DecodeSpeed:
    """Return what `steps` of `num_seqs` sequences say.

    Args:
        steps: as they come, none of them held back.
        device_ms: of steps that were held back, None where one was not held long enough.
        num_seqs: sequences in each step.
        context: tokens that each of them reads, on average.
        costs: of the model.
        ceilings: of the device.
    """
    known = [each for each in device_ms if each is not None]
    work = decode_work(costs, num_seqs=num_seqs, context=round(context))
    return DecodeSpeed(
        num_seqs=num_seqs,
        context=context,
        step_ms=statistics.median(each.step_ms for each in steps),
        slowest_ms=max(each.step_ms for each in steps),
        launch_ms=statistics.median(each.launch_ms for each in steps),
        wait_ms=statistics.median(each.wait_ms for each in steps),
        device_ms=statistics.median(known) if known else None,
        least_ms=None if ceilings is None else work.least_seconds(ceilings) * 1e3,
    )


def summarize_prefill(
    prompts_ms: Sequence[float], *, num_tokens: int, chunk_size: int, costs: ModelCosts, ceilings: Ceilings | None
) -> PrefillSpeed:
    """Return what the times `prompts_ms` to the first tokens of prompts of `num_tokens` tokens say."""
    work = costs.prefill(num_tokens)
    return PrefillSpeed(
        num_tokens=num_tokens,
        chunk_size=chunk_size,
        prompt_ms=statistics.median(prompts_ms),
        least_ms=None if ceilings is None else work.least_seconds(ceilings) * 1e3,
        limit=None if ceilings is None else work.limit(ceilings),
    )


def _of_bound(share: float | None) -> str:
    return "" if share is None else f", {share:.0%} of the bound"

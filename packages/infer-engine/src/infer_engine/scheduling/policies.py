"""The four policies of continuous batching. Know orders; know no memory and no budget."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from infer_engine.core.request import Request
from infer_engine.scheduling.waiting_queue import Rank

AGING_STEPS = 100
"""Steps of waiting that are worth one level of priority."""

MAX_AGING_LEVELS = 100
"""The largest priority, either way, that waiting requests are told apart by."""


def by_arrival(request: Request) -> tuple[int, int]:
    """First come, first served."""
    return 0, request.arrival


def by_priority(request: Request) -> tuple[int, int]:
    """The lower priority number first, then who came first."""
    return request.priority, request.arrival


def by_priority_with_aging(request: Request) -> tuple[int, int]:
    """As `by_priority`, but whoever waits rises by one level every `AGING_STEPS` steps.

    All that wait rise alike, so that the order between two of them never changes: it follows from the priority and the
    step of arrival alone. A request is overtaken only by those that come within `AGING_STEPS` steps for each level that
    they are better. Priorities beyond `MAX_AGING_LEVELS` either way count as that: nobody waits for ever.
    """
    level = max(-MAX_AGING_LEVELS, min(MAX_AGING_LEVELS, request.priority))
    return level * AGING_STEPS + request.arrival_step, request.arrival


def in_order(decodes: Sequence[Request]) -> Sequence[Request]:
    """Leave decodes in the order of the running requests."""
    return decodes


def longest_ago_first(decodes: Sequence[Request]) -> Sequence[Request]:
    """Take decodes in turn: those first that were computed longest ago."""
    return sorted(decodes, key=lambda request: request.last_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a continuous scheduler orders its requests.

    Attributes:
        waiting_rank: who is admitted first.
        running_rank: who is served first where not all can be, and who is preempted last.
        decode_order: the order in which running decodes take the step's tokens.
        prefill_pass: compute prompts in a pass of their own, before the decodes.
    """

    waiting_rank: Rank = by_arrival
    running_rank: Rank = by_arrival
    decode_order: Callable[[Sequence[Request]], Sequence[Request]] = in_order
    prefill_pass: bool = False


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fcfs": Policy(),
        "prefill_first": Policy(prefill_pass=True),
        "decode_round_robin": Policy(decode_order=longest_ago_first),
        "priority": Policy(waiting_rank=by_priority_with_aging, running_rank=by_priority),
    }
)
"""By name, as in `EngineConfig.scheduler_policy`."""

"""The four policies of continuous batching: in which order requests are served."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from infer_engine.request import Request
from infer_engine.scheduling.waiting_queue import Rank

AGING_STEPS = 100
"""Steps of waiting that raise a request by one level of priority."""

MAX_AGING_LEVELS = 100
"""Priorities of waiting requests are clamped to this, positive or negative."""


def by_arrival(request: Request) -> tuple[int, int]:
    """Rank by arrival: first come, first served."""
    return 0, request.arrival


def by_priority(request: Request) -> tuple[int, int]:
    """Rank by priority, the lower number first, then by arrival."""
    return request.submission.priority, request.arrival


def by_priority_with_aging(request: Request) -> tuple[int, int]:
    """Rank by priority, where a waiting request rises by one level every `AGING_STEPS` steps.

    All waiting requests rise equally, so the order of two of them never changes: it depends on priority and step of
    arrival only. A later request overtakes an earlier one only if it arrives within `AGING_STEPS` steps for each level
    that its priority is better. Priorities are clamped to `MAX_AGING_LEVELS`, so that no request waits for ever.
    """
    level = max(-MAX_AGING_LEVELS, min(MAX_AGING_LEVELS, request.submission.priority))
    return level * AGING_STEPS + request.arrival_step, request.arrival


def keep_order(decodes: Sequence[Request]) -> Sequence[Request]:
    """Return the decodes in the order of the running requests."""
    return decodes


def least_recent_first(decodes: Sequence[Request]) -> Sequence[Request]:
    """Return the decodes that were computed longest ago first."""
    return sorted(decodes, key=lambda request: request.last_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The order that a continuous scheduler gives its requests.

    Attributes:
        waiting_rank: the order of admission.
        running_rank: the order of service; the last request is preempted first.
        decode_order: the order in which decodes take the tokens of a step.
        prefill_pass: whether prompts are computed in a pass of their own, before the decodes.
    """

    waiting_rank: Rank = by_arrival
    running_rank: Rank = by_arrival
    decode_order: Callable[[Sequence[Request]], Sequence[Request]] = keep_order
    prefill_pass: bool = False


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fcfs": Policy(),
        "prefill_first": Policy(prefill_pass=True),
        "decode_round_robin": Policy(decode_order=least_recent_first),
        "priority": Policy(waiting_rank=by_priority_with_aging, running_rank=by_priority),
    }
)
"""The policies by name, as in `EngineConfig.scheduler_policy`."""

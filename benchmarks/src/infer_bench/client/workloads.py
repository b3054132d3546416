"""The workloads that a server is measured with: who arrives when, with which prompt.

Lengths and arrivals are drawn from `seed` alone, the prompts' tokens from `seed` and `contents`: two workloads that
differ only in `contents` ask for the same work, and a prefix cache finds nothing of the one in the other.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, islice
from typing import NamedTuple

Lengths = Callable[[random.Random], int]
Arrivals = Callable[[random.Random, int, float], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request to come.

    Attributes:
        arrival_s: seconds after the workload's start.
        prompt: token ids.
        max_tokens: tokens to generate.
        priority: the lower, the more urgent, where the server heeds it.
    """

    arrival_s: float
    prompt: list[int]
    max_tokens: int
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in the order of their arrival.

    Attributes:
        name: which of `WORKLOADS`.
        requests: what is asked, by arrival.
        is_closed_loop: each request comes when one before it has ended, not at its `arrival_s`.
    """

    name: str
    requests: tuple[PlannedRequest, ...]
    is_closed_loop: bool

    @property
    def longest(self) -> int:
        """Prompt and generated tokens of the longest request."""
        return max(len(request.prompt) + request.max_tokens for request in self.requests)


class _Recipe(NamedTuple):
    num_requests: int
    prompt_tokens: Lengths
    new_tokens: Lengths
    arrivals: Arrivals
    rate: float = 1.0
    shared_tokens: int = 0
    is_closed_loop: bool = False


def _between(low: int, high: int) -> Lengths:
    return lambda draw: draw.randint(low, high)


def _mostly_long(draw: random.Random) -> int:
    return draw.randint(1024, 2048) if draw.random() < 0.75 else draw.randint(64, 128)


def _at_once(_draw: random.Random, count: int, _rate: float) -> list[float]:
    return [0.0] * count


def _evenly(_draw: random.Random, count: int, rate: float) -> list[float]:
    return [index / rate for index in range(count)]


def _poisson(draw: random.Random, count: int, rate: float) -> list[float]:
    gaps = (draw.expovariate(rate) for _ in range(count - 1))
    return list(accumulate(gaps, initial=0.0))


_ANSWER, _256 = _between(64, 256), _between(256, 256)
_RECIPES = {
    "single": _Recipe(1, _256, _256, _at_once),
    "baseline": _Recipe(10, _256, _256, _at_once, is_closed_loop=True),
    "mixed": _Recipe(16, _between(32, 1024), _ANSWER, _at_once),
    "continuous_batching": _Recipe(32, _between(64, 512), _ANSWER, _evenly, rate=4),
    "paged_attention": _Recipe(48, _between(128, 384), _between(128, 256), _at_once),
    "chunked_prefill": _Recipe(48, _mostly_long, _ANSWER, _poisson, rate=6),
    "prefix_caching": _Recipe(48, _between(32, 128), _256, _evenly, rate=8, shared_tokens=1024),
}
WORKLOADS = tuple(_RECIPES)
"""The names that `make_workload` knows."""


def make_workload(
    name: str,
    *,
    scale: float = 1.0,
    rate_scale: float = 1.0,
    seed: int = 0,
    contents: int = 0,
    vocab_size: int,
    text: Sequence[int] = (),
    num_requests: int | None = None,
) -> Workload:
    """Return the workload `name`, the same one for the same arguments.

    Args:
        name: one of `WORKLOADS`.
        scale: factor on the lengths of prompts and answers; each stays at least 1.
        rate_scale: factor on the rate of arrivals.
        seed: draws lengths and arrivals.
        contents: with `seed`, draws the prompts' tokens.
        vocab_size: prompts are token ids below this one, any of them.
        text: tokens of a text, of which prompts are pieces instead.
        num_requests: how many, in place of the workload's own number: the first of them are the same ones.

    Raises:
        ValueError: an unknown name, or a number that is not positive.
    """
    if name not in _RECIPES:
        raise ValueError(f"`name` is {name!r}; the workloads are {', '.join(WORKLOADS)}.")
    recipe = _RECIPES[name]
    count = recipe.num_requests if num_requests is None else num_requests
    numbers = {"scale": scale, "rate_scale": rate_scale, "vocab_size": vocab_size, "num_requests": count}
    for what, value in numbers.items():
        if value <= 0:
            raise ValueError(f"`{what}` is {value}; it must be positive.")

    draw = random.Random(f"{name} {seed}")  # noqa: S311 - a workload, not a secret
    lengths = [
        (_scaled(recipe.prompt_tokens(draw), scale), _scaled(recipe.new_tokens(draw), scale)) for _ in range(count)
    ]
    come = random.Random(f"{name} {seed} arrivals")  # noqa: S311 - the same
    arrivals = recipe.arrivals(come, count, recipe.rate * rate_scale)

    pick = random.Random(f"{name} {seed} {contents}")  # noqa: S311 - the same

    def token_ids(length: int) -> list[int]:
        if not text:
            return [pick.randrange(vocab_size) for _ in range(length)]
        begin = pick.randrange(len(text))
        return list(islice(cycle(text), begin, begin + length))

    shared = token_ids(_scaled(recipe.shared_tokens, scale)) if recipe.shared_tokens else []
    requests = tuple(
        PlannedRequest(arrival_s=arrival_s, prompt=shared + token_ids(length), max_tokens=answer)
        for arrival_s, (length, answer) in zip(arrivals, lengths, strict=True)
    )
    return Workload(name=name, requests=requests, is_closed_loop=recipe.is_closed_loop)


def with_poisson_arrivals(workload: Workload, *, rate: float, seed: int = 0) -> Workload:
    """Return the same requests, arriving at random, `rate` of them per second."""
    if rate <= 0:
        raise ValueError(f"`rate` is {rate}; it must be positive.")
    draw = random.Random(f"arrivals {seed}")  # noqa: S311 - a workload, not a secret
    times = _poisson(draw, len(workload.requests), rate)
    requests = tuple(
        replace(request, arrival_s=arrival_s) for request, arrival_s in zip(workload.requests, times, strict=True)
    )
    return replace(workload, requests=requests, is_closed_loop=False)


def _scaled(length: int, scale: float) -> int:
    return max(1, round(length * scale))

"""What is asked of the server, and the streams that ask it, in a closed loop. Knows requests and clocks."""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from gpu.server_findings import Answered, shifted
from load_generator import run_workload
from workloads import PlannedRequest, Workload

VOCAB_SIZE = 512
"""Prompts are of ids below, which every vocabulary has."""


class ServerFailedError(RuntimeError):
    """The server did not start, or does not answer as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What is asked of which server.

    Attributes:
        shape: of the model; its weights are random.
        flags: of the server, beside its device.
        num_streams: requests open at once.
        load_s: seconds in which streams begin requests.
        least_load_s: a shorter load says nothing.
        warm_up_s: seconds in which streams begin requests that do not count, before the load.
        prompt_tokens: the shortest and the longest prompt.
        new_tokens: the shortest and the longest answer.
        start_s: seconds that starting and warming up may take, at the least.
        end_s: seconds that the last answers, the looks after them and the server's end may take.
        request_timeout_s: a request that takes longer has failed.
        warm_up_timeout_s: the same while kernels are compiled.
        most_host_growth: share by which the host's memory may grow in the load's second half; None judges nothing,
            where the load is too short for all caches to be filled.
    """

    shape: str
    flags: tuple[str, ...] = ()
    num_streams: int
    load_s: float
    least_load_s: float
    warm_up_s: float
    prompt_tokens: tuple[int, int]
    new_tokens: tuple[int, int]
    start_s: float
    end_s: float
    request_timeout_s: float
    warm_up_timeout_s: float
    most_host_growth: float | None

    @property
    def least_s(self) -> float:
        """Seconds without which there is no use in beginning."""
        return self.start_s + self.least_load_s + self.end_s

    def load_s_within(self, seconds_left: float) -> float | None:
        """Return how long the load may last if all must have ended in `seconds_left`; None: not long enough."""
        load_s = min(self.load_s, seconds_left - self.end_s)
        return load_s if load_s >= self.least_load_s else None


ON_GPU = LoadPlan(
    shape="llama-3.2-3b",
    num_streams=64,
    load_s=30.0,
    least_load_s=8.0,
    warm_up_s=4.0,
    prompt_tokens=(128, 512),
    new_tokens=(64, 256),
    start_s=15.0,
    end_s=10.0,
    request_timeout_s=20.0,
    warm_up_timeout_s=60.0,
    most_host_growth=0.05,
)
REHEARSAL = LoadPlan(
    shape="llama-30m",
    flags=("--kv-cache-memory", "32MiB"),
    num_streams=4,
    load_s=2.0,
    least_load_s=1.0,
    warm_up_s=0.5,
    prompt_tokens=(16, 64),
    new_tokens=(4, 16),
    start_s=2.0,
    end_s=2.0,
    request_timeout_s=60.0,
    warm_up_timeout_s=60.0,
    most_host_growth=None,
)


def planned_requests(plan: LoadPlan, *, contents: str) -> Iterator[PlannedRequest]:
    """Yield requests without end, the same ones for the same `contents`."""
    draw = random.Random(f"server load {contents}")  # noqa: S311 - a workload, not a secret
    while True:
        num_prompt_tokens, num_new = draw.randint(*plan.prompt_tokens), draw.randint(*plan.new_tokens)
        prompt = [draw.randrange(VOCAB_SIZE) for _ in range(num_prompt_tokens)]
        yield PlannedRequest(arrival_s=0.0, prompt=prompt, max_tokens=num_new)


async def closed_loop(
    url: str, requests: Iterator[PlannedRequest], *, num_streams: int, load_s: float, timeout_s: float
) -> list[Answered]:
    """Keep `num_streams` requests open for `load_s` seconds, wait for the last ones, and return all, as they ended.

    Each stream sends one request at least. One whose request fails sends no other: a server that is gone would refuse
    thousands.
    """
    began_s = time.perf_counter()
    answers: list[Answered] = []

    async def stream() -> None:
        for request in requests:
            sent_s = time.perf_counter() - began_s
            alone = Workload(name="server load", requests=(request,), is_closed_loop=True)
            (result,) = await run_workload(url, alone, progress=False, timeout_s=timeout_s)
            answers.append(Answered(request=request, result=shifted(result, sent_s)))
            if result.error is not None or time.perf_counter() - began_s >= load_s:
                return

    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return answers


async def warm_up(url: str, plan: LoadPlan) -> None:
    """Ask one request alone, then what the load will ask, other prompts.

    Raises:
        ServerFailedError: an answer is not whole.
    """
    requests = planned_requests(plan, contents="warm-up")
    timeout_s = plan.warm_up_timeout_s
    answers = await closed_loop(url, requests, num_streams=1, load_s=0.0, timeout_s=timeout_s)
    if answers[0].is_whole:
        answers += await closed_loop(
            url, requests, num_streams=plan.num_streams, load_s=plan.warm_up_s, timeout_s=timeout_s
        )
    for answer in answers:
        if not answer.is_whole:
            failure = answer.result.error or f"{answer.result.num_tokens} tokens of {answer.request.max_tokens}"
            raise ServerFailedError(f"in the warm-up: {failure}")

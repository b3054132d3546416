"""The server part: 64 streams at once, how fast they are answered, and what they leave behind.

A closed loop: each stream sends its next request when its last one has ended, and none after the load's time. The
server is a process of its own with random weights of a real shape; the client is in this process. A warm-up of a few
seconds sends the same kind of requests and is not counted: in it kernels are compiled and memory is reserved.
"""

import asyncio
import gc
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
import torch

from infer_bench.client.load import RequestResult, run_workload
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.gpu.device_memory import free_memory
from infer_bench.gpu.parts import Finding, PartReport, Place, left_out
from infer_bench.gpu.server_probes import (
    first_line,
    judge_health,
    judge_idle,
    judge_memory,
    milliseconds,
    poll_health,
    poll_memory,
    read_counts,
    read_memory,
    wait_until_idle,
)
from infer_bench.server.launch import serving
from infer_bench.server.metrics import watching

START_S = 15.0
"""The least seconds that starting and warming up take."""
END_S = 10.0
"""Seconds that the last answers, the probes after them and the server's end may take."""
LEAST_LOAD_SHARE = 0.25
"""Share of the load's seconds; a shorter load says nothing."""
REQUEST_TIMEOUT_S, WARM_UP_TIMEOUT_S = 30.0, 60.0
"""A request that takes longer has failed; in the warm-up, kernels are compiled."""
OVERTIME_S = 2.0
"""A server that still runs so long after the part's deadline is killed."""
NUM_LOG_LINES = 30
VOCAB_SIZE = 512
"""Prompts are of ids below it, which every vocabulary has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What is asked of which server.

    Attributes:
        shape: of the model.
        flags: of the server, beside its device.
        num_streams: requests open at once.
        load_s: seconds in which streams begin requests.
        warm_up_s: the same of the warm-up.
        prompt_tokens: the shortest and the longest prompt.
        new_tokens: the shortest and the longest answer.
        most_host_growth: share by which the host's memory may grow in the second half of the load; None judges nothing,
            if the load is too short to fill all caches.
    """

    shape: str
    flags: tuple[str, ...] = ()
    num_streams: int
    load_s: float
    warm_up_s: float
    prompt_tokens: tuple[int, int]
    new_tokens: tuple[int, int]
    most_host_growth: float | None

    def load_s_within(self, seconds_left: float) -> float | None:
        """Return how long the load may last if everything must end in `seconds_left`; None if that is too short."""
        load_s = min(self.load_s, seconds_left - END_S)
        return load_s if load_s >= LEAST_LOAD_SHARE * self.load_s else None


ON_GPU = LoadPlan(
    shape="llama-3.2-3b",
    num_streams=64,
    load_s=30.0,
    warm_up_s=4.0,
    prompt_tokens=(128, 512),
    new_tokens=(64, 256),
    most_host_growth=0.05,
)
REHEARSED = LoadPlan(
    shape="llama-30m",
    flags=("--kv-cache-memory", "32MiB"),
    num_streams=4,
    load_s=2.0,
    warm_up_s=0.5,
    prompt_tokens=(16, 64),
    new_tokens=(4, 16),
    most_host_growth=None,
)


class ServerFailedError(RuntimeError):
    """The server did not start, or does not answer as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request and its result; times are seconds since the load began."""

    request: PlannedRequest
    result: RequestResult

    @property
    def is_whole(self) -> bool:
        """Whether the stream and the server's count both have as many tokens as were asked for."""
        result = self.result
        return (
            result.is_counted_by_server
            and result.finish_reason == "length"
            and result.num_tokens == len(result.token_times_s) == self.request.max_tokens
        )


def run(place: Place) -> PartReport:
    """Start a server, load it and judge what it did; a server that fails is a finding."""
    plan = REHEARSED if place.is_rehearsal else ON_GPU
    report = PartReport(details={"plan": asdict(plan)})
    if plan.load_s_within(place.seconds_left - START_S) is None:
        report.findings.append(left_out(f"{plan.num_streams} streams"))
        return report
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)  # makes this process's context, which is not to look like the server's
    free_memory()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        try:
            _serve_and_load(place, plan, log, report)
        except ServerFailedError as error:
            report.findings.append(Finding("the server", str(error), wanted="serves", holds=False))
        lines = log.read_text(errors="replace").splitlines()
    report.details["last_log_lines"] = lines[-NUM_LOG_LINES:]
    if lines and any(finding.holds is False for finding in report.findings):
        report.findings.append(Finding("the server's last log line", lines[-1][-120:]))
    return report


def _serve_and_load(place: Place, plan: LoadPlan, log: Path, report: PartReport) -> None:
    flags = ("--device", str(place.device), "--shutdown-timeout", "3", *plan.flags)
    with ExitStack() as stack:
        gc.collect()
        gc.freeze()  # pauses of the client would look like the server's
        stack.callback(gc.unfreeze)
        stack.enter_context(killing_children_at(place.deadline_s + OVERTIME_S))
        errors = stack.enter_context(log.open("wb"))
        began_s = time.perf_counter()
        try:
            server = stack.enter_context(serving(flags, shape=plan.shape, stderr=errors))
        except RuntimeError as error:
            raise ServerFailedError(str(error)) from error
        start_s = time.perf_counter() - began_s
        asyncio.run(warm_up(server.url, plan))
        warm_up_s = time.perf_counter() - began_s - start_s
        report.details |= {"start_s": start_s, "warm_up_s": warm_up_s}
        report.details |= {"banner": server.banner.splitlines(), "flags": list(server.flags)}
        report.findings.append(Finding(f"server of {plan.shape}", f"up in {start_s:.1f} s, warm in {warm_up_s:.1f}"))
        load_s = plan.load_s_within(place.seconds_left)
        if load_s is None:
            report.findings.append(left_out(f"{plan.num_streams} streams"))
            return
        found = asyncio.run(load(server.url, plan, load_s=load_s, device=place.device))
    report.findings += found.findings
    report.details |= found.details


async def load(url: str, plan: LoadPlan, *, load_s: float, device: torch.device) -> PartReport:
    """Load an idle server for `load_s` seconds, wait for the last answers, and judge; `device` is the server's."""
    idle_before = await wait_until_idle(url)
    memory = {"before": await read_memory(url, device)}
    health_s: list[float] = []
    health_failures: list[str] = []
    async with watching(url, headers={}) as watch:
        polling_health = asyncio.create_task(poll_health(url, health_s, health_failures))
        polling_memory = asyncio.create_task(poll_memory(url, device, load_s, memory))
        began_s = time.monotonic()
        answers = await closed_loop(
            url,
            planned_requests(plan, contents="load"),
            num_streams=plan.num_streams,
            load_s=load_s,
            timeout_s=REQUEST_TIMEOUT_S,
        )
        polling_health.cancel()
        if time.monotonic() - began_s < load_s:  # every stream has failed: the server has ended
            polling_memory.cancel()
        for task in (polling_health, polling_memory):
            with suppress(asyncio.CancelledError):
                await task
    await wait_until_idle(url)
    await asyncio.sleep(1.0)  # for memory that is freed late
    idle_after = await read_counts(url)
    memory["after"] = await read_memory(url, device)

    summary = summarize([answer.result for answer in answers])
    rates = rates_of(answers, load_s=load_s)
    latencies = (
        f"{milliseconds(summary[key]['p50'])} / {milliseconds(summary[key]['p99'])} ms" for key in ("ttft_s", "itl_s")
    )
    findings = [
        Finding(
            f"{plan.num_streams} streams for {load_s:.3g} s",
            f"{rates['output_tokens_per_s']:,.0f} tokens/s, {rates['requests_per_s']:.1f} requests/s",
        ),
        Finding("TTFT, ITL: p50 / p99", ", ".join(latencies)),
        judge_answers(answers),
        judge_health(health_s, health_failures),
        judge_idle(idle_before, idle_after),
        judge_memory(memory, most_host_growth=plan.most_host_growth),
    ]
    details = {
        "load_s": load_s,
        "rates": rates,
        "summary": summary,
        "health": {"num": len(health_s), "slowest_s": max(health_s, default=None), "failures": health_failures[:5]},
        "memory": {name: use._asdict() for name, use in memory.items()},
        "idle_before": idle_before,
        "idle_after": idle_after,
        "server": dict(watch.facts),
    }
    return PartReport(findings=findings, details=details)


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

    Each stream sends at least one request. A stream whose request fails sends no other: if the server has ended,
    thousands would fail.
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


def shifted(result: RequestResult, by_s: float) -> RequestResult:
    """Return `result` with its times counted from `by_s` seconds earlier."""
    return replace(
        result,
        arrival_s=result.arrival_s + by_s,
        sent_s=result.sent_s + by_s,
        token_times_s=[time_s + by_s for time_s in result.token_times_s],
        ended_s=result.ended_s + by_s,
    )


async def warm_up(url: str, plan: LoadPlan) -> None:
    """Send one request alone, then requests like those of the load.

    Raises:
        ServerFailedError: an answer is not whole.
    """
    requests = planned_requests(plan, contents="warm-up")
    for num_streams, load_s in ((1, 0.0), (plan.num_streams, plan.warm_up_s)):
        answers = await closed_loop(url, requests, num_streams=num_streams, load_s=load_s, timeout_s=WARM_UP_TIMEOUT_S)
        for answer in answers:
            if not answer.is_whole:
                failure = answer.result.error or f"{answer.result.num_tokens} tokens of {answer.request.max_tokens}"
                raise ServerFailedError(f"in the warm-up: {failure}")


def rates_of(answers: Sequence[Answered], *, load_s: float) -> dict[str, float]:
    """Return `output_tokens_per_s` and `requests_per_s` (whole ones), of what came within the load's `load_s`."""
    results = [answer.result for answer in answers]
    num_tokens = sum(time_s <= load_s for result in results for time_s in result.token_times_s)
    num_ended = sum(result.error is None and result.ended_s <= load_s for result in results)
    return {"output_tokens_per_s": num_tokens / load_s, "requests_per_s": num_ended / load_s}


def judge_answers(answers: Sequence[Answered]) -> Finding:
    """Judge whether there were answers, no request failed, and each answer is as long as was asked for."""
    errors = [answer.result.error for answer in answers if answer.result.error is not None]
    num_short = sum(answer.result.error is None and not answer.is_whole for answer in answers)
    first = f" ({first_line(errors[0])})" if errors else ""
    return Finding(
        "errors, answers of a wrong length",
        f"{len(errors)}{first}, {num_short} of {len(answers)}",
        wanted="0, 0",
        holds=bool(answers) and not errors and not num_short,
    )


@contextmanager
def killing_children_at(deadline_s: float) -> Iterator[None]:
    """Kill the processes that the block has started if it lasts beyond `deadline_s`, because a process may hang."""
    this = psutil.Process()
    others = set(this.children(recursive=True))

    def kill() -> None:
        for process in set(this.children(recursive=True)) - others:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    timer = threading.Timer(max(0.0, deadline_s - time.monotonic()), kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

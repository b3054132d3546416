"""The server part: 64 streams at once, how fast they are answered, and what they leave behind.

A closed loop: each stream sends its next request when its last one has ended, and none after the load's time. The
server is a process of its own with random weights of a real shape; the client is in this process. The first requests
after the start come one after another, all alike: none is to be slower than the tenth. Then a warm-up of a few seconds
sends the requests of the load and is not counted: in it memory is reserved.
"""

import asyncio
import math
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from prometheus_client.parser import text_string_to_metric_families

from infer_bench.client.http import BrokenReplyError, fetch, get_latency_s
from infer_bench.client.load import RequestResult, run_workload
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.gpu.goals import judge_first_requests
from infer_bench.gpu.parts import Finding, PartReport, Place, failed, free_memory, left_out, used_memory
from infer_bench.server.launch import serving
from infer_bench.server.processes import processes_behind, resident_memory

END_S = 10.0
"""Seconds that the last answers, the probes after them and the server's end may take."""
LEAST_LOAD_SHARE = 0.25
"""Share of the load's seconds; a shorter load says nothing."""
REPLY_TIMEOUT_S = 5.0
"""Of `/health` and `/metrics`, and of the server to become idle."""
MOST_DEVICE_GROWTH_BYTES = 2**26
MOST_HOST_GROWTH = 0.05
"""Share by which the host's memory may grow in the second half of the load."""
NUM_LOG_LINES = 30
NUM_FIRST = 10
"""Requests that are sent one after another to the server that has just started."""
VOCAB_SIZE = 512
"""Prompts are of ids below it, which every vocabulary has."""
COUNTS = {
    "running": ("num_requests_running", ""),
    "waiting": ("num_requests_waiting", ""),
    "held": ("kv_blocks", "held"),
    "leaked": ("num_leaked_blocks", ""),
    "cached": ("kv_blocks", "cached"),
    "free": ("kv_blocks", "free"),
}
"""What is read of `/metrics`: the metric, and its label `state`. Cached blocks are free, but keep a prefix."""
LEFT_OVER = ("running", "waiting", "held", "leaked")
"""What must be zero when the server is idle."""

Counts = dict[str, int]
"""By the keys of `COUNTS`."""


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
    """

    shape: str
    flags: tuple[str, ...] = ()
    num_streams: int
    load_s: float
    warm_up_s: float
    prompt_tokens: tuple[int, int]
    new_tokens: tuple[int, int]

    def first_requests(self) -> Iterator[PlannedRequest]:
        """Yield the requests after the start: different prompts of the shortest length, and the shortest answer."""
        draw = random.Random(1)  # noqa: S311 - a workload, not a secret
        for _ in range(NUM_FIRST):
            prompt = draw.choices(range(VOCAB_SIZE), k=self.prompt_tokens[0])
            yield PlannedRequest(arrival_s=0.0, prompt=prompt, max_tokens=self.new_tokens[0])

    def requests(self) -> Iterator[PlannedRequest]:
        """Yield requests without end, always the same ones."""
        draw = random.Random(0)  # noqa: S311 - a workload, not a secret
        while True:
            num_prompt_tokens, num_new = draw.randint(*self.prompt_tokens), draw.randint(*self.new_tokens)
            prompt = [draw.randrange(VOCAB_SIZE) for _ in range(num_prompt_tokens)]
            yield PlannedRequest(arrival_s=0.0, prompt=prompt, max_tokens=num_new)


ON_GPU = LoadPlan(
    shape="llama-3.2-3b", num_streams=64, load_s=20, warm_up_s=3, prompt_tokens=(128, 512), new_tokens=(64, 256)
)
REHEARSED = LoadPlan(
    shape="llama-30m",
    flags=("--kv-cache-memory", "32MiB"),
    num_streams=4,
    load_s=2,
    warm_up_s=0.5,
    prompt_tokens=(16, 64),
    new_tokens=(4, 16),
)


class Answered(NamedTuple):
    """A request, its result, and the seconds since the load's begin at which it was sent."""

    request: PlannedRequest
    result: RequestResult
    sent_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether the stream and the server's count both have as many tokens as were asked for."""
        result = self.result
        is_counted = result.is_counted_by_server and result.finish_reason == "length"
        return is_counted and result.num_tokens == len(result.token_times_s) == self.request.max_tokens


class Memory(NamedTuple):
    """Bytes in use at one moment: of the whole device, 0 on a CPU; and of the server's processes on the host."""

    device_bytes: int
    host_bytes: int


def run(place: Place) -> PartReport:
    """Start a server, load it and judge what it did; a server that fails is a finding."""
    plan = REHEARSED if place.is_rehearsal else ON_GPU
    report = PartReport(details={"plan": asdict(plan)})
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)  # makes this process's context, which is not to look like the server's
    free_memory()
    flags = ("--device", str(place.device), "--shutdown-timeout", "3", *plan.flags)
    with tempfile.TemporaryDirectory() as folder, (log := Path(folder) / "server.log").open("wb") as errors:
        try:
            with serving(flags, shape=plan.shape, stderr=errors) as server:
                report.details["banner"] = server.banner.splitlines()
                asyncio.run(load(server.url, plan, place, report))
        except (RuntimeError, OSError, BrokenReplyError, psutil.Error) as error:
            report.findings.append(failed("the server", error))
        lines = log.read_text(errors="replace").splitlines()
    report.details["last_log_lines"] = lines[-NUM_LOG_LINES:]
    if lines and any(finding.holds is False for finding in report.findings):
        report.findings.append(Finding("the server's last log line", lines[-1][-120:]))
    return report


async def load(url: str, plan: LoadPlan, place: Place, report: PartReport) -> None:
    """Warm the server up, load it, wait for the last answers, and add what is found to `report` at once.

    Raises:
        RuntimeError: an answer of the first requests or of the warm-up is not whole, or the server has ended.
    """
    first = await closed_loop(url, plan.first_requests(), place, num_streams=1, load_s=math.inf)
    if not (judged := judge_answers(first)).holds or len(first) < NUM_FIRST:
        raise RuntimeError(f"of the first {NUM_FIRST} requests {len(first)} ended; {judged.what}: {judged.found}")
    times_s = [ttft_and_latency_s(answer.result) for answer in first]
    report.findings.append(judge_first_requests(place, times_s))
    report.details["first_requests_s"] = times_s
    requests = plan.requests()
    warm_up = await closed_loop(url, requests, place, num_streams=plan.num_streams, load_s=plan.warm_up_s)
    if not (judged := judge_answers(warm_up)).holds:
        raise RuntimeError(f"in the warm-up, {judged.what}: {judged.found}")
    load_s = min(plan.load_s, place.seconds_left - END_S)
    if load_s < LEAST_LOAD_SHARE * plan.load_s:
        report.findings.append(left_out(f"{plan.num_streams} streams"))
        return
    counts_before = await wait_until_idle(url)
    memory = {"before": read_memory(url, place.device)}
    health_s: list[float] = []
    polling = asyncio.create_task(poll_health(url, health_s))
    middle = asyncio.create_task(read_memory_after(load_s / 2, url, place.device))
    answers = await closed_loop(url, requests, place, num_streams=plan.num_streams, load_s=load_s)
    health_failure = polling.exception() if polling.done() else None
    polling.cancel()
    summary = summarize([answer.result for answer in answers])
    num_tokens = sum(answer.sent_s + time_s <= load_s for answer in answers for time_s in answer.result.token_times_s)
    shares = (f"{(summary[key][share] or 0) * 1e3:.3g}" for key in ("ttft_s", "itl_s") for share in ("p50", "p99"))
    report.findings += [
        Finding(f"{plan.num_streams} streams for {load_s:.3g} s", f"{num_tokens / load_s:,.0f} tokens/s"),
        Finding("TTFT p50, p99, ITL p50, p99", f"{', '.join(shares)} ms"),
        judge_answers(answers),
        judge_health(health_s, health_failure),
    ]
    latencies = {name: summary[name] for name in ("num_requests", "num_errors", "errors", "ttft_s", "itl_s")}
    report.details |= {"load_s": load_s, "output_tokens_per_s": num_tokens / load_s, **latencies}
    counts_after = await wait_until_idle(url)
    report.findings.append(judge_idle(counts_before, counts_after))
    await asyncio.sleep(1.0)  # for memory that is freed late
    memory |= {"middle": await middle, "after": read_memory(url, place.device)}
    report.findings.append(judge_memory(memory, is_rehearsal=place.is_rehearsal))
    report.details |= {"counts": counts_after, "memory": {name: use._asdict() for name, use in memory.items()}}


async def closed_loop(
    url: str, requests: Iterator[PlannedRequest], place: Place, *, num_streams: int, load_s: float
) -> list[Answered]:
    """Keep `num_streams` requests open for `load_s` seconds, wait for the last ones, and return all, as they ended.

    Each stream sends at least one request. A stream whose request fails sends no other: if the server has ended,
    thousands would fail. A request fails that is not answered when the part should end.
    """
    began_s = time.perf_counter()
    answers: list[Answered] = []

    async def stream() -> None:
        for request in requests:
            sent_s = time.perf_counter() - began_s
            alone = Workload(name="server load", requests=(request,), is_closed_loop=True)
            (result,) = await run_workload(url, alone, progress=False, timeout_s=max(1.0, place.seconds_left))
            answers.append(Answered(request, result, sent_s))
            if result.error is not None or time.perf_counter() - began_s >= load_s:
                return

    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return answers


def ttft_and_latency_s(result: RequestResult) -> tuple[float, float]:
    """Return the seconds from sending a request to its first token and to its last."""
    return result.token_times_s[0] - result.sent_s, result.token_times_s[-1] - result.sent_s


async def poll_health(url: str, latencies_s: list[float]) -> None:
    """Ask `/health` twenty times a second, until cancelled or an answer fails."""
    while True:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            latencies_s.append(await get_latency_s(url, "/health"))
        await asyncio.sleep(0.05)


async def wait_until_idle(url: str) -> Counts:
    """Return the counts of the server once it is idle, or its last counts if it does not become idle."""
    until_s = time.monotonic() + REPLY_TIMEOUT_S
    while True:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            _, body = await fetch(url, "/metrics")
        counts = parse_counts(body.decode())
        if time.monotonic() >= until_s or not any(counts[name] for name in LEFT_OVER):
            return counts
        await asyncio.sleep(0.1)


def parse_counts(text: str) -> Counts:
    """Return the counts in a reply of `/metrics`."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    values = {(each.name.removeprefix("infer:"), each.labels.get("state", "")): each.value for each in samples}
    return {name: int(values[key]) for name, key in COUNTS.items()}


async def read_memory_after(seconds: float, url: str, device: torch.device) -> Memory:
    """Return the memory in use in some `seconds`."""
    await asyncio.sleep(seconds)
    return await asyncio.to_thread(read_memory, url, device)


def read_memory(url: str, device: torch.device) -> Memory:
    """Return the memory in use now.

    Raises:
        RuntimeError: the server has ended.
    """
    return Memory(used_memory(device), resident_memory(processes_behind(url)).total_bytes)


def judge_answers(answers: Sequence[Answered]) -> Finding:
    """Judge whether there were answers, no request failed, and each answer is as long as was asked for."""
    errors = [answer.result.error for answer in answers if answer.result.error is not None]
    num_short = sum(answer.result.error is None and not answer.is_whole for answer in answers)
    first = f" ({' '.join(errors[0].split()):.80})" if errors else ""
    return Finding(
        "errors, answers of a wrong length",
        f"{len(errors)}{first}, {num_short} of {len(answers)}",
        wanted="0, 0",
        holds=bool(answers) and not errors and not num_short,
    )


def judge_health(latencies_s: Sequence[float], failure: BaseException | None) -> Finding:
    """Judge whether `/health` was asked, and was answered each time."""
    slowest = f", the slowest in {max(latencies_s) * 1e3:.3g} ms" if latencies_s else ""
    found = f"{len(latencies_s)} answers{slowest}" + (f", then {failure!r:.80}" if failure else "")
    return Finding("/health under load", found, wanted="all", holds=bool(latencies_s) and failure is None)


def judge_idle(before: Counts, after: Counts) -> Finding:
    """Judge whether the load leaves nothing behind: no request, no held block, no lost block."""
    num_before, num_after = (sum(counts[name] for name in ("held", "cached", "free")) for counts in (before, after))
    return Finding(
        "running, waiting, KV blocks held and leaked after",
        f"{', '.join(str(after[name]) for name in LEFT_OVER)} of {num_after}",
        wanted=f"0, 0, 0, 0 of {num_before}",
        holds=not any(after[name] for name in LEFT_OVER) and num_before == num_after,
    )


def judge_memory(memory: dict[str, Memory], *, is_rehearsal: bool) -> Finding:
    """Judge whether the device has as much in use `after` the load as `before`, and the host grew only a little.

    A GPU's allocator keeps what it once reserved, so the server must have computed such steps before the load. The host
    is compared with the `middle` of the load; a rehearsal is too short to fill all caches.
    """
    device = memory["after"].device_bytes - memory["before"].device_bytes
    host = memory["after"].host_bytes / memory["middle"].host_bytes - 1
    holds = abs(device) <= MOST_DEVICE_GROWTH_BYTES and host <= MOST_HOST_GROWTH
    return Finding(
        "growth of memory",
        f"device {device / 2**20:+.0f} MiB, host {host:+.1%}",
        wanted=f"device within {MOST_DEVICE_GROWTH_BYTES // 2**20} MiB, host up to {MOST_HOST_GROWTH:+.0%}",
        holds=None if is_rehearsal else holds,
    )

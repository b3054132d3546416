"""What a server's answers under load and the looks at it amount to: rates, lengths, leaks. Asks no server.

Rates are of the load's own seconds: what came after, while the last answers ended, counts in no rate. Latencies and
lengths are of every answer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpu.parts import Finding
from load_generator import RequestResult
from serving_report import summarize
from workloads import PlannedRequest

DEVICE_GROWTH_BYTES = 64 * 2**20
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request and what became of it; times in seconds from the load's start."""

    request: PlannedRequest
    result: RequestResult

    @property
    def is_whole(self) -> bool:
        """It has as many tokens as were asked for, in the server's count and in the stream."""
        result = self.result
        return (
            result.is_counted_by_server
            and result.finish_reason == "length"
            and result.num_tokens == len(result.token_times_s) == self.request.max_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLook:
    """Memory in use at one moment; None where it cannot be read.

    Attributes:
        device_bytes: of the whole device, by whomever; None without a GPU.
        host_bytes: of the server's processes, what they share with others in parts (PSS).
    """

    device_bytes: int | None = None
    host_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleLook:
    """What `/metrics` says of a server that should have nothing to do.

    Attributes:
        num_running: requests that hold KV memory.
        num_waiting: requests in the queue.
        held_blocks: KV blocks that requests hold.
        cached_blocks: those that nobody holds, kept for the prefix in them until somebody needs them.
        free_blocks: the others.
        leaked_blocks: held, but reachable from no request, as the engine's own audit found.
        num_failed: requests that failed inside a step, since the server's start.
        num_preemptions: requests put back to the queue for want of memory, since the server's start.
        num_generated: tokens generated since the server's start.
    """

    num_running: int
    num_waiting: int
    held_blocks: int
    cached_blocks: int
    free_blocks: int
    leaked_blocks: int
    num_failed: int
    num_preemptions: int
    num_generated: int

    @classmethod
    def from_metrics(cls, text: str) -> "IdleLook":
        """Read one reply of `/metrics`.

        Raises:
            KeyError: a metric is not there.
        """
        values = {
            (sample.name.removeprefix("infer:"), sample.labels.get("state", "")): int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("infer:")
        }
        return cls(
            num_running=values["num_requests_running", ""],
            num_waiting=values["num_requests_waiting", ""],
            held_blocks=values["kv_blocks", "held"],
            cached_blocks=values["kv_blocks", "cached"],
            free_blocks=values["kv_blocks", "free"],
            leaked_blocks=values["num_leaked_blocks", ""],
            num_failed=values["num_failed_requests_total", ""],
            num_preemptions=values["num_preemptions_total", ""],
            num_generated=values["generation_tokens_total", ""],
        )

    @property
    def num_blocks(self) -> int:
        """All KV blocks."""
        return self.held_blocks + self.cached_blocks + self.free_blocks

    @property
    def is_idle(self) -> bool:
        """Nobody has or waits for anything."""
        return self.num_running == self.num_waiting == self.held_blocks == self.leaked_blocks == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What was seen of a server under load.

    Attributes:
        num_streams: requests open at once.
        load_s: seconds in which streams began requests.
        answers: every request, those too that ended later.
        health_s: how long `/health` took, each time that it was asked.
        health_failures: what came instead.
        memory: looks `before` the load, in its `middle`, at its `end`, and `after` it, idle again.
        idle_before: of the server before the load; None where it could not be asked.
        idle_after: the same after it.
        server_facts: gauges at their peaks and counters' growth during the load.
        most_host_growth: the share by which the host's memory may grow from `middle` to `end`; None judges nothing.
    """

    num_streams: int
    load_s: float
    answers: Sequence[Answered]
    health_s: Sequence[float]
    health_failures: Sequence[str]
    memory: Mapping[str, MemoryLook]
    idle_before: IdleLook | None
    idle_after: IdleLook | None
    server_facts: Mapping[str, float]
    most_host_growth: float | None

    def findings(self) -> list[Finding]:
        """Return the lines for the tables."""
        return [
            self._throughput(),
            self._latency(),
            judge_answers(self.answers),
            judge_health(self.health_s, self.health_failures),
            judge_idle(self.idle_before, self.idle_after),
            judge_memory(self.memory, most_host_growth=self.most_host_growth),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return what is saved: sums and looks, not every token's time."""
        times_s = [time_s for answer in self.answers for time_s in answer.result.token_times_s]
        by_second = Counter(int(time_s) for time_s in times_s)
        return {
            "num_streams": self.num_streams,
            "load_s": self.load_s,
            "rates": rates(self.answers, load_s=self.load_s),
            "summary": self._summary(),
            "tokens_by_second": [by_second[second] for second in range(max(by_second, default=-1) + 1)],
            "health": {
                "num_asked": len(self.health_s) + len(self.health_failures),
                "worst_s": max(self.health_s, default=None),
                "failures": list(self.health_failures[:5]),
            },
            "memory": {name: asdict(look) for name, look in self.memory.items()},
            "idle_before": self.idle_before and asdict(self.idle_before),
            "idle_after": self.idle_after and asdict(self.idle_after),
            "server": dict(self.server_facts),
        }

    def _summary(self) -> dict[str, Any]:
        return summarize([answer.result for answer in self.answers])

    def _throughput(self) -> Finding:
        found = rates(self.answers, load_s=self.load_s)
        return Finding(
            what=f"{self.num_streams} streams for {self.load_s:.3g} s",
            found=f"{found['output_tokens_per_s']:,.0f} tokens/s, {found['requests_per_s']:.1f} requests/s",
        )

    def _latency(self) -> Finding:
        summary = self._summary()
        ttft, itl = (f"{_ms(summary[key]['p50'])} / {_ms(summary[key]['p99'])} ms" for key in ("ttft_s", "itl_s"))
        return Finding(what="TTFT, ITL: p50 / p99", found=f"{ttft}, {itl}")


def rates(answers: Sequence[Answered], *, load_s: float) -> dict[str, float]:
    """Return `output_tokens_per_s` and `requests_per_s` (ended whole) within the load's `load_s` seconds."""
    results = [answer.result for answer in answers]
    num_tokens = sum(time_s <= load_s for result in results for time_s in result.token_times_s)
    num_ended = sum(result.error is None and result.ended_s <= load_s for result in results)
    return {"output_tokens_per_s": num_tokens / load_s, "requests_per_s": num_ended / load_s}


def shifted(result: RequestResult, by_s: float) -> RequestResult:
    """Return `result` with its times counted from `by_s` seconds earlier."""
    return replace(
        result,
        arrival_s=result.arrival_s + by_s,
        sent_s=result.sent_s + by_s,
        token_times_s=[time_s + by_s for time_s in result.token_times_s],
        ended_s=result.ended_s + by_s,
    )


def judge_answers(answers: Sequence[Answered]) -> Finding:
    """No request failed, and each answer is as long as it was asked to be; no answer at all is a failure."""
    errors = [answer.result.error for answer in answers if answer.result.error is not None]
    num_short = sum(answer.result.error is None and not answer.is_whole for answer in answers)
    first = f" ({_short(errors[0])})" if errors else ""
    return Finding(
        what="errors, answers of a wrong length",
        found=f"{len(errors)}{first}, {num_short} of {len(answers)}",
        wanted="0, 0",
        holds=bool(answers) and not errors and not num_short,
    )


def judge_health(latencies_s: Sequence[float], failures: Sequence[str]) -> Finding:
    """`/health` was answered each time that it was asked, and was asked."""
    failed = f", {len(failures)} failed ({_short(failures[0])})" if failures else ""
    worst = f", the slowest in {_ms(max(latencies_s))} ms" if latencies_s else ""
    return Finding(
        what="/health under load",
        found=f"{len(latencies_s)} answers{worst}{failed}",
        wanted="all",
        holds=bool(latencies_s) and not failures,
    )


def judge_idle(before: IdleLook | None, after: IdleLook | None) -> Finding:
    """Nothing is left of the load: no request, no block held, none lost. Cached blocks are free to be taken."""
    what, wanted = "running, waiting, KV blocks held after", "0, 0, 0"
    if after is None:
        return Finding(what=what, found="the server does not answer", wanted=wanted, holds=False)
    lost = f", {after.leaked_blocks} leaked" if after.leaked_blocks else ""
    return Finding(
        what=what,
        found=f"{after.num_running}, {after.num_waiting}, {after.held_blocks} of {after.num_blocks}{lost}",
        wanted=wanted,
        holds=after.is_idle and before is not None and before.num_blocks == after.num_blocks,
    )


def judge_memory(memory: Mapping[str, MemoryLook], *, most_host_growth: float | None) -> Finding:
    """The device has as much in use after the load as before it, and the host grew no more than it may.

    A GPU's allocator keeps what it was asked for once: before the load it must have seen steps as large as the load's.
    """
    before, middle, end, after = (memory.get(name, MemoryLook()) for name in ("before", "middle", "end", "after"))
    found, bounds, verdicts = [], [], []
    if before.device_bytes is not None and after.device_bytes is not None:
        growth = after.device_bytes - before.device_bytes
        found.append(f"device {growth / MIB:+.0f} MiB")
        bounds.append(f"device within {DEVICE_GROWTH_BYTES // MIB} MiB")
        verdicts.append(abs(growth) <= DEVICE_GROWTH_BYTES)
    if middle.host_bytes and end.host_bytes:
        share = end.host_bytes / middle.host_bytes - 1
        found.append(f"host {share:+.1%}")
        if most_host_growth is not None:
            bounds.append(f"host up to {most_host_growth:+.0%}")
            verdicts.append(share <= most_host_growth)
    return Finding(
        what="memory's growth",
        found=", ".join(found) or "cannot be read",
        wanted=", ".join(bounds),
        holds=all(verdicts) if verdicts else None,
    )


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."

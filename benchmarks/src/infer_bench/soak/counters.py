"""Reads a server's counters, and judges whether they and those of its clients balance."""

import asyncio
from dataclasses import dataclass

from infer_bench.client.http import http_client
from infer_bench.limits import Finding
from infer_bench.soak.tally import OUTCOMES, Tally
from infer_proofs.server import metric_samples

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and labels."""

IDLE_WITHIN_S = 30.0
HELD: dict[str, tuple[str, dict[str, str]]] = {
    "running": ("infer:num_requests_running", {}),
    "waiting": ("infer:num_requests_waiting", {}),
    "held blocks": ("infer:kv_blocks", {"state": "held"}),
    "leaked blocks": ("infer:num_leaked_blocks", {}),
    "KV usage": ("infer:kv_cache_usage_perc", {}),
}
"""What must be 0 when nothing is asked any more."""
SURE_TO_BE_COUNTED = ("streams", "leavers", "plain", "hostile bodies")
"""Kinds whose requests arrive whole, so that the server must count each of them; of `sockets` it may count any."""
ABORTED = {"finished_reason": "abort"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounts:
    """A server's counts since the traffic began.

    Attributes:
        held: the gauges of `HELD`.
        num_blocks: KV blocks in all.
        posts: exchanges by POST.
        server_errors: exchanges with a status of 500 or more.
        accepted: sequences that the engine took.
        finished: sequences that came to their end.
        aborted: sequences whose clients left.
        failed: sequences that failed.
        replaced_cores: cores that were lost and replaced.
    """

    held: dict[str, float]
    num_blocks: float
    posts: float
    server_errors: float
    accepted: float
    finished: float
    aborted: float
    failed: float
    replaced_cores: float


async def read_samples(url: str) -> Samples:
    """Return the samples of `/metrics`."""
    async with http_client(url) as client:
        return metric_samples((await client.get("/metrics")).text)


def sum_of(samples: Samples, name: str, labels: dict[str, str] | None = None) -> float:
    """Return the sum of the samples of this name with these labels."""
    wanted = (labels or {}).items()
    return sum(value for (found, own), value in samples.items() if found == name and wanted <= dict(own).items())


async def wait_until_idle(url: str) -> Samples:
    """Return the samples once nothing runs or waits, or the last ones if that takes too long."""
    deadline_s = asyncio.get_running_loop().time() + IDLE_WITHIN_S
    while True:
        await asyncio.sleep(1.0)  # for exchanges that have ended here and are counted a moment later there
        samples = await read_samples(url)
        is_idle = not any(sum_of(samples, *gauge) for gauge in HELD.values())
        if is_idle or asyncio.get_running_loop().time() > deadline_s:
            return samples


def counts_between(before: Samples, after: Samples) -> ServerCounts:
    """Return what was counted between two readings, and the gauges of the later one."""

    def growth(name: str, labels: dict[str, str] | None = None) -> float:
        return sum_of(after, name, labels) - sum_of(before, name, labels)

    statuses = {dict(labels)["status"] for name, labels in after if name == "http_requests_total"}
    aborted = growth("infer:request_success_total", ABORTED)
    return ServerCounts(
        held={name: sum_of(after, *gauge) for name, gauge in HELD.items()},
        num_blocks=sum_of(after, "infer:kv_blocks"),
        posts=growth("http_requests_total", {"method": "POST"}),
        server_errors=sum(growth("http_requests_total", {"status": each}) for each in statuses if each >= "500"),
        accepted=growth("infer:request_params_n_sum"),
        finished=growth("infer:request_success_total") - aborted,
        aborted=aborted,
        failed=growth("infer:request_failure_total"),
        replaced_cores=growth("infer:replaced_cores_total"),
    )


def judge_clients(tally: Tally) -> list[Finding]:
    """Judge whether each exchange ended, in one of the ways in which it may."""
    num_sent = tally.sent.total()
    parts = {outcome: tally.total(outcome) for outcome in OUTCOMES}
    first = "".join(f"; {each}" for each in tally.failures[:1])
    words = " + ".join(f"{count} {outcome}" for outcome, count in parts.items())
    return [
        Finding("requests sent", f"{num_sent} = {words}", "equal", 0 < num_sent == sum(parts.values())),
        Finding("answers that must not be", f"{parts['failed']}{first}", "0", not parts["failed"]),
    ]


def judge_server(counts: ServerCounts, tally: Tally, *, num_blocks: float, num_kills: int) -> list[Finding]:
    """Judge whether the server's counts balance among themselves, and with those of its clients.

    Args:
        counts: the server's counts.
        tally: its clients' tally.
        num_blocks: KV blocks before the traffic.
        num_kills: cores that were killed.
    """
    sure = sum(tally.sent[kind] for kind in SURE_TO_BE_COUNTED)
    most = sure + tally.sent["sockets"]
    left = counts.finished + counts.aborted + counts.failed
    left_words = ", ".join(f"{value:g} {name}" for name, value in counts.held.items())
    is_balanced = counts.accepted == left and not counts.failed
    parts = f"{counts.finished:g} finished + {counts.aborted:g} aborted + {counts.failed:g} failed"
    return [
        Finding("left in the server", left_words, "0 of each", not any(counts.held.values())),
        Finding("KV blocks", f"{counts.num_blocks:g}", f"{num_blocks:g}", counts.num_blocks == num_blocks),
        Finding("POST requests", f"{counts.posts:g}", f"{sure} to {most}", sure <= counts.posts <= most),
        Finding("statuses from 500 on", f"{counts.server_errors:g}", "0", counts.server_errors == 0),
        Finding("sequences accepted", f"{counts.accepted:g} = {parts}", "equal, 0 failed", is_balanced),
        Finding("cores replaced", f"{counts.replaced_cores:g}", f"{num_kills}", counts.replaced_cores == num_kills),
    ]

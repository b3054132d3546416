"""The server part: what counts as whole, idle and grown; a closed loop that stays closed; servers that die."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch

from infer_bench.client.http import fetch
from infer_bench.client.load import RequestResult
from infer_bench.client.workloads import PlannedRequest
from infer_bench.gpu import server_load
from infer_bench.gpu.parts import Finding, Place
from infer_bench.gpu.server_load import (
    REHEARSED,
    Answered,
    Memory,
    closed_loop,
    judge_answers,
    judge_health,
    judge_idle,
    judge_memory,
    parse_counts,
    poll_health,
    wait_until_idle,
)
from infer_engine.protocol import FinishReason
from infer_server.testing import FakeEngine, Script, running_server

MIB = 2**20
IDLE = {"running": 0, "waiting": 0, "held": 0, "leaked": 0, "cached": 30, "free": 70}
NO_SERVER = "http://127.0.0.1:9"


def place(*, seconds: float = 100.0) -> Place:
    return Place(device=torch.device("cpu"), deadline_s=time.monotonic() + seconds)


def answered(num_events: int, *, asked: int | None = None, **fields: Any) -> Answered:
    result = RequestResult(
        arrival_s=0.0,
        sent_s=0.0,
        token_times_s=[0.5] * num_events,
        num_prompt_tokens=3,
        num_tokens=num_events,
        is_counted_by_server=True,
        finish_reason="length",
    )
    request = PlannedRequest(arrival_s=0.0, prompt=[5, 6, 7], max_tokens=num_events if asked is None else asked)
    return Answered(request, replace(result, **fields))


def finding_of(findings: Sequence[Finding], what: str) -> Finding:
    (found,) = (finding for finding in findings if finding.what == what)
    return found


@pytest.mark.parametrize(
    "answer",
    [
        answered(2, asked=3),
        answered(3, num_tokens=2),
        answered(2, asked=3, num_tokens=3),
        answered(2, finish_reason="stop"),
        answered(2, is_counted_by_server=False),
    ],
)
def test_an_answer_is_whole_only_if_stream_and_server_count_what_was_asked(answer: Answered) -> None:
    finding = judge_answers([answered(2), answer])
    assert (finding.found, finding.holds) == ("0, 1 of 2", False)


def test_errors_are_counted_and_the_first_is_shown() -> None:
    finding = judge_answers([answered(2), answered(1, error="HTTP 500:\n the engine"), answered(0, error="x")])
    assert (finding.found, finding.holds) == ("2 (HTTP 500: the engine), 0 of 3", False)
    assert judge_answers([answered(2)]).holds
    assert judge_answers([]).holds is False


def test_health_holds_only_if_every_question_was_answered() -> None:
    good = judge_health([0.001, 0.25], None)
    assert (good.found, good.holds) == ("2 answers, the slowest in 250 ms", True)
    assert judge_health([0.001], TimeoutError()).holds is judge_health([], None).holds is False


async def test_health_is_asked_until_an_answer_fails_or_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    pending: list[asyncio.Future[float]] = []

    async def answer_twice(_url: str, path: str) -> float:
        assert path == "/health"
        pending.append(asyncio.Future())
        return 0.5 if len(pending) < 3 else await pending[-1]

    with pytest.raises(OSError, match="Connect"):
        await poll_health(NO_SERVER, [])
    monkeypatch.setattr(server_load, "REPLY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(server_load, "get_latency_s", answer_twice)
    latencies_s: list[float] = []
    with pytest.raises(TimeoutError):
        await poll_health(NO_SERVER, latencies_s)
    assert latencies_s == [0.5, 0.5]


@pytest.mark.parametrize(
    ("left", "holds"),
    [
        ({"cached": 0, "free": 100}, True),
        ({"running": 1}, False),
        ({"waiting": 1}, False),
        ({"held": 1, "free": 69}, False),
        ({"leaked": 1}, False),
        ({"free": 69}, False),  # one is missing
    ],
)
def test_cached_blocks_are_free_and_held_or_lost_ones_are_not(left: dict[str, int], *, holds: bool) -> None:
    assert judge_idle(IDLE, IDLE | left).holds is holds


@pytest.mark.parametrize(
    ("device_mib", "host_mib", "holds"), [(64, 1049, True), (65, 1049, False), (-65, 1000, False), (64, 1051, False)]
)
def test_memory_may_grow_a_little(device_mib: int, host_mib: int, *, holds: bool) -> None:
    before, after = Memory(10_000 * MIB, 900 * MIB), Memory((10_000 + device_mib) * MIB, host_mib * MIB)
    memory = {"before": before, "middle": Memory(0, 1000 * MIB), "after": after}
    assert judge_memory(memory, is_rehearsal=False).holds is holds
    assert judge_memory(memory, is_rehearsal=True).holds is None


async def test_a_closed_loop_keeps_so_many_requests_open_and_no_more() -> None:
    engine = FakeEngine(Script(finish_reason=FinishReason.LENGTH))
    async with running_server(engine) as url:
        began_s = time.perf_counter()
        answers = await closed_loop(url, REHEARSED.requests(), place(), num_streams=3, load_s=0.3)
        assert time.perf_counter() - began_s >= 0.3
    assert all(answer.result.error is None for answer in answers)
    sent = [(answer.sent_s, 1) for answer in answers]
    ended = [(answer.sent_s + answer.result.ended_s, -1) for answer in answers]
    num_open = 0
    for _, change in sorted([*sent, *ended]):
        num_open += change
        assert num_open <= 3
    assert len(answers) > 3


async def test_streams_end_at_their_first_failure_and_requests_with_the_part() -> None:
    answers = await closed_loop(NO_SERVER, REHEARSED.requests(), place(), num_streams=5, load_s=60.0)
    assert len(answers) == 5
    assert all("ConnectionRefused" in str(answer.result.error) for answer in answers)
    async with running_server(FakeEngine(Script(pause_after=0))) as url:
        (answer,) = await closed_loop(url, REHEARSED.requests(), place(seconds=0), num_streams=1, load_s=0.0)
    assert answer.result.error == "no end after 1 s"


async def test_counts_are_read_as_the_server_writes_them() -> None:
    async with running_server(FakeEngine()) as url:
        counts = await wait_until_idle(url)
        _, text = await fetch(url, "/metrics")
    assert counts == parse_counts(text.decode())
    assert counts.keys() == IDLE.keys()


def test_a_rehearsal_finds_a_sound_server_and_leaves_none() -> None:
    report = server_load.run(place())
    assert [finding.holds for finding in report.findings] == [None, None, None, True, True, True, None]
    details = json.loads(json.dumps(report.details))
    assert (details["num_errors"], set(details["memory"])) == (0, {"before", "middle", "after"})
    assert details["output_tokens_per_s"] > 0
    assert len(details["first_requests_s"]) == 10
    assert all(0 < ttft_s < latency_s for ttft_s, latency_s in details["first_requests_s"])
    assert not [child for child in psutil.Process().children(recursive=True) if "infer_server" in child.cmdline()]


def test_a_server_that_does_not_start_is_a_finding_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_load, "REHEARSED", replace(REHEARSED, flags=("--kv-cache-memory", "nonsense")))
    report = server_load.run(place())
    assert finding_of(report.findings, "the server").holds is False
    assert "nonsense" in finding_of(report.findings, "the server's last log line").found


def test_a_server_that_dies_under_load_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    busy: list[dict[str, int]] = []

    async def kill_when_busy(_seconds: float, url: str, _device: torch.device) -> None:
        while not (busy and busy[-1]["held"]):
            _, text = await fetch(url, "/metrics")
            busy.append(parse_counts(text.decode()))
        for process in psutil.Process().children(recursive=True):
            process.kill()

    monkeypatch.setattr(server_load, "REHEARSED", replace(REHEARSED, load_s=80.0))
    monkeypatch.setattr(server_load, "read_memory_after", kill_when_busy)
    started = time.monotonic()
    report = server_load.run(place())
    assert time.monotonic() - started < 60
    assert busy[-1]["running"] > 0
    for what in ("errors, answers of a wrong length", "the server"):
        assert finding_of(report.findings, what).holds is False


def test_a_load_without_time_does_not_hold() -> None:
    report = server_load.run(place(seconds=server_load.END_S))
    assert finding_of(report.findings, "4 streams").holds is False

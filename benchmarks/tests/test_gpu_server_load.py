"""The server part: what counts as whole, idle and grown; a closed loop that stays closed; servers that die."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import psutil
import pytest
import torch

from infer_bench.client.http import fetch
from infer_bench.client.load import RequestResult
from infer_bench.client.workloads import PlannedRequest
from infer_bench.gpu import server_load
from infer_bench.gpu.parts import Finding, PartReport, Place
from infer_bench.gpu.server_load import (
    END_S,
    LEAST_LOAD_SHARE,
    ON_GPU,
    REHEARSED,
    Answered,
    closed_loop,
    judge_answers,
    planned_requests,
    rates_of,
    shifted,
)
from infer_bench.gpu.server_probes import (
    COUNTS,
    MIB,
    Counts,
    MemoryUse,
    judge_health,
    judge_idle,
    judge_memory,
    parse_counts,
    read_counts,
    wait_until_idle,
)
from infer_bench.server.launch import OwnServer, serving
from infer_engine.protocol import FinishReason
from infer_server.testing import FakeEngine, Script, running_server

CPU = torch.device("cpu")
IDLE: Counts = {**dict.fromkeys(COUNTS, 0), "cached_blocks": 30, "free_blocks": 70, "num_generated": 1000}


def answered(
    token_times_s: Sequence[float],
    *,
    asked: int | None = None,
    counted: int | None = None,
    finish_reason: str = "length",
    error: str | None = None,
) -> Answered:
    times = list(token_times_s)
    result = RequestResult(
        arrival_s=0.0,
        sent_s=0.0,
        token_times_s=times,
        ended_s=max(times, default=0.0) + 0.125,
        num_prompt_tokens=3,
        num_tokens=len(times) if counted is None else counted,
        is_counted_by_server=True,
        finish_reason=finish_reason,
        error=error,
    )
    request = PlannedRequest(arrival_s=0.0, prompt=[5, 6, 7], max_tokens=len(times) if asked is None else asked)
    return Answered(request=request, result=result)


def place(*, seconds: float = 100.0) -> Place:
    return Place(device=CPU, deadline_s=time.monotonic() + seconds)


def finding_of(findings: Sequence[Finding], what: str) -> Finding:
    (found,) = (finding for finding in findings if finding.what == what)
    return found


# Verdicts


def test_rates_are_of_the_loads_own_seconds() -> None:
    answers = [answered([0.5, 1.0, 1.5]), answered([1.5, 2.0, 2.5]), answered([1.0], error="it broke")]
    assert rates_of(answers, load_s=2.0) == {"output_tokens_per_s": 6 / 2, "requests_per_s": 1 / 2}


def test_times_of_a_shifted_result_count_from_the_load() -> None:
    result = shifted(answered([0.5, 1.0]).result, 10.0)
    assert (result.arrival_s, result.sent_s, result.token_times_s, result.ended_s) == (10, 10, [10.5, 11.0], 11.125)


@pytest.mark.parametrize(
    "answer",
    [
        answered([1, 2], asked=3),
        answered([1, 2, 3], asked=3, counted=2),
        answered([1, 2], asked=3, counted=3),
        answered([1, 2], finish_reason="stop"),
        replace(answered([1, 2]), result=replace(answered([1, 2]).result, is_counted_by_server=False)),
    ],
)
def test_an_answer_is_whole_only_if_stream_and_server_count_what_was_asked(answer: Answered) -> None:
    finding = judge_answers([answered([1, 2]), answer])
    assert (finding.found, finding.holds) == ("0, 1 of 2", False)


def test_errors_are_counted_and_the_first_is_shown() -> None:
    finding = judge_answers([answered([1, 2]), answered([1], error="HTTP 500:\n the engine"), answered([], error="x")])
    assert (finding.found, finding.holds) == ("2 (HTTP 500: the engine), 0 of 3", False)
    assert judge_answers([answered([1, 2])]).holds
    assert not judge_answers([]).holds


def test_health_holds_only_if_every_question_was_answered() -> None:
    good = judge_health([0.001, 0.25], [])
    assert (good.found, good.holds) == ("2 answers, the slowest in 250 ms", True)
    assert "1 failed (TimeoutError)" in (failed := judge_health([0.001], ["TimeoutError"])).found
    assert failed.holds is judge_health([], []).holds is False


def test_cached_blocks_are_free_and_held_ones_are_not() -> None:
    assert judge_idle(IDLE | {"cached_blocks": 0, "free_blocks": 100}, IDLE).holds
    for left in ({"num_running": 1}, {"num_waiting": 1}, {"held_blocks": 1, "free_blocks": 69}, {"leaked_blocks": 1}):
        assert judge_idle(IDLE, IDLE | left).holds is False
    assert judge_idle(IDLE, IDLE | {"free_blocks": 69}).holds is False  # one is missing
    assert judge_idle(IDLE, None).holds is False
    assert judge_idle(IDLE, IDLE | {"held_blocks": 3, "free_blocks": 67}).found == "0, 0, 3 of 100"


def test_memory_may_grow_a_little() -> None:
    def judged(device: int, host: int, bound: float | None = 0.05) -> Finding:
        first = MemoryUse(device_bytes=10_000 * MIB, host_bytes=1_000 * MIB)
        last = MemoryUse(device_bytes=(10_000 + device) * MIB, host_bytes=(1_000 + host) * MIB)
        return judge_memory({"before": first, "middle": first, "end": last, "after": last}, most_host_growth=bound)

    assert judged(64, 49).holds
    assert judged(65, 49).holds is judged(-65, 49).holds is judged(64, 51).holds is False
    assert judged(64, 500, bound=None).holds
    shown = judged(3, 20)
    assert (shown.found, shown.wanted) == ("device +3 MiB, host +2.0%", "device within 64 MiB, host up to +5%")
    assert judge_memory({"before": MemoryUse()}, most_host_growth=0.05).holds is None


def test_a_load_is_cut_to_the_time_that_is_left() -> None:
    assert ON_GPU.load_s_within(1000.0) == ON_GPU.load_s == 30
    assert ON_GPU.load_s_within(END_S + 20) == 20
    assert ON_GPU.load_s_within(END_S + LEAST_LOAD_SHARE * 30 - 0.1) is None


# The load


def test_requests_are_seeded_and_within_the_plan() -> None:
    first, again, other = (
        list(islice(planned_requests(ON_GPU, contents=contents), 200)) for contents in ("a", "a", "b")
    )
    assert first == again
    assert first != other
    assert {len(request.prompt) for request in first} <= set(range(128, 513))
    assert {request.max_tokens for request in first} <= set(range(64, 257))


async def test_a_closed_loop_keeps_so_many_requests_open_and_no_more() -> None:
    engine = FakeEngine(Script(finish_reason=FinishReason.LENGTH))
    requests = planned_requests(REHEARSED, contents="any")
    async with running_server(engine) as url:
        answers = await closed_loop(url, requests, num_streams=3, load_s=0.3, timeout_s=60.0)
    assert all(answer.result.error is None for answer in answers)
    begins = [(answer.result.sent_s, 1) for answer in answers]
    ends = [(answer.result.ended_s, -1) for answer in answers]
    changes = [change for _, change in sorted(begins + ends)]
    assert max(sum(changes[:count]) for count in range(len(changes))) == 3
    assert len(answers) > 3
    assert max(ends)[0] >= 0.3


async def test_streams_of_a_server_that_is_gone_end_at_their_first_failure() -> None:
    requests = planned_requests(REHEARSED, contents="any")
    answers = await closed_loop("http://127.0.0.1:9", requests, num_streams=5, load_s=60.0, timeout_s=10.0)
    assert len(answers) == 5
    assert all("ConnectionRefused" in str(answer.result.error) for answer in answers)


async def test_counts_are_read_as_the_server_writes_them() -> None:
    async with running_server(FakeEngine()) as url:
        counts = await read_counts(url)
        _, text = await fetch(url, "/metrics")
    assert counts == parse_counts(text.decode())
    with pytest.raises(KeyError):
        parse_counts("")
    assert await read_counts("http://127.0.0.1:9") is None


# Real servers


def test_a_rehearsal_finds_a_sound_server_and_leaves_none() -> None:
    report = server_load.run(place())
    assert len(report.findings) == 7
    assert [finding for finding in report.findings if finding.holds is False] == []
    assert sum(finding.holds is True for finding in report.findings) == 3
    details = report.details
    assert details["summary"]["num_errors"] == 0
    assert 1 <= details["server"]["num_running_peak"] <= REHEARSED.num_streams
    assert details["rates"]["output_tokens_per_s"] > 0
    assert set(details["memory"]) == {"before", "middle", "end", "after"}
    generated = details["idle_after"]["num_generated"] - details["idle_before"]["num_generated"]
    assert generated == details["summary"]["num_output_tokens"]
    assert json.loads(json.dumps(details)) is not None
    assert not [child for child in psutil.Process().children(recursive=True) if "infer_server" in child.cmdline()]


def test_a_server_that_does_not_start_is_a_finding_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_load, "REHEARSED", replace(REHEARSED, flags=("--kv-cache-memory", "nonsense")))
    report = server_load.run(place())
    assert finding_of(report.findings, "the server").holds is False
    assert "nonsense" in finding_of(report.findings, "the server's last log line").found
    assert any("nonsense" in line for line in report.details["last_log_lines"])


def test_requests_that_run_hold_blocks_and_a_server_that_dies_under_load_is_found_at_once() -> None:
    """One server for both facts: starting it is most of the test's time."""

    async def look_while_busy(server: OwnServer) -> tuple[Counts | None, Counts | None]:
        requests = planned_requests(replace(REHEARSED, new_tokens=(128, 128)), contents="any")
        asked = asyncio.create_task(closed_loop(server.url, requests, num_streams=2, load_s=0.0, timeout_s=60.0))
        busy = None
        while not asked.done() and not (busy and busy["num_running"]):
            busy = await read_counts(server.url)
        assert all(answer.is_whole for answer in await asked)
        return busy, await wait_until_idle(server.url)

    async def load_and_kill(server: OwnServer) -> PartReport:
        loading = asyncio.create_task(server_load.load(server.url, REHEARSED, load_s=60.0, device=CPU))
        generated = (await read_counts(server.url) or IDLE)["num_generated"]
        while ((await read_counts(server.url)) or IDLE)["num_generated"] == generated:
            assert not loading.done()
        for process in psutil.Process().children(recursive=True):
            process.kill()
        return await loading

    with serving(("--kv-cache-memory", "4MiB")) as server:
        busy, idle = asyncio.run(look_while_busy(server))
        report = asyncio.run(load_and_kill(server))
    assert busy is not None
    assert busy["held_blocks"] > 0
    assert judge_idle(idle, idle).holds
    assert report.details["summary"]["num_errors"] == REHEARSED.num_streams
    for what in ("errors, answers of a wrong length", "running, waiting, KV blocks held after"):
        assert finding_of(report.findings, what).holds is False


def test_without_time_nothing_is_begun_and_nothing_holds() -> None:
    (finding,) = server_load.run(place(seconds=1.0)).findings
    assert (finding.what, finding.found, finding.holds) == ("4 streams", "left out: no time", False)


def test_a_process_that_hangs_beyond_the_deadline_is_killed() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleep) as other:
        with server_load.killing_children_at(time.monotonic() + 0.2), subprocess.Popen(sleep) as hanging:
            assert hanging.wait(timeout=60) == -9
        assert other.poll() is None  # it began before the block
        other.kill()

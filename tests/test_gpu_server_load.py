"""First light's server: what counts as whole, idle, grown; a closed loop that stays closed; servers that die."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from infer_engine.protocol import FinishReason
from infer_server.testing import FakeEngine, Script, running_server

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from gpu import server_load
from gpu.parts import Finding, Place
from gpu.server_findings import (
    Answered,
    IdleLook,
    LoadResult,
    MemoryLook,
    judge_answers,
    judge_health,
    judge_idle,
    judge_memory,
    rates,
    shifted,
)
from gpu.server_looks import look_at_metrics, when_idle
from gpu.server_streams import ON_GPU, REHEARSAL, closed_loop, planned_requests
from http_client import fetch
from load_generator import RequestResult
from workloads import PlannedRequest

CPU = torch.device("cpu")
MIB = 2**20


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


def idle_look(**changes: int) -> IdleLook:
    look = IdleLook(
        num_running=0,
        num_waiting=0,
        held_blocks=0,
        cached_blocks=30,
        free_blocks=70,
        leaked_blocks=0,
        num_failed=0,
        num_preemptions=0,
        num_generated=1000,
    )
    return replace(look, **changes)


def place(*, seconds: float = 100.0) -> Place:
    return Place(device=CPU, deadline_s=time.monotonic() + seconds)


def finding_of(findings: Sequence[Finding], what: str) -> Finding:
    (found,) = (finding for finding in findings if finding.what == what)
    return found


# What it amounts to


def test_rates_are_of_the_loads_own_seconds() -> None:
    answers = [answered([0.5, 1.0, 1.5]), answered([1.5, 2.0, 2.5]), answered([1.0], error="it broke")]
    assert rates(answers, load_s=2.0) == {"output_tokens_per_s": 6 / 2, "requests_per_s": 1 / 2}


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
    whole = answered([1, 2])
    assert whole.is_whole
    assert not answer.is_whole
    finding = judge_answers([whole, answer])
    assert (finding.found, finding.holds) == ("0, 1 of 2", False)


def test_errors_are_counted_and_the_first_is_named() -> None:
    finding = judge_answers([answered([1, 2]), answered([1], error="HTTP 500:\n the engine"), answered([], error="x")])
    assert (finding.found, finding.holds) == ("2 (HTTP 500: the engine), 0 of 3", False)
    assert judge_answers([answered([1, 2])]).holds
    assert not judge_answers([]).holds


def test_health_holds_only_if_every_question_was_answered() -> None:
    assert judge_health([0.001, 0.25], []) == Finding(
        what="/health under load", found="2 answers, the slowest in 250 ms", wanted="all", holds=True
    )
    assert "1 failed (TimeoutError)" in (failed := judge_health([0.001], ["TimeoutError"])).found
    assert failed.holds is judge_health([], []).holds is False


def test_cached_blocks_are_free_and_held_ones_are_not() -> None:
    assert judge_idle(idle_look(cached_blocks=0, free_blocks=100), idle_look()).holds
    for left in ({"num_running": 1}, {"num_waiting": 1}, {"held_blocks": 1, "free_blocks": 69}, {"leaked_blocks": 1}):
        assert judge_idle(idle_look(), idle_look(**left)).holds is False
    assert judge_idle(idle_look(), idle_look(free_blocks=69)).holds is False  # one is nowhere
    assert judge_idle(idle_look(), None).holds is False
    assert judge_idle(idle_look(), idle_look(held_blocks=3, free_blocks=67)).found == "0, 0, 3 of 100"


def test_memory_may_grow_a_little() -> None:
    def judged(device: int, host: int, bound: float | None = 0.05) -> Finding:
        first = MemoryLook(device_bytes=10_000 * MIB, host_bytes=1_000 * MIB)
        last = MemoryLook(device_bytes=(10_000 + device) * MIB, host_bytes=(1_000 + host) * MIB)
        looks = {"before": first, "middle": first, "end": last, "after": last}
        return judge_memory(looks, most_host_growth=bound)

    assert judged(64, 49).holds
    assert judged(65, 49).holds is judged(-65, 49).holds is judged(64, 51).holds is False
    assert judged(64, 500, bound=None).holds
    assert (judged(3, 20).found, judged(3, 20).wanted) == (
        "device +3 MiB, host +2.0%",
        "device within 64 MiB, host up to +5%",
    )


def test_memory_that_cannot_be_read_is_no_verdict() -> None:
    assert judge_memory({"before": MemoryLook()}, most_host_growth=0.05).holds is None
    host = {name: MemoryLook(host_bytes=MIB) for name in ("before", "middle", "end", "after")}
    assert judge_memory(host, most_host_growth=None) == Finding(what="memory's growth", found="host +0.0%")


def test_a_load_is_cut_to_the_time_that_is_left() -> None:
    assert ON_GPU.load_s_within(1000.0) == ON_GPU.load_s == 30
    assert ON_GPU.load_s_within(ON_GPU.end_s + 20) == 20
    assert ON_GPU.load_s_within(ON_GPU.end_s + ON_GPU.least_load_s - 0.1) is None


# What is asked


def test_requests_are_seeded_and_within_the_plan() -> None:
    first, again, other = (
        list(islice(planned_requests(ON_GPU, contents=contents), 500)) for contents in ("a", "a", "b")
    )
    assert first == again
    assert first != other
    assert {len(request.prompt) for request in first} <= set(range(128, 513))
    assert {request.max_tokens for request in first} <= set(range(64, 257))
    assert len({request.max_tokens for request in first}) > 100


async def test_a_closed_loop_keeps_so_many_requests_open_and_no_more() -> None:
    engine = FakeEngine(Script(finish_reason=FinishReason.LENGTH))
    requests = planned_requests(REHEARSAL, contents="any")
    async with running_server(engine) as url:
        answers = await closed_loop(url, requests, num_streams=3, load_s=0.3, timeout_s=10.0)
    assert all(answer.result.error is None for answer in answers)
    begins = [(answer.result.sent_s, 1) for answer in answers]
    ends = [(answer.result.ended_s, -1) for answer in answers]
    changes = [change for _, change in sorted(begins + ends)]
    assert max(sum(changes[:count]) for count in range(len(changes))) == 3
    assert len(answers) > 3
    assert max(ends)[0] >= 0.3


async def test_streams_of_a_server_that_is_gone_end_at_their_first_failure() -> None:
    requests = planned_requests(REHEARSAL, contents="any")
    answers = await closed_loop("http://127.0.0.1:9", requests, num_streams=5, load_s=60.0, timeout_s=10.0)
    assert len(answers) == 5
    assert all("ConnectionRefused" in str(answer.result.error) for answer in answers)


async def test_metrics_are_read_as_the_server_writes_them() -> None:
    engine = FakeEngine()
    async with running_server(engine) as url:
        look = await look_at_metrics(url)
        _, text = await fetch(url, "/metrics")
    assert look == IdleLook.from_metrics(text.decode())
    with pytest.raises(KeyError):
        IdleLook.from_metrics("")
    assert await look_at_metrics("http://127.0.0.1:9") is None


def test_requests_that_run_are_seen_to_hold_blocks(serve: Callable[..., AbstractContextManager[Any]]) -> None:
    with serve("--kv-cache-memory", "4MiB") as server:
        requests = planned_requests(replace(REHEARSAL, new_tokens=(128, 128)), contents="any")

        async def look_meanwhile() -> tuple[IdleLook | None, IdleLook | None]:
            asked = asyncio.create_task(closed_loop(server.url, requests, num_streams=2, load_s=0.0, timeout_s=60.0))
            busy = None
            while not asked.done() and not (busy and busy.num_running):
                busy = await look_at_metrics(server.url)
            assert all(answer.is_whole for answer in await asked)
            return busy, await when_idle(server.url)

        busy, idle = asyncio.run(look_meanwhile())
    assert busy is not None
    assert idle is not None
    assert busy.held_blocks > 0
    assert judge_idle(idle, busy).holds is False
    assert judge_idle(idle, idle).holds
    assert idle.num_generated == 256


async def test_the_look_at_the_loads_end_is_waited_for() -> None:
    async with running_server(FakeEngine(Script(finish_reason=FinishReason.LENGTH))) as url:
        result = await server_load.load(url, REHEARSAL, load_s=0.3, device=CPU)
    assert list(result.memory) == ["before", "middle", "end", "after"]
    assert all(look.host_bytes for look in result.memory.values())
    assert not result.health_failures


# The whole


def test_a_rehearsal_finds_a_sound_server_and_leaves_none() -> None:
    report = server_load.run(place())
    assert len(report.findings) == 7
    assert [finding for finding in report.findings if finding.holds is False] == []
    assert sum(finding.holds is True for finding in report.findings) == 3
    assert report.details["summary"]["num_errors"] == 0
    assert 1 <= report.details["server"]["num_running_peak"] <= REHEARSAL.num_streams
    assert report.details["rates"]["output_tokens_per_s"] > 10
    assert set(report.details["memory"]) == {"before", "middle", "end", "after"}
    asked = report.details["idle_after"]["num_generated"] - report.details["idle_before"]["num_generated"]
    assert asked == report.details["summary"]["num_output_tokens"]
    assert json.loads(json.dumps(report.details)) is not None
    assert not [child for child in psutil.Process().children(recursive=True) if "infer_server" in child.cmdline()]


def test_a_server_that_does_not_start_is_a_finding_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_load, "REHEARSAL", replace(REHEARSAL, flags=("--kv-cache-memory", "nonsense")))
    report = server_load.run(place())
    assert finding_of(report.findings, "the server").holds is False
    assert "nonsense" in finding_of(report.findings, "the server's last log line").found
    assert any("nonsense" in line for line in report.details["last_log_lines"])


def test_a_server_that_dies_under_load_is_found_out_at_once(
    serve: Callable[..., AbstractContextManager[Any]],
) -> None:
    with serve("--kv-cache-memory", "4MiB") as server:

        async def load_and_kill() -> LoadResult:
            loading = asyncio.create_task(server_load.load(server.url, REHEARSAL, load_s=60.0, device=CPU))
            await asyncio.sleep(1.0)
            for process in (*psutil.Process(server.process.pid).children(recursive=True), server.process):
                process.kill()
            return await loading

        began_s = time.monotonic()
        result = asyncio.run(load_and_kill())
        assert time.monotonic() - began_s < 30
    assert any(answer.is_whole for answer in result.answers)
    assert sum(answer.result.error is not None for answer in result.answers) == REHEARSAL.num_streams
    for what in ("errors, answers of a wrong length", "running, waiting, KV blocks held after"):
        assert finding_of(result.findings(), what).holds is False


def test_without_time_nothing_is_begun() -> None:
    report = server_load.run(place(seconds=1.0))
    assert [finding.what for finding in report.findings] == ["4 streams"]
    assert "left out" in report.findings[0].found
    assert report.findings[0].holds is None


def test_a_process_that_hangs_beyond_the_deadline_is_killed() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleep) as other:
        with (
            server_load.killing_children_at(time.monotonic() + 0.2),
            subprocess.Popen(sleep) as hanging,
        ):
            assert hanging.wait(timeout=30) == -9
        assert other.poll() is None  # it is not the block's
        other.kill()


def test_standard_error_of_children_goes_to_the_log_only_in_the_block(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = [sys.executable, "-c", "import sys; print('said', file=sys.stderr)"]
    with server_load.standard_error_to(log):
        subprocess.run(said, check=True)
    subprocess.run(said, check=True)
    assert log.read_text() == "said\n"

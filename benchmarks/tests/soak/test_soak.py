"""The soak: what is judged flat, steady and balanced and what is not; hostile bodies; a real run of one minute."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from infer_bench.limits import Finding
from infer_bench.soak import run
from infer_bench.soak.counters import ServerCounts, counts_between, judge_clients, judge_server
from infer_bench.soak.hostile import HostileBodies
from infer_bench.soak.latency import Kill, OthersCpu, Stream, judge_kills, judge_latency, report_others, windows_of
from infer_bench.soak.memory import MemorySeries, judge_memory
from infer_bench.soak.plot import plot_soak
from infer_bench.soak.tally import Outcome, Tally, UnexpectedReplyError
from infer_proofs.server import metric_samples
from infer_proofs.server.hostile_requests import COMPLETIONS, SOUND

WARM_UP_S, END_S = 600.0, 3600.0
KILLS = [Kill(at_s=at_s, victim="core", recovered_s=at_s + 10) for at_s in (900.0, 2700.0)]


def memory(*, grown_by: float = 0.0, name: str = "server", begin_s: float = 0.0, end_s: float = END_S) -> MemorySeries:
    """100 MiB with some noise after the first 500 s, and at the end of an hour so much more as a share."""
    draw = Random(0)  # noqa: S311 - no secret
    times = [begin_s + 5 * number for number in range(int((end_s - begin_s) / 5))]
    own = [
        100 * (min(1.0, (time_s - begin_s) / 500) + grown_by * time_s / END_S) + draw.uniform(-1, 1) for time_s in times
    ]
    return MemorySeries(name=name, times_s=times, own_mib=own)


def streams(*, grown_by: float = 0.0, slow_minutes: tuple[int, ...] = (), stalled: bool = True) -> list[Stream]:
    """Two streams a second for an hour, which wait for a missing core and in some minutes are three times as slow."""
    draw = Random(0)  # noqa: S311 - no secret
    found = []
    for number in range(int(2 * END_S)):
        sent_s = number / 2
        latency_s = draw.uniform(0.5, 1.0) * (1 + grown_by * sent_s / END_S)
        latency_s *= 3 if int(sent_s // 60) in slow_minutes else 1
        if stalled and any(kill.at_s <= sent_s <= (kill.recovered_s or 0) for kill in KILLS):
            latency_s += 8
        found.append(Stream(sent_s=sent_s, ttft_s=latency_s / 10, latency_s=latency_s))
    return found


def holds(findings: list[Finding]) -> list[bool | None]:
    return [finding.holds for finding in findings]


def peak() -> MemorySeries:
    series = memory()
    series.own_mib[-5:] = [400.0] * 5
    return series


@pytest.mark.parametrize(
    ("series", "warm_up_s", "is_flat"),
    [
        (memory(), WARM_UP_S, True),
        (memory(grown_by=0.06), WARM_UP_S, False),
        (memory(grown_by=-0.06), WARM_UP_S, False),
        (peak(), WARM_UP_S, True),
        (memory(begin_s=1500), WARM_UP_S, True),  # a process has a warm-up of its own
        (memory(begin_s=1500), 100, False),
        (memory(begin_s=1500, end_s=1500 + WARM_UP_S + 200), WARM_UP_S, None),
    ],
    ids=["fills", "grows", "falls", "peak", "late", "fills late", "brief"],
)
def test_memory_is_flat_after_the_warm_up(
    series: MemorySeries,
    warm_up_s: float,
    is_flat: bool | None,  # noqa: FBT001 - a case
) -> None:
    assert holds(judge_memory([series], warm_up_s=warm_up_s)) == [is_flat]
    if is_flat is None:
        assert holds(judge_memory([series, memory()], warm_up_s=warm_up_s)) == [True]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (streams(), [True, True, None, None]),
        (streams(slow_minutes=(40, 45, 50)), [True, True, None, None]),
        (streams(grown_by=1.0), [False, False, None, None]),
        (streams()[: 2 * int(WARM_UP_S + 180)], [None] * 4),
    ],
    ids=["with kills", "slow minutes", "grows", "too few minutes"],
)
def test_latency_drifts_where_it_grows_over_the_hour(found: list[Stream], expected: list[bool | None]) -> None:
    assert holds(judge_latency(found, KILLS, warm_up_s=WARM_UP_S)) == expected


def test_streams_beside_a_missing_core_are_in_no_window_but_in_a_line_of_their_own() -> None:
    assert max(window.latency_p99_s for window in windows_of(streams(), KILLS)) < 1.1
    assert max(window.latency_p99_s for window in windows_of(streams(), [])) > 8
    disturbed = judge_latency(streams(), KILLS, warm_up_s=WARM_UP_S)[2]
    assert disturbed.what.startswith("44 streams while a core was missing")


def test_what_others_compute_is_reported_by_halves() -> None:
    others = [OthersCpu(at_s=at_s, cpu_s=max(at_s, 2 * at_s - 60)) for at_s in range(0, 121, 10)]
    found = report_others(others, warm_up_s=0)
    assert (found.found, found.holds) == ("1.00, 2.00", None)
    assert report_others([], warm_up_s=0).found.startswith("too short")


def test_each_killed_core_must_be_replaced_and_one_must_have_been_killed() -> None:
    assert judge_kills(KILLS).holds
    assert not judge_kills([*KILLS, KILLS[0]._replace(recovered_s=None)]).holds
    assert not judge_kills([]).holds


def tally() -> Tally:
    ended: Counter[tuple[str, Outcome]] = Counter()
    ended["plain", "answered"], ended["leavers", "disconnected"], ended["sockets", "refused"] = 5, 2, 3
    return Tally(sent=Counter(plain=5, leavers=2, sockets=3), ended=ended)


COUNTS = ServerCounts(
    held={"running": 0, "leaked blocks": 0},
    num_blocks=256,
    posts=8,
    server_errors=0,
    accepted=9,
    finished=6,
    aborted=3,
    failed=0,
    replaced_cores=2,
)


def server_holds(counts: ServerCounts) -> bool:
    return all(holds(judge_server(counts, tally(), num_blocks=256, num_kills=2)))


def test_exchanges_balance_when_each_has_ended_in_one_way() -> None:
    found = tally()
    assert holds(judge_clients(found)) == [True, True]
    found.sent["plain"] += 1
    assert holds(judge_clients(found)) == [False, True]
    found.ended["plain", "failed"] += 1
    assert holds(judge_clients(found)) == [True, False]
    assert holds(judge_clients(Tally())) == [False, True]


@pytest.mark.parametrize(
    "wrong",
    [
        {"held": {"running": 1, "leaked blocks": 0}},
        {"held": {"running": 0, "leaked blocks": 1}},
        {"num_blocks": 255},
        {"posts": 6},
        {"posts": 11},
        {"server_errors": 1},
        {"accepted": 10},
        {"finished": 5, "failed": 1},
        {"replaced_cores": 1},
    ],
)
def test_a_server_that_counts_differently_does_not_balance(wrong: dict[str, float]) -> None:
    assert server_holds(COUNTS)
    assert not server_holds(replace(COUNTS, **wrong))  # type: ignore[arg-type]  # by name


def test_counts_are_those_between_two_readings() -> None:
    def reading(factor: int) -> str:
        lines = [
            f'http_requests_total{{method="POST",status="200"}} {10 * factor}',
            f'http_requests_total{{method="POST",status="503"}} {factor}',
            f'http_requests_total{{method="GET",status="200"}} {7 * factor}',
            f'infer:request_success_total{{finished_reason="length"}} {5 * factor}',
            f'infer:request_success_total{{finished_reason="abort"}} {2 * factor}',
            f"infer:request_params_n_sum {7 * factor}",
            f'infer:kv_blocks{{state="held"}} {factor}',
            'infer:kv_blocks{state="free"} 250',
        ]
        return "\n".join(lines) + "\n"

    counts = counts_between(metric_samples(reading(1)), metric_samples(reading(3)))
    assert (counts.posts, counts.server_errors) == (22, 2)
    assert (counts.accepted, counts.finished, counts.aborted) == (14, 10, 4)
    assert (counts.held["held blocks"], counts.num_blocks) == (3, 253)


async def test_an_exchange_is_counted_by_how_it_ended_and_an_error_is_a_failure() -> None:
    async def refused() -> Outcome:
        return "refused"

    async def failing(error: Exception) -> Outcome:
        raise error

    found = Tally()
    await found.count("plain", refused())
    await found.count("plain", failing(UnexpectedReplyError("500")))
    await found.count("plain", failing(TimeoutError()))
    assert found.rows() == [["plain", 3, 0, 1, 0, 2]]
    assert found.failures == ["plain: UnexpectedReplyError: 500", "plain: TimeoutError: "]


def test_hostile_bodies_are_the_same_for_the_same_seed_and_of_many_kinds() -> None:
    fields = {path: ["prompt", "bogus"] for path in SOUND}
    drawn, again = ([bodies.draw() for _ in range(300)] for bodies in (HostileBodies(fields, seed=1) for _ in "12"))
    assert drawn == again
    assert {path for path, _, _ in drawn} == set(SOUND)
    assert len({body for _, _, body in drawn}) > 100
    assert any(path == COMPLETIONS and b'"bogus"' in body for path, _, body in drawn)


@pytest.mark.parametrize(("text", "is_sound"), [("INFO: all is well\n", True), ("Traceback (most recent", False)])
def test_a_traceback_in_the_log_is_found(text: str, is_sound: bool) -> None:  # noqa: FBT001 - a case
    assert run.judge_log(text).holds is is_sound


def test_the_warm_up_of_an_hour_is_ten_minutes_and_shorter_than_the_run() -> None:
    hour, short = run.read_arguments([]), run.read_arguments(["--minutes", "6"])
    assert (hour.minutes, hour.warmup_minutes, hour.kill_minutes) == (60, 10, 5)
    assert (short.warmup_minutes, short.kill_minutes) == (1, 2)
    with pytest.raises(SystemExit):
        run.read_arguments(["--minutes", "6", "--warmup-minutes", "6"])


def test_a_figure_is_a_small_picture(tmp_path: Path) -> None:
    all_series = [memory(), *(memory(name=f"core, {number}", begin_s=number) for number in (1, 1500))]
    plot_soak(
        all_series, windows_of(streams(), KILLS), KILLS, tmp_path / "soak.png", title="a soak", warm_up_s=WARM_UP_S
    )
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "soak.png").stat().st_size < 200_000


@pytest.mark.full
def test_a_minute_of_all_traffic_with_two_kills_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run.main(["--quick", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert re.search(r"\| cores killed, then two again \| 2, 2, .*\| yes \|", printed)
    for kind in ("streams", "leavers", "plain", "hostile bodies", "sockets", "scrapes"):
        assert re.search(rf"\| {kind} \| [1-9]", printed)

"""The serving benchmark: seeded workloads, an open loop that stays open, numbers that add up, failures that count."""

import asyncio
import json
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.protocol import InvalidRequestError
from infer_server.testing import FakeEngine, Script, running_server

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from load_generator import RequestResult, run_workload
from request_dialects import CHAT, PLAIN, TEXT
from server_facts import MetricsWatch, describe, served_model, watching
from serving import main, measure, read_arguments
from serving_plots import plot_sweep, plot_timeline
from serving_report import combine, markdown_table, percentile, summarize
from workloads import WORKLOADS, PlannedRequest, Workload, make_workload, with_poisson_arrivals

SHAPES = {
    "single": (1, (256, 256), (256, 256)),
    "baseline": (10, (256, 256), (256, 256)),
    "mixed": (16, (32, 1024), (64, 256)),
    "continuous_batching": (32, (64, 512), (64, 256)),
    "paged_attention": (48, (128, 384), (128, 256)),
    "chunked_prefill": (48, (64, 2048), (64, 256)),
    "prefix_caching": (48, (1024 + 32, 1024 + 128), (256, 256)),
}


def planned(*arrivals_s: float, is_closed_loop: bool = False) -> Workload:
    requests = tuple(PlannedRequest(arrival_s=at_s, prompt=[5, 6, 7, 8], max_tokens=3) for at_s in arrivals_s)
    return Workload(name="test", requests=requests, is_closed_loop=is_closed_loop)


def result(*token_times_s: float, arrival_s: float = 0.0, error: str | None = None) -> RequestResult:
    times, count = list(token_times_s), len(token_times_s)
    sent_s = arrival_s + 0.25  # late: what follows counts from the arrival all the same
    return RequestResult(
        arrival_s=arrival_s, sent_s=sent_s, token_times_s=times, num_prompt_tokens=4, num_tokens=count, error=error
    )


@asynccontextmanager
async def sending(*pieces: str, length: int | None = None) -> AsyncIterator[str]:
    """A server that answers everything with `pieces`, a chunk each; with `length` it promises so many bytes instead."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        for piece in pieces:
            data = piece.encode()
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if length is None else data)
        if length is None:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_has_the_numbers_of_the_specification(name: str) -> None:
    count, prompts, answers = SHAPES[name]
    workload = make_workload(name, vocab_size=100)
    assert len(workload.requests) == count
    assert all(prompts[0] <= len(request.prompt) <= prompts[1] for request in workload.requests)
    assert all(answers[0] <= request.max_tokens <= answers[1] for request in workload.requests)
    assert all(0 <= token_id < 100 for request in workload.requests for token_id in request.prompt)
    assert workload.is_closed_loop == (name == "baseline")


def test_arrivals_are_a_burst_even_or_poisson() -> None:
    times = {name: [r.arrival_s for r in make_workload(name, vocab_size=9).requests] for name in WORKLOADS}
    assert set(times["mixed"]) == set(times["paged_attention"]) == {0.0}
    assert times["continuous_batching"] == [index / 4 for index in range(32)]
    assert times["prefix_caching"] == [index / 8 for index in range(48)]
    assert len(set(np.diff(times["chunked_prefill"]))) == 47
    many = make_workload("chunked_prefill", vocab_size=9, num_requests=4000, scale=0.001).requests
    assert many[-1].arrival_s == pytest.approx(4000 / 6, rel=0.1)


def test_chunked_prefill_has_three_long_prompts_to_a_short_one() -> None:
    lengths = [len(r.prompt) for r in make_workload("chunked_prefill", vocab_size=9, num_requests=1000).requests]
    assert all(64 <= length <= 128 or 1024 <= length <= 2048 for length in lengths)
    assert sum(length > 128 for length in lengths) / 1000 == pytest.approx(0.75, abs=0.05)


def test_prefix_caching_shares_exactly_its_prefix() -> None:
    first, second = make_workload("prefix_caching", vocab_size=50_000).requests[:2]
    assert first.prompt[:1024] == second.prompt[:1024]
    assert first.prompt[1024:1056] != second.prompt[1024:1056]


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_seed_gives_the_same_workload_and_another_one_another(name: str) -> None:
    assert make_workload(name, vocab_size=99, seed=3) == make_workload(name, vocab_size=99, seed=3)
    assert make_workload(name, vocab_size=99, seed=3) != make_workload(name, vocab_size=99, seed=4)


def test_other_contents_ask_for_the_same_work_with_other_tokens() -> None:
    ones, others = (make_workload("mixed", vocab_size=99, contents=contents).requests for contents in (0, 1))
    for one, other in zip(ones, others, strict=True):
        assert (one.arrival_s, len(one.prompt), one.max_tokens) == (
            other.arrival_s,
            len(other.prompt),
            other.max_tokens,
        )
        assert one.prompt[:16] != other.prompt[:16]


@pytest.mark.parametrize("name", WORKLOADS)
def test_more_requests_begin_with_the_same_ones(name: str) -> None:
    own = make_workload(name, vocab_size=99).requests
    assert make_workload(name, vocab_size=99, num_requests=60).requests[: len(own)] == own


def test_scale_shortens_and_rate_scale_hurries_and_counts_stay() -> None:
    whole = make_workload("continuous_batching", vocab_size=99)
    scaled = make_workload("continuous_batching", vocab_size=99, scale=0.25, rate_scale=2)
    for big, small in zip(whole.requests, scaled.requests, strict=True):
        assert small.max_tokens == round(big.max_tokens / 4)
        assert small.arrival_s == big.arrival_s / 2
    poisson = with_poisson_arrivals(whole, rate=3)
    assert [r.prompt for r in poisson.requests] == [r.prompt for r in whole.requests]
    assert poisson == with_poisson_arrivals(whole, rate=3)


@pytest.mark.parametrize("wrong", [{"name": "x"}, {"scale": 0}, {"rate_scale": -1}, {"num_requests": 0}])
def test_workload_names_what_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` is"):
        make_workload(**{"name": "mixed", "vocab_size": 9, **wrong})  # type: ignore[arg-type]  # wrong on purpose


async def test_every_token_of_our_server_is_timed_and_counted() -> None:
    async with running_server(FakeEngine(Script(num_cached_tokens=2))) as url:
        results = await run_workload(url, planned(0, 0.01, 0.02), progress=False)
    for index, one in enumerate(results):
        assert one.error is None
        assert one.finish_reason == "stop"
        assert (one.num_prompt_tokens, one.num_cached_tokens, one.num_tokens) == (4, 2, 3)
        assert len(one.token_times_s) == 3
        assert index * 0.01 <= one.arrival_s <= one.sent_s <= one.token_times_s[0] <= one.ended_s


async def test_requests_are_as_planned_and_plain_ones_leave_sampling_to_the_server() -> None:
    engine = FakeEngine()
    async with running_server(engine) as url:
        await run_workload(url, planned(0), model="fake-model", progress=False)
        await run_workload(url, planned(0), dialect=replace(TEXT, extras=PLAIN), progress=False)
    exact, plain = engine.requests
    assert exact.prompt == [5, 6, 7, 8]
    assert (exact.params.max_tokens, exact.params.temperature, exact.params.ignore_eos) == (3, 0, True)
    assert isinstance(plain.prompt, str)
    assert (plain.params.temperature, plain.params.ignore_eos) == (1.0, False)


async def test_chats_are_timed_and_counted_as_completions_are() -> None:
    async with running_server(FakeEngine()) as url:
        [one] = await run_workload(url, planned(0), dialect=CHAT, progress=False)
    assert (one.error, one.num_tokens, len(one.token_times_s)) == (None, 3, 3)


async def test_open_loop_sends_all_while_none_has_ended() -> None:
    engine = FakeEngine(Script(pause_after=1))
    async with running_server(engine) as url, asyncio.TaskGroup() as group:
        running = group.create_task(run_workload(url, planned(*[0.0] * 6), progress=False))
        await engine.wait_for_requests(6)
        engine.resume()
    assert [one.error for one in running.result()] == [None] * 6


@pytest.mark.parametrize(("is_closed_loop", "limit", "at_once"), [(True, None, 1), (True, 2, 2), (False, 3, 3)])
async def test_concurrency_is_limited(is_closed_loop: bool, limit: int | None, at_once: int) -> None:  # noqa: FBT001 - a parameter
    async with running_server(FakeEngine()) as url:
        work = planned(*[0.0] * 7, is_closed_loop=is_closed_loop)
        results = await run_workload(url, work, progress=False, max_concurrency=limit)
    overlaps = [sum(two.sent_s <= one.sent_s < two.ended_s for two in results) for one in results]
    assert max(overlaps) == at_once
    assert all(one.arrival_s == pytest.approx(one.sent_s, abs=1e-3) for one in results) == is_closed_loop


async def test_refusals_lost_servers_and_broken_streams_are_errors() -> None:
    engine = FakeEngine()
    engine.refusal = RuntimeError("a bug")
    async with running_server(engine) as url:
        [refused] = await run_workload(url, planned(0), progress=False)
    [unreachable] = await run_workload(url, planned(0), progress=False)
    async with sending('data: {"choices": [{"text": "a"}]}\n\n') as url:
        [unfinished] = await run_workload(url, planned(0), progress=False)
    async with sending("data: {", length=99) as url:
        [broken] = await run_workload(url, planned(0), progress=False)
    async with sending('data: {"error": {"message": "no memory"}}\n\n') as url:
        [failed] = await run_workload(url, planned(0), progress=False)
    expected = ["HTTP 500", "ConnectionRefusedError", "without a finish reason", "broke off", "no memory"]
    for one, words in zip([refused, unreachable, unfinished, broken, failed], expected, strict=True):
        assert words in str(one.error)
    summary = summarize([refused, unreachable, unfinished, broken, failed])
    assert summary["num_errors"] == 5
    assert summary["output_tokens_per_s"] is None


async def test_a_request_that_takes_too_long_has_failed() -> None:
    async with running_server(FakeEngine(Script(pause_after=1))) as url:
        [one] = await run_workload(url, planned(0), progress=False, timeout_s=0.2)
    assert one.error == "no end after 0.2 s"


async def test_events_of_several_tokens_are_counted_by_usage() -> None:
    events = 'data: {"choices": [{"text": "a b"}]}\r\n\r\n'
    events += 'data: {"choices": [{"text": "c d", "finish_reason": "length"}]}\n\n'
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}\n\ndata: [DONE]\n\n'
    for pieces in ((events, usage), tuple(events + usage)):
        async with sending(*pieces) as url:
            results = await run_workload(url, planned(0), progress=False)
        assert (len(results[0].token_times_s), results[0].num_tokens, results[0].num_prompt_tokens) == (2, 4, 9)
        assert summarize(results)["tokens_per_event"] == 2.0
    async with sending(events) as url:
        results = await run_workload(url, planned(0), progress=False)
    assert results[0].num_tokens == 2
    assert summarize(results)["tokens_counted_by"] == "events"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-9)


def test_summary_adds_up() -> None:
    summary = summarize(
        [result(1, 2, 4), result(2.5, 3, arrival_s=2), result(1, error="HTTP 503"), result(arrival_s=1)]
    )
    assert summary["errors"] == {"HTTP 503": 1, "no token came": 1}
    assert (summary["num_requests"], summary["num_errors"], summary["num_output_tokens"]) == (4, 2, 5)
    assert (summary["duration_s"], summary["output_tokens_per_s"], summary["requests_per_s"]) == (4, 1.25, 0.5)
    assert summary["ttft_s"]["p50"] == np.percentile([1, 0.5], 50)
    assert summary["itl_s"]["p99"] == pytest.approx(np.percentile([1, 2, 0.5], 99))
    assert summary["latency_s"]["max"] == 4
    assert summary["tpot_s"]["mean"] == 1.0
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_goodput_counts_requests_within_both_bounds() -> None:
    requests = [result(0.4, 0.5, 0.6), result(0.6, 0.7, 0.8), result(0.4, 0.5, 0.9), result(0.1, 0.2, error="x")]
    summary = summarize(requests, ttft_bound_s=0.5, itl_bound_s=0.2)
    assert summary["goodput_share"] == 0.25
    assert summary["goodput_requests_per_s"] == pytest.approx(1 / 0.9)


@pytest.mark.parametrize(("num_stalls", "share"), [(0, 1), (2, 1), (3, 0)])
def test_a_request_is_good_while_99_percent_of_its_gaps_are(num_stalls: int, share: float) -> None:
    times = [float(time_s) for time_s in np.cumsum([0.4] + [0.5] * num_stalls + [0.01] * (200 - num_stalls))]
    assert summarize([result(*times)], ttft_bound_s=0.5, itl_bound_s=0.2)["goodput_share"] == share


def test_table_shows_the_median_and_the_spread_of_repeated_runs() -> None:
    summaries = [summarize([result(at_s, at_s + 0.5)]) for at_s in (0.5, 1.5, 3.5)]
    assert combine(summaries)["TTFT P50, ms"] == {"median": 1500, "min": 500, "max": 3500}
    table = markdown_table({"a": summaries, "b": summaries[:1]})
    assert "| TTFT P50, ms | 1500 (500-3500) | 500 |" in table
    assert "| output tokens/s | 1 (0.5-2) | 2 |" in table
    assert math.isnan(percentile([], 50))


def test_metrics_give_peaks_and_growth_whatever_their_prefix() -> None:
    watch = MetricsWatch()
    for usage, preempted, queued_s, queued in ((0.2, 3, 1.0, 5), (0.9, 4, 4.0, 7), (0.1, 6, 9.0, 9)):
        watch.note(
            f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}\n'
            f'vllm:num_preemptions_total{{engine="0"}} {preempted:e}\n'
            f"vllm:request_queue_time_seconds_sum {queued_s}\nvllm:request_queue_time_seconds_count {queued}\n"
        )
    assert watch.facts["kv_occupancy_peak"] == 0.9
    assert watch.facts["num_preemptions"] == 3
    assert watch.facts["mean_queue_time_s"] == 2.0


async def test_what_a_server_tells_is_kept_and_what_it_lacks_is_left_out() -> None:
    async with running_server(FakeEngine()) as url:
        told = await describe(url, headers={})
        async with watching(url, headers={}) as watch:
            await run_workload(url, planned(0), progress=False)
    assert served_model(told) == ("fake-model", 512)
    assert told["cache_config_info"]["block_size"] == "16"
    assert "/props" not in told
    assert watch.facts["num_queued"] == 1
    async with sending("no JSON") as url:
        assert await describe(url, headers={}) == {}


def test_plots_are_small_pictures(tmp_path: Path) -> None:
    points = [{**summarize([result(0.5, 0.6, 0.8 * load)]), "load": load} for load in (1, 2, 4)]
    plot_sweep(points, tmp_path / "sweep.png", title="mixed", unit="requests at once")
    plot_timeline([result(1, 2, 4), result(2.5, 3, arrival_s=2)], tmp_path / "timeline.png", title="mixed")
    for name in ("sweep.png", "timeline.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / name).stat().st_size < 150_000


@pytest.fixture(scope="module")
def report_of_the_demo_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        flags = ["--scale", "0.03", "--requests", "4", "--repeats", "2", "--no-progress", "--out", str(folder)]
        main(["--workload", "prefix_caching", *flags, "--serve", "--block-size", "8"])
    return folder, (folder / "serving-prefix_caching.json").read_text()


def test_report_of_our_server_has_its_configuration_and_its_numbers_add_up(
    report_of_the_demo_model: tuple[Path, str],
) -> None:
    folder, text = report_of_the_demo_model
    report = json.loads(text)
    assert (folder / "serving-prefix_caching.png").exists()
    assert {"commit", "cpu", "torch", "command"} <= report["environment"].keys()
    assert report["own_server"]["flags"] == ["--block-size", "8"]
    assert report["target"]["told"]["cache_config_info"]["block_size"] == "8"
    [load] = report["runs"]
    for summary in load["runs"]:
        assert summary["num_errors"] == 0
        assert summary["num_output_tokens"] == sum(report["workload"]["max_tokens"])
        assert summary["num_prompt_tokens"] == sum(report["workload"]["prompt_tokens"])
        assert summary["server"]["num_queued"] == 4
    assert load["spread"]["requests/s"]["min"] <= load["spread"]["requests/s"]["median"]


async def test_a_workload_longer_than_the_context_is_refused_with_the_scale_that_fits() -> None:
    async with running_server(FakeEngine()) as url:
        arguments = read_arguments(["--url", url, "--workload", "mixed"])
        with pytest.raises(
            SystemExit, match=r"mixed has requests of \d+ tokens but fake-model takes 512; use `--scale 0"
        ):
            await measure(arguments, url, None)


async def test_several_loads_are_the_points_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--scale", "0.05", "--concurrency", "1", "3", "--no-progress", "--out", str(tmp_path)]
    async with running_server(FakeEngine()) as url:
        await measure(read_arguments(["--url", url, "--workload", "baseline", *flags]), url, None)
    report = json.loads((tmp_path / "serving-baseline.json").read_text())
    assert [(load["concurrency"], len(load["runs"])) for load in report["runs"]] == [(1, 1), (3, 1)]
    assert [load["runs"][0]["num_output_tokens"] for load in report["runs"]] == [30, 36]
    assert "| | 1 at once | 3 at once |" in capsys.readouterr().out


async def test_a_server_that_refuses_the_warm_up_ends_the_benchmark_with_its_words() -> None:
    engine = FakeEngine()
    engine.refusal = InvalidRequestError("`prompt` is not liked.", param="prompt")
    async with running_server(engine) as url:
        with pytest.raises(SystemExit, match=r"refused the warm-up: HTTP 4.*is not liked"):
            await measure(read_arguments(["--url", url, "--scale", "0.05"]), url, None)


@pytest.mark.parametrize(
    "flags", ["--url http://x --shape smollm-135m", "--rate 1 --sweep", "--rate 1 --concurrency 2"]
)
def test_flags_that_exclude_each_other_are_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_arguments(flags.split())
    assert "`--" in capsys.readouterr().err

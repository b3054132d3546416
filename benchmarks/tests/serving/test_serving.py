"""The serving benchmark: numbers that add up, goodput within its bounds, a report that says what was run."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from infer_bench.client.load import RequestResult
from infer_bench.client.summary import combine, percentile, spread_words, summarize
from infer_bench.client.workloads import WORKLOADS
from infer_bench.registry import main as run
from infer_bench.results import documentation
from infer_bench.serving import routing
from infer_bench.serving.workloads import load_table, measure, read_arguments, tokenize, workloads_table
from infer_engine.protocol import InvalidRequestError
from infer_proofs.server import FakeEngine, running_server


def result(*token_times_s: float, arrival_s: float = 0.0, error: str | None = None) -> RequestResult:
    times, count = list(token_times_s), len(token_times_s)
    sent_s = arrival_s + 0.25  # late: what follows counts from the arrival all the same
    return RequestResult(
        arrival_s=arrival_s, sent_s=sent_s, token_times_s=times, num_prompt_tokens=4, num_tokens=count, error=error
    )


@pytest.mark.covers("workloads/latency")
def test_percentiles_are_interpolated_between_ranks() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0, 2.0], 99) == pytest.approx(1.99)
    assert math.isnan(percentile([], 50))


@pytest.mark.covers("workloads/throughput")
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
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


@pytest.mark.covers("workloads/decoding-at-once")
def test_decoding_at_once_counts_requests_between_their_first_and_last_token() -> None:
    summary = summarize([result(1, 3), result(2, 2.5, 4), result(3.5, 5, arrival_s=1), result(9, error="x")])
    assert (summary["num_decoding_mean"], summary["num_decoding_peak"]) == ((2 + 2 + 1.5) / 5, 2)
    assert summarize([result(2)])["num_decoding_peak"] == 1
    assert summarize([])["num_decoding_peak"] == 0


def test_goodput_counts_requests_within_both_bounds() -> None:
    requests = [result(0.4, 0.5, 0.6), result(0.6, 0.7, 0.8), result(0.4, 0.5, 0.9), result(0.1, 0.2, error="x")]
    summary = summarize(requests, ttft_bound_s=0.5, itl_bound_s=0.2)
    assert summary["goodput_requests_per_s"] == pytest.approx(1 / 0.9)


@pytest.mark.parametrize(("num_stalls", "share"), [(0, 1), (2, 1), (3, 0)])
def test_a_request_is_good_while_99_percent_of_its_gaps_are(num_stalls: int, share: float) -> None:
    times = [float(time_s) for time_s in np.cumsum([0.4] + [0.5] * num_stalls + [0.01] * (200 - num_stalls))]
    summary = summarize([result(*times)], ttft_bound_s=0.5, itl_bound_s=0.2)
    assert summary["goodput_requests_per_s"] == share * summary["requests_per_s"]


@pytest.mark.covers("workloads/report-forms")
def test_table_shows_the_median_and_the_spread_of_repeated_runs() -> None:
    summaries = [summarize([result(at_s, at_s + 0.5)]) for at_s in (0.5, 1.5, 3.5)]
    assert combine(summaries)["TTFT P50, ms"] == {"median": 1500, "min": 500, "max": 3500}
    runs = [{**summary, "server": {}} for summary in summaries]
    loads = [{"rate": None, "concurrency": None, "runs": runs}, {"rate": 2.0, "concurrency": None, "runs": runs[:1]}]
    text = load_table({"runs": loads})
    assert "|  | its own arrivals | 2 per second |" in text
    assert "| TTFT P50, ms | 1500 (500-3500) | 500 |" in text
    assert "| output tokens/s | 1 (0.5-2) | 2 |" in text
    assert spread_words({"median": None, "min": None, "max": None}) == "-"


@pytest.mark.covers("workloads/report-carries")
def test_report_of_our_server_has_its_configuration_and_its_numbers_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    flags = "serving --workload prefix_caching --scale 0.03 --requests 4 --repeats 2 --no-progress --out"
    assert run([*flags.split(), str(tmp_path), "--serve", "--block-size", "8"]) == 0
    report = json.loads((tmp_path / "serving-prefix_caching.json").read_text())
    assert (tmp_path / "serving-prefix_caching.png").read_bytes().startswith(b"\x89PNG")
    assert {"commit", "cpu", "torch"} <= report["environment"].keys()
    assert report["environment"]["command"].startswith("infer-bench serving --workload prefix_caching")
    assert report["own_server"]["flags"] == ["--model", "infer-demo", "--block-size", "8"]
    assert report["target"]["told"]["cache_config_info"]["block_size"] == "8"
    [load] = report["runs"]
    for summary in load["runs"]:
        assert summary["num_errors"] == 0
        assert summary["num_output_tokens"] == sum(report["workload"]["max_tokens"])
        assert summary["num_prompt_tokens"] == sum(report["workload"]["prompt_tokens"])
        assert summary["server"]["num_queued"] == 4
    assert load["spread"]["requests/s"]["min"] <= load["spread"]["requests/s"]["median"]


async def test_prompts_are_pieces_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = documentation()
    monkeypatch.setattr("infer_bench.serving.workloads.documentation", lambda: pages[-20_000:])
    engine, flags = FakeEngine(), "--documentation --rounds 1 --scale 0.1 --no-progress --name x --out"
    async with running_server(engine) as url:
        arguments = read_arguments(["--url", url, *flags.split(), str(tmp_path)])
        result = await measure(arguments, url, None)
        with pytest.raises(SystemExit, match="`/tokenize` answers 404"):
            await tokenize(arguments, url + "/elsewhere", "text")
    assert (tmp_path / "x.json").is_file()
    assert result["workload"]["prompts_of"] == "documentation"
    twice = [*arguments.text, *arguments.text]
    for prompt in [request.prompt for request in engine.requests]:
        assert isinstance(prompt, list)
        begins = (place for place, token in enumerate(twice) if token == prompt[0])
        assert any(twice[begin : begin + len(prompt)] == prompt for begin in begins)


@pytest.mark.parametrize(
    ("flags", "longest"),
    [(["--workload", "mixed"], "mixed"), (["--workload", "all", "--scale", "0.3"], "chunked_prefill")],
)
async def test_a_workload_longer_than_the_context_is_refused_with_the_scale_that_fits(
    flags: list[str], longest: str
) -> None:
    async with running_server(FakeEngine()) as url:
        arguments = read_arguments(["--url", url, *flags])
        refused = rf"{longest} has requests of \d+ tokens but fake-model takes 512; use `--scale 0"
        with pytest.raises(SystemExit, match=refused):
            await measure(arguments, url, None)


@pytest.mark.covers("workloads/report-forms")
async def test_several_loads_are_the_points_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--scale", "0.05", "--concurrency", "1", "3", "--no-progress", "--out", str(tmp_path)]
    async with running_server(FakeEngine()) as url:
        await measure(read_arguments(["--url", url, "--workload", "baseline", *flags]), url, None)
    report = json.loads((tmp_path / "serving-baseline.json").read_text())
    assert [(load["concurrency"], len(load["runs"])) for load in report["runs"]] == [(1, 1), (3, 1)]
    assert [load["runs"][0]["num_output_tokens"] for load in report["runs"]] == [30, 36]
    printed = capsys.readouterr().out
    assert "|  | 1 at once | 3 at once |" in printed
    assert load_table(report) in printed
    assert (tmp_path / "serving-baseline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.covers("workloads/all-workloads")
async def test_all_workloads_run_in_turn_and_are_rows_of_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--workload", "all", "--scale", "0.03", "--rate-scale", "20", "--rounds", "2", "--no-progress"]
    async with running_server(FakeEngine()) as url:
        await measure(read_arguments(["--url", url, *flags, "--out", str(tmp_path)]), url, None)
    result = json.loads((tmp_path / "serving-all.json").read_text())
    assert tuple(result["workloads"]) == WORKLOADS
    for name, each in result["workloads"].items():
        assert each["workload"]["workload"] == name
        assert [run["num_errors"] for run in each["runs"]] == [0, 0]
        assert each["runs"][1]["num_requests"] == len(each["workload"]["arrivals_s"])
    head, _, *rows = workloads_table(result).splitlines()
    assert all(f"{name} P{percent}, ms" in head for name in ("TTFT", "ITL") for percent in (50, 99))
    assert [row.split(" | ")[0] for row in rows] == [f"| `{name}`" for name in WORKLOADS]
    assert workloads_table(result) in capsys.readouterr().out


async def test_a_server_that_refuses_the_warm_up_ends_the_benchmark_with_its_words() -> None:
    engine = FakeEngine()
    engine.refusal = InvalidRequestError("`prompt` is not liked.", param="prompt")
    async with running_server(engine) as url:
        with pytest.raises(SystemExit, match=r"refused the warm-up: HTTP 4.*is not liked"):
            await measure(read_arguments(["--url", url, "--scale", "0.05"]), url, None)


@pytest.mark.parametrize(
    "flags", ["--url http://x --shape smollm-135m", "--rate 1 --concurrency 2", "--workload all --concurrency 2"]
)
def test_flags_that_exclude_each_other_are_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_arguments(flags.split())
    assert "`--" in capsys.readouterr().err


def test_groups_of_prompts_have_beginnings_of_their_own_in_a_random_order() -> None:
    workload = routing.make_workload(4, 3, seed=0)
    beginnings = [tuple(request.prompt[: routing.SHARED_TOKENS]) for request in workload.requests]
    assert sorted(map(beginnings.count, set(beginnings))) == [3] * 4
    assert beginnings[:3] != [beginnings[0]] * 3
    assert len({tuple(request.prompt) for request in workload.requests}) == 12

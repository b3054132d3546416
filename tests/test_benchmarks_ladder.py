"""The serving ladder: one switch a rung, the same memory on all, and claims judged by the numbers alone."""

import json
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from infer_engine import EngineConfig
from infer_models.config import ModelConfig
from infer_server.testing import FakeEngine, running_server

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from kv_capacity import count_capacity
from ladder import LADDER, Runs, main, measure, plan
from ladder_claims import ONE_BY_ONE, RUNG_BELOW, judge
from ladder_figure import draw
from ladder_report import METRICS, flatten, markdown
from rungs import CPU, GPU, OFF, PROFILES, SLOTS, Profile, engine_options, flags, kv_bytes_per_token, options_of, rungs
from shapes import SHAPES, write_shape
from workloads import make_workload

CHUNKS = {"prefill_chunk_size", "max_prefill_chunks_per_step"}
ANY = dict.fromkeys(METRICS, 1.0)
GOOD = {
    "static": {"continuous_batching": {**ANY, "ttft_p99_s": 2.0, "output_tokens_per_s": 100.0}},
    "continuous": {
        "continuous_batching": {**ANY, "ttft_p99_s": 0.2, "output_tokens_per_s": 99.0},
        "paged_attention": {**ANY, "num_running_peak": 8, "output_tokens_per_s": 100.0},
    },
    "paged": {
        "paged_attention": {**ANY, "num_running_peak": 32, "output_tokens_per_s": 200.0},
        "chunked_prefill": {**ANY, "itl_p99_s": 0.4},
        "mixed": {**ANY, "output_tokens_per_s": 150.0},
        ONE_BY_ONE: {**ANY, "output_tokens_per_s": 50.0},
    },
    "chunked": {"chunked_prefill": {**ANY, "itl_p99_s": 0.2}, "prefix_caching": {**ANY, "ttft_p50_s": 1.0}},
    "prefix": {"prefix_caching": {**ANY, "ttft_p50_s": 0.1}},
}
CAPACITY = count_capacity(num_slots=8, num_tokens=256, max_seq_len=4096)
WORSE = [
    ("continuous", "continuous_batching", "ttft_p99_s", 2.0),
    ("continuous", "continuous_batching", "output_tokens_per_s", 94.0),
    ("paged", "paged_attention", "num_running_peak", 8),
    ("paged", "paged_attention", "output_tokens_per_s", 100.0),
    ("chunked", "chunked_prefill", "itl_p99_s", 0.21),
    ("prefix", "prefix_caching", "ttft_p50_s", 1.0),
    ("paged", "mixed", "output_tokens_per_s", 50.0),
]
NAMES = {rung.name: rung.label for rung in rungs(CPU)}


@pytest.fixture(
    params=[(profile, shape) for profile in (CPU, GPU) for shape in profile.shapes], ids=lambda pair: pair[1]
)
def climbed(request: pytest.FixtureRequest) -> tuple[Profile, str]:
    """A profile and one of its shapes."""
    found: tuple[Profile, str] = request.param
    return found


def configs(profile: Profile, shape: str) -> dict[str, EngineConfig]:
    return {
        rung.name: EngineConfig(**engine_options(profile, shape, options_of(profile, rung.name)))
        for rung in rungs(profile)
    }


def test_rungs_differ_from_the_one_before_by_one_switch() -> None:
    before = OFF
    switched = []
    for rung in rungs(GPU):
        options = options_of(GPU, rung.name)
        switched.append({name for name in options if options[name] != before.get(name)} - CHUNKS)
        before = options
    assert switched == [
        set(),
        {"batching_mode"},
        {"kv_cache_backend"},
        {"use_chunked_prefill"},
        {"use_prefix_caching"},
    ]


def test_rungs_are_configurations_that_do_what_they_are_called(climbed: tuple[Profile, str]) -> None:
    for name, config in configs(*climbed).items():
        height = list(NAMES).index(name)
        assert (config.batching_mode == "continuous") is (height >= 1)
        assert (config.resolved_kv_cache_backend == "paged") is (height >= 2)
        assert config.chunks_prefill is (height >= 3)
        assert config.caches_prefixes is (height >= 4)


def test_rungs_have_the_same_memory_and_the_same_longest_request(climbed: tuple[Profile, str]) -> None:
    found = list(configs(*climbed).values())
    assert len({(config.kv_cache_bytes, config.max_seq_len, config.max_batch_size) for config in found}) == 1


def test_memory_is_that_of_as_many_longest_requests_as_the_contiguous_cache_has_slots(
    climbed: tuple[Profile, str], tmp_path: Path
) -> None:
    profile, shape = climbed
    model = ModelConfig.from_folder(write_shape(shape, tmp_path))
    of_one_token = 2 * model.num_layers * model.kv_heads * model.head_dim * 2
    assert model.dtype == "bfloat16"
    assert kv_bytes_per_token(SHAPES[shape]) == of_one_token
    assert configs(profile, shape)["paged"].kv_cache_bytes == SLOTS * profile.max_seq_len * of_one_token


def test_every_request_fits_the_longest_one(climbed: tuple[Profile, str]) -> None:
    assert all(plan(*climbed, name).longest <= climbed[0].max_seq_len for name in LADDER)


def test_unknown_rung_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"`name` is 'roof'; it must be one of static, "):
        options_of(CPU, "roof")


def test_flags_say_what_is_off_by_name() -> None:
    assert flags({"use_prefix_caching": False, "use_chunked_prefill": True, "max_seq_len": 64}) == [
        "--no-use-prefix-caching",
        "--use-chunked-prefill",
        "--max-seq-len",
        "64",
    ]


def test_capacity_counts_sixteen_times_as_many_short_sequences() -> None:
    assert (CAPACITY.contiguous, CAPACITY.paged, CAPACITY.ratio) == (8, 128, 16)


def test_capacity_is_the_same_where_every_sequence_is_the_longest() -> None:
    assert count_capacity(num_slots=3, num_tokens=512, max_seq_len=512).ratio == 1


def test_claims_hold_on_numbers_that_bear_them_out() -> None:
    claims = judge(GOOD, capacity=CAPACITY)
    assert len(claims) == 8
    assert all(claim.held for claim in claims)
    assert {claim.rung for claim in claims} == set(RUNG_BELOW)


@pytest.mark.parametrize(("rung", "workload", "metric", "value"), WORSE)
def test_claim_is_not_held_where_its_number_is_no_better(rung: str, workload: str, metric: str, value: float) -> None:
    measured = deepcopy(GOOD)
    measured[rung][workload][metric] = value
    [broken] = [claim for claim in judge(measured, capacity=CAPACITY) if not claim.held]
    assert broken.rung == rung
    assert workload in broken.evidence


def test_claim_about_capacity_is_not_held_where_fewer_sequences_fit() -> None:
    [broken] = [claim for claim in judge(GOOD, capacity=replace(CAPACITY, paged=127)) if not claim.held]
    assert "8 -> 127" in broken.evidence


def test_claims_of_workloads_that_did_not_run_are_not_judged() -> None:
    claims = judge({"static": GOOD["static"]}, capacity=CAPACITY)
    assert [claim.evidence.split()[-1] for claim in claims] == ["counted"]


def test_report_has_a_row_for_each_rung_and_says_what_did_not_hold() -> None:
    measured = deepcopy(GOOD)
    measured["prefix"]["prefix_caching"]["ttft_p50_s"] = 3.0
    text = markdown(measured, judge(measured, capacity=CAPACITY), names=NAMES)
    assert all(text.count(f"\n| {label} | ") >= 1 for label in NAMES.values())
    assert "| + chunked prefill |  |  |  |  |  | 200 ms | 1.00 s | 1.00 s | 1/s |" in text
    assert text.count("**not held**") == 1
    assert "`prefix_caching`: 1.00 s -> 3.00 s (x3.00)" in text


def test_figure_is_a_small_picture(tmp_path: Path) -> None:
    measured = {rung: dict.fromkeys(LADDER, ANY) for rung in NAMES}
    picture = draw(measured, NAMES, tmp_path / "ladder.png", title="The ladder").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_dry_run_prints_servers_and_workloads_of_every_shape(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--profile", name, "--dry-run"])
    text = capsys.readouterr().out
    for shape in PROFILES[name].shapes:
        assert f"# {name}: {shape}" in text
    assert text.count("infer-server --device") == (len(rungs(CPU)) + 1) * len(PROFILES[name].shapes)
    assert all(workload in text for workload in LADDER)


def test_medians_are_over_the_rounds_of_each_run() -> None:
    runs = Runs()
    for rate in (10.0, 90.0, 20.0):
        percentiles = {f"{name}_s": {"p50": 1.0, "p99": 2.0} for name in ("ttft", "itl", "latency")}
        runs.add("static", "mixed", {**ANY, **percentiles, "output_tokens_per_s": rate})
    found = runs.medians()["static"]["mixed"]
    assert (found["output_tokens_per_s"], found["ttft_p99_s"]) == (20.0, 2.0)


async def test_measuring_gives_every_metric_of_the_table() -> None:
    workload = make_workload("paged_attention", scale=0.02, vocab_size=90, num_requests=4)
    async with running_server(FakeEngine()) as url:
        [(name, summary)] = await measure(url, [workload], warm_up=workload)
    assert name == "paged_attention"
    assert list(flatten(summary)) == list(METRICS)
    assert json.dumps(summary)


async def test_measuring_ends_where_a_request_fails() -> None:
    workload = make_workload("single", scale=0.02, vocab_size=90)
    too_long = replace(workload, requests=(replace(workload.requests[0], max_tokens=10**6),))
    async with running_server(FakeEngine()) as url:
        with pytest.raises(RuntimeError, match="1 requests of single failed"):
            await measure(url, [too_long], warm_up=workload)

"""The ablation: one switch a step, the same memory on all, and claims judged by the numbers alone."""

import json
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from infer_bench.client.workloads import make_workload
from infer_bench.serving.ablation import METRICS, main, measure, medians_of
from infer_bench.serving.ablation_claims import ONE_BY_ONE, count_capacity, judge, report
from infer_bench.serving.ablation_steps import (
    CPU,
    GPU,
    LABELS,
    SLOTS,
    STEPS,
    WORKLOADS,
    Profile,
    flags,
    kv_bytes_per_token,
    plan,
    server_options,
)
from infer_bench.serving.plots import plot_ladder
from infer_bench.shapes import SHAPES, write_config
from infer_engine import EngineConfig
from infer_models.config import ModelConfig
from infer_server.testing import FakeEngine, running_server

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
CAPACITY = (8, 128)
WORSE = [
    ("continuous", "continuous_batching", "ttft_p99_s", 2.0),
    ("continuous", "continuous_batching", "output_tokens_per_s", 94.0),
    ("paged", "paged_attention", "num_running_peak", 8),
    ("paged", "paged_attention", "output_tokens_per_s", 100.0),
    ("chunked", "chunked_prefill", "itl_p99_s", 0.21),
    ("prefix", "prefix_caching", "ttft_p50_s", 1.0),
    ("paged", "mixed", "output_tokens_per_s", 50.0),
]
CASES = [(profile, shape) for profile in (CPU, GPU) for shape in profile.shapes]


def test_steps_differ_from_the_one_before_by_one_switch() -> None:
    options = server_options(GPU, "qwen3-4b")
    assert list(options) == list(LABELS) == [*STEPS, "capped"]
    steps = [options[step] for step in STEPS]
    switched = [
        {name for name in after if after[name] != before.get(name)} - CHUNKS for before, after in pairwise(steps)
    ]
    assert switched == [{"batching_mode"}, {"kv_cache_backend"}, {"use_chunked_prefill"}, {"use_prefix_caching"}]


@pytest.mark.parametrize("profile", [CPU, GPU], ids=lambda profile: profile.name)
def test_chunks_scale_with_the_lengths_and_are_one_a_step(profile: Profile) -> None:
    options = server_options(profile, profile.shapes[0])
    assert options["chunked"]["prefill_chunk_size"] == 512 * profile.scale
    assert options["chunked"]["max_prefill_chunks_per_step"] == 1
    assert options["capped"] == options["paged"] | {"max_prefill_chunks_per_step": 1}


@pytest.mark.parametrize(("profile", "shape"), CASES, ids=[shape for _, shape in CASES])
def test_steps_are_configurations_of_equal_memory_that_do_what_they_are_called(
    profile: Profile, shape: str, tmp_path: Path
) -> None:
    options = server_options(profile, shape)
    found = [EngineConfig(**options[step]) for step in STEPS]
    for number, config in enumerate(found):
        assert (config.batching_mode == "continuous") is (number >= 1)
        assert (config.resolved_kv_cache_backend == "paged") is (number >= 2)
        assert config.chunks_prefill is (number >= 3)
        assert config.caches_prefixes is (number >= 4)
    assert len({(config.kv_cache_bytes, config.max_seq_len, config.max_batch_size) for config in found}) == 1
    model = ModelConfig.from_folder(write_config(shape, tmp_path))
    of_one_token = 2 * model.num_layers * model.kv_heads * model.head_dim * 2
    assert model.dtype == "bfloat16"
    assert kv_bytes_per_token(SHAPES[shape]) == of_one_token
    assert found[0].kv_cache_bytes == SLOTS * profile.max_seq_len * of_one_token
    assert all(plan(profile, shape, name).longest <= profile.max_seq_len for name in WORKLOADS)


def test_flags_say_what_is_off_by_name() -> None:
    words = flags({"use_prefix_caching": False, "use_chunked_prefill": True, "max_seq_len": 64})
    assert words == ["--no-use-prefix-caching", "--use-chunked-prefill", "--max-seq-len", "64"]


def test_capacity_counts_sixteen_times_as_many_short_sequences() -> None:
    assert count_capacity() == CAPACITY
    assert count_capacity(num_tokens=512, max_seq_len=512) == (SLOTS, SLOTS)


def test_claims_hold_on_numbers_that_bear_them_out() -> None:
    claims = judge(GOOD, capacity=CAPACITY)
    assert len(claims) == 8
    assert all(claim.held for claim in claims)
    assert list(dict.fromkeys(claim.step for claim in claims)) == list(STEPS)[1:]


@pytest.mark.parametrize(("step", "workload", "metric", "value"), WORSE)
def test_claim_is_not_held_where_its_number_is_no_better(step: str, workload: str, metric: str, value: float) -> None:
    measured = deepcopy(GOOD)
    measured[step][workload][metric] = value
    [broken] = [claim for claim in judge(measured, capacity=CAPACITY) if not claim.held]
    assert broken.step == step
    assert workload in broken.evidence


def test_claim_about_capacity_is_not_held_where_fewer_sequences_fit() -> None:
    [broken] = [claim for claim in judge(GOOD, capacity=(8, 127)) if not claim.held]
    assert "8 -> 127" in broken.evidence


def test_report_has_a_row_for_each_step_and_says_what_did_not_hold() -> None:
    measured = deepcopy(GOOD)
    measured["prefix"]["prefix_caching"]["ttft_p50_s"] = 3.0
    text = report(measured, judge(measured, capacity=CAPACITY))
    assert all(text.count(f"\n| {label} | ") >= 1 for label in STEPS.values())
    assert "| + chunked prefill |  |  |  |  |  | 200 ms | 1.00 s | 1.00 s | 1/s |" in text
    assert text.count("**not held**") == 1
    assert "`prefix_caching`: 1.00 s -> 3.00 s (x3.00)" in text


def test_figure_is_a_small_picture(tmp_path: Path) -> None:
    measured = {step: dict.fromkeys(WORKLOADS, ANY) for step in STEPS}
    plot_ladder(measured, tmp_path / "ablation.png", title="The steps")
    picture = (tmp_path / "ablation.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000


def test_dry_run_prints_servers_and_workloads_of_every_shape(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--profile", "gpu", "--dry-run"])
    text = capsys.readouterr().out
    assert all(f"# gpu: {shape}" in text for shape in GPU.shapes)
    assert text.count("infer-server --device") == len(LABELS) * len(GPU.shapes)
    assert all(workload in text for workload in WORKLOADS)


async def test_measuring_gives_every_metric_of_the_table_and_ends_where_a_request_fails() -> None:
    workload = make_workload("paged_attention", scale=0.02, vocab_size=90, num_requests=4)
    too_long = replace(workload, requests=(replace(workload.requests[0], max_tokens=10**6),))
    async with running_server(FakeEngine()) as url:
        [(name, summary)] = await measure(url, [workload], warm_up=workload)
        with pytest.raises(RuntimeError, match="1 requests of paged_attention failed"):
            await measure(url, [too_long], warm_up=workload)
    assert json.dumps(summary)
    rounds = [summary | {"output_tokens_per_s": rate} for rate in (10.0, 90.0, 20.0)]
    medians = medians_of({"static": {name: rounds}})["static"]["paged_attention"]
    assert set(medians) == set(METRICS)
    assert (medians["output_tokens_per_s"], medians["ttft_p50_s"]) == (20.0, summary["ttft_s"]["p50"])

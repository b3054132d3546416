"""The ablation: one switch a step, the same memory on all, and claims judged by the numbers alone."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from infer_bench.client.workloads import make_workload
from infer_bench.serving.ablation import WORKLOADS, main, measure, medians_of, plan
from infer_bench.serving.ablation_claims import METRICS, ONE_BY_ONE, STEP_NAMES, flatten, judge, report
from infer_bench.serving.ablation_figure import draw
from infer_bench.serving.ablation_steps import (
    CPU,
    GPU,
    OFF,
    SLOTS,
    Profile,
    ablation_steps,
    control,
    engine_options,
    flags,
    kv_bytes_per_token,
)
from infer_bench.serving.kv_capacity import count_capacity
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
LABELS = {step.name: step.label for step in ablation_steps(CPU)}
CASES = [(profile, shape) for profile in (CPU, GPU) for shape in profile.shapes]


def configs(profile: Profile, shape: str) -> dict[str, EngineConfig]:
    return {step.name: EngineConfig(**engine_options(profile, shape, step.options)) for step in ablation_steps(profile)}


def test_steps_differ_from_the_one_before_by_one_switch() -> None:
    before, switched = OFF, []
    for step in ablation_steps(GPU):
        switched.append({name for name in step.options if step.options[name] != before.get(name)} - CHUNKS)
        before = step.options
    assert switched == [
        set(),
        {"batching_mode"},
        {"kv_cache_backend"},
        {"use_chunked_prefill"},
        {"use_prefix_caching"},
    ]
    assert tuple(LABELS) == STEP_NAMES


def test_chunks_scale_with_the_lengths_and_are_one_a_step() -> None:
    for profile in (CPU, GPU):
        [chunked] = [step for step in ablation_steps(profile) if step.name == "chunked"]
        assert chunked.options["prefill_chunk_size"] == 512 * profile.scale
        assert chunked.options["max_prefill_chunks_per_step"] == 1
        assert "prefill_chunk_size" not in control(profile).options
        assert control(profile).options["max_prefill_chunks_per_step"] == 1


@pytest.mark.parametrize(("profile", "shape"), CASES, ids=[shape for _, shape in CASES])
def test_steps_are_configurations_of_equal_memory_that_do_what_they_are_called(
    profile: Profile, shape: str, tmp_path: Path
) -> None:
    found = configs(profile, shape)
    for number, config in enumerate(found.values()):
        assert (config.batching_mode == "continuous") is (number >= 1)
        assert (config.resolved_kv_cache_backend == "paged") is (number >= 2)
        assert config.chunks_prefill is (number >= 3)
        assert config.caches_prefixes is (number >= 4)
    assert len({(config.kv_cache_bytes, config.max_seq_len, config.max_batch_size) for config in found.values()}) == 1
    model = ModelConfig.from_folder(write_config(shape, tmp_path))
    of_one_token = 2 * model.num_layers * model.kv_heads * model.head_dim * 2
    assert model.dtype == "bfloat16"
    assert kv_bytes_per_token(SHAPES[shape]) == of_one_token
    assert found["paged"].kv_cache_bytes == SLOTS * profile.max_seq_len * of_one_token
    assert all(plan(profile, shape, name).longest <= profile.max_seq_len for name in WORKLOADS)


def test_flags_say_what_is_off_by_name() -> None:
    words = flags({"use_prefix_caching": False, "use_chunked_prefill": True, "max_seq_len": 64})
    assert words == ["--no-use-prefix-caching", "--use-chunked-prefill", "--max-seq-len", "64"]


def test_capacity_counts_sixteen_times_as_many_short_sequences() -> None:
    assert (CAPACITY.contiguous, CAPACITY.paged, CAPACITY.ratio) == (8, 128, 16)
    assert count_capacity(num_slots=3, num_tokens=512, max_seq_len=512).ratio == 1


def test_claims_hold_on_numbers_that_bear_them_out() -> None:
    claims = judge(GOOD, capacity=CAPACITY)
    assert len(claims) == 8
    assert all(claim.held for claim in claims)
    assert {claim.step for claim in claims} == set(STEP_NAMES[1:])


@pytest.mark.parametrize(("step", "workload", "metric", "value"), WORSE)
def test_claim_is_not_held_where_its_number_is_no_better(step: str, workload: str, metric: str, value: float) -> None:
    measured = deepcopy(GOOD)
    measured[step][workload][metric] = value
    [broken] = [claim for claim in judge(measured, capacity=CAPACITY) if not claim.held]
    assert broken.step == step
    assert workload in broken.evidence


def test_claim_about_capacity_is_not_held_where_fewer_sequences_fit() -> None:
    [broken] = [claim for claim in judge(GOOD, capacity=replace(CAPACITY, paged=127)) if not claim.held]
    assert "8 -> 127" in broken.evidence


def test_report_has_a_row_for_each_step_and_says_what_did_not_hold() -> None:
    measured = deepcopy(GOOD)
    measured["prefix"]["prefix_caching"]["ttft_p50_s"] = 3.0
    text = report(measured, judge(measured, capacity=CAPACITY), labels=LABELS)
    assert all(text.count(f"\n| {label} | ") >= 1 for label in LABELS.values())
    assert "| + chunked prefill |  |  |  |  |  | 200 ms | 1.00 s | 1.00 s | 1/s |" in text
    assert text.count("**not held**") == 1
    assert "`prefix_caching`: 1.00 s -> 3.00 s (x3.00)" in text


def test_figure_is_a_small_picture(tmp_path: Path) -> None:
    measured = {step: dict.fromkeys(WORKLOADS, ANY) for step in LABELS}
    picture = draw(measured, LABELS, tmp_path / "ablation.png", title="The steps").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000


def test_dry_run_prints_servers_and_workloads_of_every_shape(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--profile", "gpu", "--dry-run"])
    text = capsys.readouterr().out
    assert all(f"# gpu: {shape}" in text for shape in GPU.shapes)
    assert text.count("infer-server --device") == (len(LABELS) + 1) * len(GPU.shapes)
    assert all(workload in text for workload in WORKLOADS)


def test_medians_are_over_the_rounds_of_each_run() -> None:
    percentiles = {f"{name}_s": {"p50": 1.0, "p99": 2.0} for name in ("ttft", "itl", "latency")}
    rounds = [{**ANY, **percentiles, "output_tokens_per_s": rate} for rate in (10.0, 90.0, 20.0)]
    found = medians_of({"static": {"mixed": rounds}})["static"]["mixed"]
    assert (found["output_tokens_per_s"], found["ttft_p99_s"]) == (20.0, 2.0)


async def test_measuring_gives_every_metric_of_the_table_and_ends_where_a_request_fails() -> None:
    workload = make_workload("paged_attention", scale=0.02, vocab_size=90, num_requests=4)
    too_long = replace(workload, requests=(replace(workload.requests[0], max_tokens=10**6),))
    async with running_server(FakeEngine()) as url:
        [(name, summary)] = await measure(url, [workload], warm_up=workload)
        with pytest.raises(RuntimeError, match="1 requests of paged_attention failed"):
            await measure(url, [too_long], warm_up=workload)
    assert name == "paged_attention"
    assert list(flatten(summary)) == list(METRICS)
    assert json.dumps(summary)

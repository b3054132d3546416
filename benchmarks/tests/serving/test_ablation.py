"""The serving ladder: one switch a step, no default counts, the same memory and requests on all; claims can fail."""

import json
from copy import deepcopy
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from infer_bench.client.workloads import WORKLOADS, make_workload
from infer_bench.serving.ablation import (
    METRICS,
    choose_pairs,
    draw_ladder,
    main,
    measure,
    report,
    result_of,
)
from infer_bench.serving.ladder import (
    CHUNKS,
    CONTROLS,
    CPU,
    EXPECTATIONS,
    GPU,
    LADDER,
    ONE_BY_ONE,
    ONLY_CHUNKED,
    SLOTS,
    STEPS,
    Measured,
    Options,
    Profile,
    count_capacities,
    judge,
    plan,
    server_options,
)
from infer_bench.shapes import write_config
from infer_engine import EngineConfig
from infer_models.config import ModelConfig
from infer_proofs.server import FakeEngine, running_server

CASES = [(profile, shape) for profile in (CPU, GPU) for shape in profile.shapes]
each_case = pytest.mark.parametrize(("profile", "shape"), CASES, ids=[shape for _, shape in CASES])
each_profile = pytest.mark.parametrize("profile", [CPU, GPU], ids=lambda profile: profile.name)
LEFT_OUT = {
    "model": "the shape's, as the server is started",
    "load_format": "random weights, as the server is started",
    **dict.fromkeys(("num_kv_blocks", "num_gpu_blocks", "gpu_memory_utilization"), "`kv_cache_memory` is in its place"),
    **dict.fromkeys(("state_cache_memory", "state_cache_dtype"), "no shape has layers with states"),
    "speculative_model": "nothing is drafted",
    "max_decode_slowdown": "`max_prefill_tokens_beside_decodes` is in its place, and both together are refused",
    "step_timeout_s": "ends a stuck engine, and no step is",
    "routing_policy": "there is one copy of the model",
    "tool_call_format": "no request has tools",
    **dict.fromkeys(("reasoning_format", "reasoning_budget", "reasoning_budget_message"), "completions have none"),
    "generation_config": "each request says how it is sampled",
    "structured_output_whitespace": "no request asks for structured output",
}
"""Fields of `EngineConfig` that no step names, and why they change nothing here."""


def switched(before: Options, after: Options) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


@pytest.mark.covers("experiments/ladder-steps")
@each_case
def test_steps_differ_from_the_one_before_by_one_switch(profile: Profile, shape: str) -> None:
    options = server_options(profile, shape)
    assert list(options) == list(STEPS)
    assert [switched(options[before], options[after]) for before, after in pairwise(LADDER)] == [
        {"max_batch_size"},
        {"batching_mode"},
        {"kv_cache_backend"},
        {"max_batch_size"},
        {"max_prefill_chunks_per_step"},
        {"use_chunked_prefill", ONLY_CHUNKED},
        {"use_prefix_caching"},
        {"max_prefill_tokens_beside_decodes"},
    ]
    controls = [switched(options["chunked"], options[step]) for step in CONTROLS]
    assert controls == [{"max_prefill_chunks_per_step"}, *[{ONLY_CHUNKED}] * 4]


@pytest.mark.covers("experiments/ladder-names-every-field")
@each_case
def test_every_step_names_every_field_that_bears_on_it(profile: Profile, shape: str) -> None:
    known = {field.name for field in fields(EngineConfig)}
    assert LEFT_OUT.keys() < known
    for step, options in server_options(profile, shape).items():
        expected = known - LEFT_OUT.keys() - ({ONLY_CHUNKED} if not options["use_chunked_prefill"] else set())
        assert options.keys() == expected, step
        assert None not in options.values(), step


@pytest.mark.covers(
    "experiments/by-chunk-size",
    "workloads/chunk-size-scales",
    "workloads/one-chunk-per-step",
    "workloads/chunks-cut-by-size",
)
@each_profile
def test_chunks_scale_with_the_lengths_are_one_a_step_and_cut_by_nothing_but_their_size(profile: Profile) -> None:
    options = server_options(profile, profile.shapes[0])
    assert options["chunked"]["max_prefill_chunks_per_step"] == 1
    assert [options[step][ONLY_CHUNKED] for step in CHUNKS] == [n * profile.scale for n in (128, 256, 512, 1024, 2048)]
    for step, found in options.items():
        chunk = found.get(ONLY_CHUNKED, 0)
        assert (found["max_prefill_tokens_beside_decodes"] < chunk) is (step == "beside")
        assert chunk <= found["max_num_batched_tokens"]


@pytest.mark.covers("experiments/ladder-steps")
@each_case
def test_steps_are_configurations_of_equal_memory_that_do_what_they_are_called(
    profile: Profile, shape: str, tmp_path: Path
) -> None:
    found = {step: EngineConfig(**options) for step, options in server_options(profile, shape).items()}
    order = list(LADDER)
    for number, step in enumerate(order):
        config = found[step]
        assert (config.max_batch_size or 0) == (1 if number < 1 else SLOTS if number < 4 else profile.max_batch_size)
        assert (config.batching_mode == "continuous") is (number >= order.index("continuous"))
        assert (config.resolved_kv_cache_backend == "paged") is (number >= order.index("matched"))
        assert config.chunks_prefill is (number >= order.index("chunked"))
        assert config.caches_prefixes is (number >= order.index("prefix"))
    assert len({(config.kv_cache_bytes, config.max_seq_len) for config in found.values()}) == 1
    model = ModelConfig.from_folder(write_config(shape, tmp_path))
    of_one_token = 2 * model.num_layers * model.kv_heads * model.head_dim * 2
    assert model.dtype == found["one"].dtype == "bfloat16"
    assert found["one"].kv_cache_bytes == SLOTS * profile.max_seq_len * of_one_token


@pytest.mark.covers("workloads/scaling")
def test_requests_of_the_batching_workload_arrive_faster_and_are_the_same() -> None:
    name = "continuous_batching"
    slow, fast = (plan(replace(CPU, hurry=hurry), "llama-30m", name) for hurry in ({}, {name: 4.0}))
    assert [request.prompt for request in slow.requests] == [request.prompt for request in fast.requests]
    assert slow.requests[-1].arrival_s == pytest.approx(4 * fast.requests[-1].arrival_s)
    mixed, single = plan(CPU, "llama-30m", "mixed"), plan(CPU, "llama-30m", ONE_BY_ONE)
    assert single == replace(mixed, name=ONE_BY_ONE, is_closed_loop=True)


def test_steps_and_workloads_can_be_chosen() -> None:
    assert choose_pairs() == {step: list(each.workloads) for step, each in STEPS.items()}
    assert choose_pairs(["matched", "paged"], ["mixed"]) == {"paged": ["mixed"]}


def test_dry_run_prints_servers_and_workloads_of_every_shape(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--profile", "gpu", "--dry-run"])
    text = capsys.readouterr().out
    assert all(f"# gpu: {shape}" in text for shape in GPU.shapes)
    assert text.count("infer-server --device") == len(STEPS) * len(GPU.shapes)
    assert all(workload in text for workload in WORKLOADS)


async def test_measuring_gives_every_metric_of_the_tables_and_ends_where_a_request_fails() -> None:
    workload = make_workload("paged_attention", scale=0.02, vocab_size=90, num_requests=4)
    too_long = replace(workload, requests=(replace(workload.requests[0], max_tokens=10**6),))
    async with running_server(FakeEngine()) as url:
        [(name, summary)] = (await measure(url, [workload], warm_up=workload)).items()
        with pytest.raises(RuntimeError, match="1 requests of paged_attention failed"):
            await measure(url, [too_long], warm_up=workload)
    rounds = [summary | {"output_tokens_per_s": rate} for rate in (10.0, 90.0, 20.0)]
    result = json.loads(json.dumps(result_of(CPU, "llama-30m", {"paged": {name: rounds}})))
    medians = result["medians"]["paged"]["paged_attention"]
    assert set(medians) == set(METRICS)
    assert (medians["output_tokens_per_s"], medians["ttft_p50_s"]) == (20.0, summary["ttft_s"]["p50"])
    assert medians["num_decoding_peak"] == summary["num_decoding_peak"] >= 1
    text = report(result)
    assert f"| `paged_attention` | {STEPS['paged'].label} | 20/s |" in text
    assert "Sizes of chunks" not in text


# Claims

ANY = dict.fromkeys(METRICS, 1.0) | {"num_decoding_mean": 3.0, "output_tokens_per_s": 100.0}
BETTER: dict[tuple[str, str], dict[str, float]] = {
    ("static", "mixed"): {"output_tokens_per_s": 300.0},
    ("static", "continuous_batching"): {"ttft_p99_s": 2.0},
    ("matched", "paged_attention"): {"kv_occupancy_peak": 0.2, "num_decoding_peak": 8.0},
    ("paged", "paged_attention"): {"num_decoding_peak": 32.0, "output_tokens_per_s": 200.0},
    ("capped", "mixed"): {"output_tokens_per_s": 40.0},
    ("capped", "paged_attention"): {"ttft_p50_s": 2.0},
    ("paged", ONE_BY_ONE): {"output_tokens_per_s": 50.0},
    ("chunked", "chunked_prefill"): {"itl_p99_s": 0.5},
    ("uncapped", "chunked_prefill"): {"itl_p99_s": 0.5},
    ("prefix", "prefix_caching"): {"ttft_p50_s": 0.1},
    ("beside", "chunked_prefill"): {"itl_p99_s": 0.1},
}
GOOD: Measured = {
    step: {name: ANY | BETTER.get((step, name), {}) for name in each.workloads} for step, each in STEPS.items()
}
FITTING = {256: (8, 128), 512: (8, 64), 1024: (8, 32), 2048: (8, 16), 4096: (8, 8)}


def changed(step: str, workload: str, metric: str, value: float) -> Any:
    measured: Any = deepcopy(GOOD)
    measured[step][workload][metric] = value
    return measured


def broken(measured: Measured) -> list[str]:
    return [claim.text for claim in judge(measured, capacities=FITTING) if not claim.held]


def as_saved(measured: Measured) -> dict[str, Any]:
    """A result as its file has it."""
    claims = [claim._asdict() for claim in judge(measured, capacities=FITTING)]
    capacity = [{"num_tokens": n, "in_slots": slots, "in_blocks": blocks} for n, (slots, blocks) in FITTING.items()]
    found = {"medians": measured, "claims": claims, "capacity": capacity, "options": server_options(CPU, "llama-30m")}
    found |= {"profile": {"scale": 0.5, "device": "cpu"}, "shape": {"name": "llama-30m"}}
    return dict(json.loads(json.dumps(found)))


def test_claims_hold_on_numbers_that_bear_them_out_and_find_their_workloads() -> None:
    claims = judge(GOOD, capacities=FITTING)
    assert len(claims) == len(EXPECTATIONS) + len(FITTING) + 2
    assert all(claim.held for claim in claims)
    steps = [claim.step for claim in claims]
    assert steps == sorted(steps, key=list(STEPS).index)
    assert set(steps) == {*LADDER, "uncapped"} - {"one", "capped"}
    assert judge({}, capacities={}) == judge({"chunked": GOOD["chunked"]}, capacities={}) == []


@pytest.mark.covers(
    "experiments/static-beats-one-by-one",
    "experiments/continuous-beats-static",
    "experiments/paged-beats-slots",
    "experiments/chunks-halve-itl",
    "experiments/prefix-caching-lowers-ttft",
    "experiments/concurrent-beats-one-by-one",
)
@pytest.mark.parametrize("expected", EXPECTATIONS, ids=lambda expected: expected.text)
def test_a_claim_is_not_held_where_its_number_is_just_not_good_enough(expected: Any) -> None:
    other = expected.other or expected.workload
    before = GOOD[expected.before][other][expected.metric] if expected.before else 1.0
    bound = expected.factor * before
    worse = bound * (1.01 if expected.compare(0.0, 1.0) else 0.99)
    assert expected.text in broken(changed(expected.step, expected.workload, expected.metric, worse))


@pytest.mark.covers("experiments/baseline-not-slower")
@pytest.mark.parametrize("step", ["static", "matched", "beside"])
def test_one_request_at_a_time_must_not_be_slower(step: str) -> None:
    [text] = broken(changed(step, "baseline", "output_tokens_per_s", 94.0))
    assert text.startswith("one request at a time")


@pytest.mark.covers("experiments/paged-holds-more")
def test_capacity_counts_sixteen_to_one_times_as_many_sequences_and_one_less_is_not_held() -> None:
    assert count_capacities() == FITTING
    assert count_capacities([512], max_seq_len=512) == {512: (SLOTS, SLOTS)}
    for length, (slots, blocks) in FITTING.items():
        [failed] = [claim for claim in judge({}, capacities={length: (slots, blocks - 1)}) if not claim.held]
        assert f"of {length} tokens" in failed.text
        assert f"8 -> {blocks - 1}" in failed.evidence


def test_report_is_made_of_a_saved_result_and_says_what_did_not_hold(tmp_path: Path) -> None:
    result = as_saved(changed("prefix", "prefix_caching", "ttft_p50_s", 3.0))
    text = report(result)
    assert "\n| one by one | 100/s | 100/s |  |  |  |  |  |  |  |  |" in text
    assert f"\n| {STEPS['static'].label} | 100/s | 300/s | 2.00 s | 3 | 1 |  |  |  |  |  |" in text
    assert text.count("**not held**") == 1
    assert "`prefix_caching`: 1.00 s -> 3.00 s (x3.00)" in text
    assert "| 256 | 8 | 128 | 16 |" in text
    draw_ladder(result, tmp_path / "ablation.png")
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")

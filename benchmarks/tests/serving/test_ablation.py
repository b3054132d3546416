"""The ablation's plan and measuring: one switch a step, no default counts, the same memory and requests on all."""

import json
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from infer_bench.client.workloads import WORKLOADS, make_workload
from infer_bench.serving.ablation import METRICS, choose_pairs, main, measure, medians_of, report, result_of
from infer_bench.serving.ablation_plan import (
    CHUNKS,
    CPU,
    EXPECTATIONS,
    FULL_CHUNK,
    GPU,
    LABELS,
    LEFT_OUT,
    OF_CHUNK,
    ONE_BY_ONE,
    ONLY_CHUNKED,
    RUNS,
    SLOTS,
    STEPS,
    Options,
    Profile,
    flags,
    kv_bytes_per_token,
    plan,
    server_options,
)
from infer_bench.shapes import SHAPES, write_config
from infer_engine import EngineConfig
from infer_models.config import ModelConfig
from infer_proofs.server import FakeEngine, running_server

CASES = [(profile, shape) for profile in (CPU, GPU) for shape in profile.shapes]
each_case = pytest.mark.parametrize(("profile", "shape"), CASES, ids=[shape for _, shape in CASES])


def switched(before: Options, after: Options) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


@pytest.mark.covers("experiments/ladder-steps")
@each_case
def test_steps_differ_from_the_one_before_by_one_switch(profile: Profile, shape: str) -> None:
    options = server_options(profile, shape)
    assert list(options) == list(LABELS) == [*STEPS, "uncapped", *OF_CHUNK] == list(RUNS)
    assert [switched(options[before], options[after]) for before, after in pairwise(STEPS)] == [
        {"max_batch_size"},
        {"batching_mode"},
        {"kv_cache_backend"},
        {"max_batch_size"},
        {"max_prefill_chunks_per_step"},
        {"use_chunked_prefill", ONLY_CHUNKED},
        {"use_prefix_caching"},
        {"max_prefill_tokens_beside_decodes"},
    ]
    assert switched(options["chunked"], options["uncapped"]) == {"max_prefill_chunks_per_step"}
    assert all(switched(options["chunked"], options[name]) == {ONLY_CHUNKED} for name in OF_CHUNK)


@pytest.mark.covers("experiments/ladder-names-every-field")
@each_case
def test_every_step_names_every_field_that_bears_on_it(profile: Profile, shape: str) -> None:
    known = {field.name for field in fields(EngineConfig)}
    assert LEFT_OUT.keys() < known
    for step, options in server_options(profile, shape).items():
        expected = known - LEFT_OUT.keys() - ({ONLY_CHUNKED} if not options["use_chunked_prefill"] else set())
        assert options.keys() == expected, step
        assert None not in options.values(), step


@pytest.mark.covers("experiments/by-chunk-size", "workloads/chunk-size-scales", "workloads/one-chunk-per-step")
@pytest.mark.parametrize("profile", [CPU, GPU], ids=lambda profile: profile.name)
def test_chunks_scale_with_the_lengths_and_are_one_a_step(profile: Profile) -> None:
    options = server_options(profile, profile.shapes[0])
    assert options["chunked"][ONLY_CHUNKED] == 512 * profile.scale
    assert options["chunked"]["max_prefill_chunks_per_step"] == 1
    sizes = [options[f"chunk-{size}" if size != FULL_CHUNK else "chunked"][ONLY_CHUNKED] for size in CHUNKS]
    assert sizes == [size * profile.scale for size in (128, 256, 512, 1024, 2048)]


@pytest.mark.covers("workloads/chunks-cut-by-size")
@pytest.mark.parametrize("profile", [CPU, GPU], ids=lambda profile: profile.name)
def test_a_chunk_is_cut_by_nothing_but_its_size_until_the_last_step(profile: Profile) -> None:
    options = server_options(profile, profile.shapes[0])
    for step in (*STEPS, "uncapped", *OF_CHUNK):
        beside, chunk = options[step]["max_prefill_tokens_beside_decodes"], options[step].get(ONLY_CHUNKED, 0)
        assert (beside < chunk) is (step == "beside")
        assert chunk <= options[step]["max_num_batched_tokens"]


@pytest.mark.covers("experiments/ladder-steps")
@each_case
def test_steps_are_configurations_of_equal_memory_that_do_what_they_are_called(
    profile: Profile, shape: str, tmp_path: Path
) -> None:
    options = server_options(profile, shape)
    found = {step: EngineConfig(**options[step]) for step in LABELS}
    order = list(STEPS)
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
    assert kv_bytes_per_token(SHAPES[shape]) == of_one_token
    assert found["one"].kv_cache_bytes == SLOTS * profile.max_seq_len * of_one_token
    assert all(plan(profile, shape, name).longest <= profile.max_seq_len for name in WORKLOADS)


def test_the_last_steps_run_every_workload_and_claims_find_theirs() -> None:
    assert RUNS["prefix"] == RUNS["beside"] == WORKLOADS
    assert all("baseline" in RUNS[step] for step in STEPS)
    for expected in EXPECTATIONS:
        assert expected.workload in RUNS[expected.step]
        assert not expected.before or (expected.other or expected.workload) in RUNS[expected.before]


@pytest.mark.covers("workloads/scaling")
def test_requests_of_the_batching_workload_arrive_faster_and_are_the_same() -> None:
    name = "continuous_batching"
    slow, fast = (plan(replace(CPU, hurry=hurry), "llama-30m", name) for hurry in ({}, {name: 4.0}))
    assert [request.prompt for request in slow.requests] == [request.prompt for request in fast.requests]
    assert slow.requests[-1].arrival_s == pytest.approx(4 * fast.requests[-1].arrival_s)
    mixed, single = plan(CPU, "llama-30m", "mixed"), plan(CPU, "llama-30m", ONE_BY_ONE)
    assert single == replace(mixed, name=ONE_BY_ONE, is_closed_loop=True)
    assert len(plan(CPU, "llama-30m", "mixed", num_requests=3).requests) == 3


def test_flags_say_what_is_off_by_name() -> None:
    words = flags({"use_prefix_caching": False, "use_chunked_prefill": True, "max_seq_len": 64})
    assert words == ["--no-use-prefix-caching", "--use-chunked-prefill", "--max-seq-len", "64"]


def test_steps_and_workloads_can_be_chosen() -> None:
    assert choose_pairs() == {step: list(names) for step, names in RUNS.items()}
    assert choose_pairs(["matched", "paged"], ["mixed"]) == {"paged": ["mixed", ONE_BY_ONE]}


def test_dry_run_prints_servers_and_workloads_of_every_shape(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--profile", "gpu", "--dry-run"])
    text = capsys.readouterr().out
    assert all(f"# gpu: {shape}" in text for shape in GPU.shapes)
    assert text.count("infer-server --device") == len(LABELS) * len(GPU.shapes)
    assert all(workload in text for workload in WORKLOADS)


async def test_measuring_gives_every_metric_of_the_tables_and_ends_where_a_request_fails() -> None:
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
    assert medians["num_decoding_peak"] == summary["num_decoding_peak"] >= 1
    text = report(json.loads(json.dumps(result_of(CPU, "llama-30m", {"paged": {name: rounds}}))))
    assert f"| `paged_attention` | {STEPS['paged']} | 20/s |" in text
    assert "Sizes of chunks" not in text

"""All that is published. To add a table: its result in `RESULTS`, the table in `TABLES`, and its markers in a page."""

from collections.abc import Callable
from typing import Any

from infer_bench.kernels.cpu import comparison_table
from infer_bench.offline import host_step
from infer_bench.offline.batching import plot_batching
from infer_bench.publish.declared import Json, Picture, Result, Table
from infer_bench.publish.tables import cpu, offline, peers, replicas, serving, soak
from infer_bench.publish.tables.words import sections
from infer_bench.results import columns_table
from infer_bench.serving import ablation
from infer_bench.serving.over_http import report as over_http_table
from infer_bench.serving.policies import policies_table
from infer_bench.serving.streaming import delay_table, throughput_table
from infer_bench.serving.workloads import workloads_table

_PEERS = "vLLM and llama.cpp in environments of their own"
_TWO_REPLICAS = (
    "python -m infer_server --model {checkpoint:llama-135m-8k} --data-parallel-size 2 --speculative-config none "
    "--no-access-log --port {port}"
)
_RANKS_MODEL = "--model {checkpoint:llama-30m} --no-access-log --port {port}"
_TWO_RANKS = f"python -m infer_server --tensor-parallel-size 2 {_RANKS_MODEL}"
_RAY = f"env infer-ray serve {_RANKS_MODEL}"

RESULTS = (
    Result(name="batching", command="infer-bench batching", minutes=0.2),
    Result(name="engine", command="infer-bench engine", minutes=1),
    Result(name="concurrency-smollm-135m", command="infer-bench concurrency", minutes=2),
    Result(name="host-step", command="infer-bench host-step", minutes=1),
    Result(name="kernels-cpu", command="infer-bench kernels-cpu", minutes=2),
    Result(name="kv-cache-int8", command="infer-bench kv-cache", minutes=0.5),
    Result(name="compare-transformers-smollm-135m", command="infer-bench transformers", minutes=1),
    Result(
        name="structured",
        command="infer-bench structured --model {checkpoint:llama-135m-8k} --rounds 5",
        minutes=1,
    ),
    Result(name="cpu-steps-llama-135m-8k", command="infer-bench cpu-steps --shape llama-135m-8k", minutes=1.5),
    Result(
        name="cpu-steps-qwen3-0.6b-8k-quantized",
        command="infer-bench cpu-steps --shape qwen3-0.6b-8k --quantization none int8 int4 --rounds 3",
        minutes=4,
    ),
    Result(name="streaming", command="infer-bench streaming", minutes=1.5),
    Result(name="text-side", command="infer-bench text-side", minutes=2),
    Result(
        name="serving-mixed",
        command="infer-bench serving --workload mixed --scale 0.87 --no-progress",
        minutes=0.5,
    ),
    Result(
        name="serving-all",
        command="infer-bench serving --workload all --shape llama-30m --scale 0.5 --rate-scale 0.5 --no-progress",
        minutes=3,
    ),
    Result(
        name="serving-smollm2",
        command="infer-bench serving --checkpoint {checkpoint:smollm2-135m-instruct} --documentation --workload all "
        "--rounds 1 --name serving-smollm2 --no-progress",
        minutes=4,
    ),
    Result(name="policies", command="infer-bench policies", minutes=6),
    Result(name="over-http-smollm-135m", command="infer-bench over-http", minutes=1.5),
    Result(name="ablation-cpu", command="infer-bench ablation --profile cpu --rounds 3", minutes=14),
    Result(name="routing-2", command="infer-bench routing --replicas 2", minutes=1.5),
    Result(name="routing-4", command="infer-bench routing --replicas 4", minutes=2.5),
    Result(
        name="replicas-llama-135m-8k",
        command="infer-bench peers --model {checkpoint:llama-135m-8k} --rounds 3 --name replicas-llama-135m-8k "
        f"--peer 'two replicas={_TWO_REPLICAS}'",
        minutes=2.5,
    ),
    Result(
        name="ranks-llama-30m",
        command="infer-bench peers --model {checkpoint:llama-30m} --rounds 3 --name ranks-llama-30m "
        f"--peer 'two ranks={_TWO_RANKS}' --peer 'ray={_RAY}' --peer 'ray with two processors={_RAY} --num-cpus 2'",
        minutes=8,
    ),
    Result(name="peers-llama-135m-8k", elsewhere=_PEERS),
    Result(name="peers-qwen3-0.6b-8k", elsewhere=_PEERS),
    Result(name="peers-llama-135m-8k-amx", elsewhere=f"{_PEERS}, and a CPU with AMX"),
    Result(name="peers-qwen3-0.6b-8k-amx", elsewhere=f"{_PEERS}, and a CPU with AMX"),
    Result(name="quantized-peers-qwen3-0.6b-8k", elsewhere=f"{_PEERS}, and a CPU with AMX"),
    Result(name="quantized-peers-qwen3-0.6b-8k-huge-pages", elsewhere=f"{_PEERS}, and a CPU with AMX"),
    Result(name="quantized-peers-qwen3-0.6b-8k-zen4", elsewhere=f"{_PEERS}, and a Zen 4 CPU"),
    Result(name="prompt-cap", elsewhere="the benchmark of its commit: the engine alone, on a clock of CPU time"),
    Result(name="engine-process", elsewhere="the benchmark of its commit: a server with its core in a thread"),
    Result(name="soak", elsewhere="an hour by itself: `nox -s soak`"),
)
"""What is measured, in the order in which it runs; those from elsewhere last."""

_ZEN_RACES = ("peers-llama-135m-8k", "peers-qwen3-0.6b-8k")
_AMX_RACES = tuple(f"{name}-amx" for name in _ZEN_RACES)


def rounds_of(*path: str | int) -> Callable[[Json], int]:
    """Return what counts the rounds of a result: the length of what lies at `path`."""

    def count(result: Json) -> int:
        found: Any = result
        for key in path:
            found = found[key]
        return len(found)

    return count


def _ladder_rounds(result: Json) -> int:
    return max(len(found) for row in result["rounds"].values() for found in row.values())


def _turns(result: Json) -> int:
    return len(next(iter(result["turns"].values())))


_HUGE_PAGES, _ZEN4 = (f"quantized-peers-qwen3-0.6b-8k-{name}" for name in ("huge-pages", "zen4"))
TABLES = (
    Table(
        name="batching/commit",
        sources=("batching",),
        render=lambda result: f"`{result['environment']['commit']}`",
        measured="",
    ),
    Table(
        name="concurrency/short",
        sources=("concurrency-smollm-135m",),
        render=offline.concurrency_short,
        measured="`uv run infer-bench concurrency`",
        rounds=rounds_of("together"),
    ),
    Table(
        name="concurrency",
        sources=("concurrency-smollm-135m",),
        render=offline.concurrency_rounds,
        rounds=rounds_of("together"),
    ),
    Table(name="engine", sources=("engine",), render=offline.engine_steps),
    Table(
        name="host-step",
        sources=("host-step",),
        render=lambda result: host_step.time_table(result["commits"][0]["microseconds"]),
        measured="Microseconds, measured",
        rounds=rounds_of("commits", 0, "rounds"),
    ),
    Table(
        name="prompt-cap",
        sources=("prompt-cap",),
        render=lambda result: columns_table(offline.PROMPT_CAP, result["rows"]),
    ),
    Table(
        name="kv-cache",
        sources=("kv-cache-int8",),
        render=lambda result: columns_table(offline.KV_CACHE, result["cases"]),
    ),
    Table(
        name="transformers",
        sources=("compare-transformers-smollm-135m",),
        render=offline.transformers,
        measured="transformers {transformers}, measured",
        rounds=lambda result: len(next(iter(result["tokens_per_s"].values()))["infer"]),
    ),
    Table(
        name="structured",
        sources=("structured",),
        render=offline.structured,
        rounds=rounds_of("first_token_s", "free text"),
    ),
    Table(
        name="cpu-steps",
        sources=("cpu-steps-llama-135m-8k", "cpu-steps-qwen3-0.6b-8k-quantized"),
        render=cpu.steps,
        measured="",
    ),
    Table(name="cpu-steps/quantized", sources=("cpu-steps-qwen3-0.6b-8k-quantized",), render=cpu.quantized),
    Table(
        name="kernels-cpu",
        sources=("kernels-cpu",),
        render=lambda result: comparison_table(result["comparisons"]),
        rounds=rounds_of("comparisons", 0, "ours"),
    ),
    Table(
        name="streaming",
        sources=("streaming",),
        render=lambda result: sections(throughput_table(result["throughput"]), delay_table(result["delays"])),
    ),
    Table(name="text-side", sources=("text-side",), render=serving.text_side, measured=""),
    Table(
        name="serving-mixed",
        sources=("serving-mixed",),
        render=serving.workload_mixed,
        rounds=rounds_of("runs", 0, "runs"),
    ),
    Table(
        name="serving-all",
        sources=("serving-all",),
        render=workloads_table,
        rounds=rounds_of("workloads", "single", "runs"),
    ),
    Table(name="serving-smollm2", sources=("serving-smollm2",), render=workloads_table, rounds=lambda _: 1),
    Table(name="policies", sources=("policies",), render=policies_table, rounds=rounds_of("turns", "arrivals", "fcfs")),
    Table(name="over-http", sources=("over-http-smollm-135m",), render=over_http_table, rounds=rounds_of("rounds")),
    Table(
        name="ablation-cpu",
        sources=("ablation-cpu",),
        render=lambda result: sections(ablation.ladder_table(result), ablation.claims_table(result)),
        rounds=_ladder_rounds,
    ),
    Table(name="ablation-cpu/capacity", sources=("ablation-cpu",), render=ablation.capacity_table, measured=""),
    Table(
        name="ablation-cpu/chunks",
        sources=("ablation-cpu",),
        render=lambda result: sections(ablation.caps_table(result), ablation.chunks_table(result)),
        measured="",
    ),
    Table(name="ablation-cpu/runs", sources=("ablation-cpu",), render=ablation.latency_table, measured=""),
    Table(name="engine-process", sources=("engine-process",), render=serving.engine_process),
    Table(name="routing", sources=("routing-4", "routing-2"), render=replicas.routing_hits, measured=""),
    Table(name="replicas", sources=("replicas-llama-135m-8k",), render=replicas.replicas, rounds=_turns),
    Table(name="ranks", sources=("ranks-llama-30m",), render=replicas.sides(replicas.RANKS), rounds=_turns),
    Table(name="ranks/ray", sources=("ranks-llama-30m",), render=replicas.sides(replicas.RAY), rounds=_turns),
    Table(name="peers/135m", sources=_ZEN_RACES[:1], render=peers.race, measured="135m, measured", rounds=_turns),
    Table(name="peers/0.6b", sources=_ZEN_RACES[1:], render=peers.race, measured="0.6b, measured", rounds=_turns),
    Table(name="peers/times-better", sources=_ZEN_RACES, render=peers.times_better, measured=""),
    Table(name="peers/135m-amx", sources=_AMX_RACES[:1], render=peers.race, measured="135m, measured", rounds=_turns),
    Table(name="peers/0.6b-amx", sources=_AMX_RACES[1:], render=peers.race, measured="0.6b, measured", rounds=_turns),
    Table(name="peers/times-better-amx", sources=_AMX_RACES, render=peers.times_better, measured=""),
    Table(
        name="quantized-peers/xeon",
        sources=("quantized-peers-qwen3-0.6b-8k",),
        render=peers.quantized,
        rounds=_turns,
    ),
    Table(name="quantized-peers/huge-pages", sources=(_HUGE_PAGES,), render=peers.quantized, rounds=_turns),
    Table(name="quantized-peers/zen4", sources=(_ZEN4,), render=peers.quantized, rounds=_turns),
    Table(name="soak", sources=("soak",), render=soak.soak, measured="{minutes:g} minutes"),
)


PICTURES = (
    Picture(name="batching.png", source="batching", draw=plot_batching),
    Picture(name="ablation-cpu.png", source="ablation-cpu", draw=ablation.draw_ladder),
    Picture(name="serving-mixed.png", source="serving-mixed"),
    Picture(name="soak.png", source="soak", draw=soak.draw_soak),
)

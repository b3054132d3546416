"""All that is published. To add a table: its result in `RESULTS`, the table in `TABLES`, and its markers in a page."""

from collections.abc import Callable
from functools import partial

from infer_bench.kernels import cpu as kernels_cpu
from infer_bench.kernels import kv_cache
from infer_bench.limits import FINDINGS
from infer_bench.offline import concurrency, engine, host_step, steps, structured, transformers
from infer_bench.publish import tables
from infer_bench.publish.declared import Json, Picture, Result, Table
from infer_bench.results import Columns, columns_table, sections
from infer_bench.serving import ablation, over_http, policies, streaming
from infer_bench.serving.workloads import workloads_table

_PEERS = "vLLM and llama.cpp in environments of their own"
_AMX = f"{_PEERS}, and a CPU with AMX"
_TWO_REPLICAS = (
    "python -m infer_server --model {checkpoint:llama-135m-8k} --data-parallel-size 2 --speculative-config none "
    "--no-access-log --port {port}"
)
_RANKS_MODEL = "--model {checkpoint:llama-30m} --no-access-log --port {port}"
_TWO_RANKS = f"python -m infer_server --tensor-parallel-size 2 {_RANKS_MODEL}"
_RAY = f"env infer-ray serve {_RANKS_MODEL}"

RESULTS = (
    Result("engine", "infer-bench engine", 1),
    Result("concurrency-smollm-135m", "infer-bench concurrency", 2),
    Result("host-step", "infer-bench host-step", 1),
    Result("kernels-cpu", "infer-bench kernels-cpu", 2),
    Result("kv-cache-int8", "infer-bench kv-cache", 0.5),
    Result("compare-transformers-smollm-135m", "infer-bench transformers", 1),
    Result("structured", "infer-bench structured --model {checkpoint:llama-135m-8k} --rounds 5", 1),
    Result("cpu-steps-llama-135m-8k", "infer-bench cpu-steps --shape llama-135m-8k", 1.5),
    Result(
        "cpu-steps-qwen3-0.6b-8k-quantized",
        "infer-bench cpu-steps --shape qwen3-0.6b-8k --quantization none int8 int4 --rounds 3",
        4,
    ),
    Result("streaming", "infer-bench streaming", 1.5),
    Result("text-side", "infer-bench text-side", 2),
    Result("serving-mixed", "infer-bench serving --workload mixed --scale 0.87 --no-progress", 0.5),
    Result(
        "serving-all",
        "infer-bench serving --workload all --shape llama-30m --scale 0.5 --rate-scale 0.5 --no-progress",
        3,
    ),
    Result(
        "serving-smollm2",
        "infer-bench serving --checkpoint {checkpoint:smollm2-135m-instruct} --documentation --workload all "
        "--rounds 1 --name serving-smollm2 --no-progress",
        4,
    ),
    Result("policies", "infer-bench policies", 6),
    Result("over-http-smollm-135m", "infer-bench over-http", 1.5),
    Result("ablation-cpu", "infer-bench ablation --profile cpu --rounds 3", 14),
    Result("routing-2", "infer-bench routing --replicas 2", 1.5),
    Result("routing-4", "infer-bench routing --replicas 4", 2.5),
    Result(
        "replicas-llama-135m-8k",
        "infer-bench peers --model {checkpoint:llama-135m-8k} --rounds 3 --name replicas-llama-135m-8k "
        f"--peer 'two replicas={_TWO_REPLICAS}'",
        2.5,
    ),
    Result(
        "ranks-llama-30m",
        "infer-bench peers --model {checkpoint:llama-30m} --rounds 3 --name ranks-llama-30m "
        f"--peer 'two ranks={_TWO_RANKS}' --peer 'ray={_RAY}' --peer 'ray with two processors={_RAY} --num-cpus 2'",
        8,
    ),
    Result("peers-llama-135m-8k", elsewhere=_PEERS),
    Result("peers-qwen3-0.6b-8k", elsewhere=_PEERS),
    Result("peers-llama-135m-8k-amx", elsewhere=_AMX),
    Result("peers-qwen3-0.6b-8k-amx", elsewhere=_AMX),
    Result("quantized-peers-qwen3-0.6b-8k", elsewhere=_AMX),
    Result("quantized-peers-qwen3-0.6b-8k-huge-pages", elsewhere=_AMX),
    Result("quantized-peers-qwen3-0.6b-8k-zen4", elsewhere=f"{_PEERS}, and a Zen 4 CPU"),
    Result("batching", elsewhere="the benchmark of its commit: schedulers on a clock of steps, without a model"),
    Result("prompt-cap", elsewhere="the benchmark of its commit: the engine alone, on a clock of CPU time"),
    Result("engine-process", elsewhere="the benchmark of its commit: a server with its core in a thread"),
    Result("soak", elsewhere="an hour by itself: `nox -s soak`"),
)
"""What is measured, in the order in which it runs; those from elsewhere last."""


def rows(name: str, columns: Columns) -> Callable[[Json], str]:
    """Return what shows a list of a result, a row for each of its items."""
    return lambda result: columns_table(columns, result[name])


_turns = partial(Table, rounds=("turns", "*"))
_quantized = partial(Table, render=tables.quantized_race, rounds=("turns", "*"))
_ladder = partial(Table, sources=("ablation-cpu",))
_SMOLLM, _QWEN = "cpu-steps-llama-135m-8k", "cpu-steps-qwen3-0.6b-8k-quantized"
_ZEN, _WITH_AMX = (
    tuple(f"peers-{shape}{suffix}" for shape in ("llama-135m-8k", "qwen3-0.6b-8k")) for suffix in ("", "-amx")
)
TABLES = (
    Table("batching/commit", ("batching",), lambda result: f"`{result['environment']['commit']}`", measured=""),
    Table(
        "concurrency/short",
        ("concurrency-smollm-135m",),
        concurrency.short_table,
        measured="`uv run infer-bench concurrency`",
        rounds=("together",),
    ),
    Table("concurrency", ("concurrency-smollm-135m",), concurrency.rounds_table, rounds=("together",)),
    Table("engine", ("engine",), engine.steps_table),
    Table(
        "host-step",
        ("host-step",),
        lambda result: host_step.time_table(result["commits"][0]["microseconds"]),
        measured="Microseconds, measured",
        rounds=("commits", 0, "rounds"),
    ),
    Table("prompt-cap", ("prompt-cap",), rows("rows", tables.PROMPT_CAP)),
    Table("kv-cache", ("kv-cache-int8",), rows("cases", kv_cache.COLUMNS)),
    Table(
        "transformers",
        ("compare-transformers-smollm-135m",),
        transformers.compared_table,
        measured="transformers {transformers}, measured",
        rounds=("tokens_per_s", "16 at once", "infer"),
    ),
    Table("structured", ("structured",), structured.rates_table, rounds=("first_token_s", "free text")),
    Table("cpu-steps", (_SMOLLM, _QWEN), tables.cpu_steps, measured=""),
    Table("cpu-steps/quantized", (_QWEN,), steps.quantization_table),
    Table("kernels-cpu", ("kernels-cpu",), rows("comparisons", kernels_cpu.COLUMNS), rounds=("comparisons", 0, "ours")),
    Table(
        "streaming",
        ("streaming",),
        lambda result: sections(
            columns_table(streaming.THROUGHPUT, result["throughput"]), columns_table(streaming.DELAYS, result["delays"])
        ),
    ),
    Table("text-side", ("text-side",), tables.text_side, measured=""),
    Table("serving-mixed", ("serving-mixed",), tables.workload_mixed, rounds=("runs", 0, "runs")),
    Table("serving-all", ("serving-all",), workloads_table, rounds=("workloads", "single", "runs")),
    Table("serving-smollm2", ("serving-smollm2",), workloads_table, rounds=("workloads", "single", "runs")),
    Table("policies", ("policies",), policies.policies_table, rounds=("turns", "arrivals", "fcfs")),
    Table("over-http", ("over-http-smollm-135m",), over_http.report, rounds=("rounds",)),
    _ladder(
        "ablation-cpu",
        render=lambda result: sections(ablation.ladder_table(result), ablation.claims_table(result)),
        rounds=("rounds", "beside", "mixed"),
    ),
    _ladder("ablation-cpu/capacity", render=ablation.capacity_table, measured=""),
    _ladder(
        "ablation-cpu/chunks",
        render=lambda result: sections(ablation.caps_table(result), ablation.chunks_table(result)),
        measured="",
    ),
    _ladder("ablation-cpu/runs", render=ablation.latency_table, measured=""),
    Table("engine-process", ("engine-process",), tables.engine_process),
    Table("routing", ("routing-4", "routing-2"), tables.routing_hits, measured=""),
    _turns("replicas", ("replicas-llama-135m-8k",), tables.replicas),
    _turns("ranks", ("ranks-llama-30m",), tables.sides(tables.RANKS)),
    _turns("ranks/ray", ("ranks-llama-30m",), tables.sides(tables.RAY)),
    _turns("peers/135m", _ZEN[:1], tables.race, measured="135m, measured"),
    _turns("peers/0.6b", _ZEN[1:], tables.race, measured="0.6b, measured"),
    Table("peers/times-better", _ZEN, tables.beside_the_best, measured=""),
    _turns("peers/135m-amx", _WITH_AMX[:1], tables.race, measured="135m, measured"),
    _turns("peers/0.6b-amx", _WITH_AMX[1:], tables.race, measured="0.6b, measured"),
    Table("peers/times-better-amx", _WITH_AMX, tables.beside_the_best, measured=""),
    _quantized("quantized-peers/xeon", ("quantized-peers-qwen3-0.6b-8k",)),
    _quantized("quantized-peers/huge-pages", ("quantized-peers-qwen3-0.6b-8k-huge-pages",)),
    _quantized("quantized-peers/zen4", ("quantized-peers-qwen3-0.6b-8k-zen4",)),
    Table("soak", ("soak",), rows("findings", FINDINGS), measured="{minutes:g} minutes"),
)

PICTURES = (
    Picture("batching.png", "batching"),
    Picture("ablation-cpu.png", "ablation-cpu", ablation.draw_ladder),
    Picture("serving-mixed.png", "serving-mixed"),
    Picture("soak.png", "soak", tables.draw_soak),
)

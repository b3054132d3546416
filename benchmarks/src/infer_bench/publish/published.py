"""All that is published. To add a table: its result in `RESULTS`, the table in `TABLES`, and its markers in a page."""

from infer_bench.offline.batching_plot import plot_batching
from infer_bench.publish.declared import Picture, Result, Table
from infer_bench.publish.tables import cpu, offline, peers, replicas, serving, soak
from infer_bench.serving.ablation import draw_ladder

_PEERS = "vLLM and llama.cpp in environments of their own"
_TWO_REPLICAS = (
    "python -m infer_server --model {checkpoint:llama-135m-8k} --data-parallel-size 2 --speculative-config none "
    "--no-access-log --port {port}"
)
_RANKS_MODEL = "--model {checkpoint:llama-30m} --no-access-log --port {port}"
_TWO_RANKS = f"python -m infer_server --tensor-parallel-size 2 {_RANKS_MODEL}"
_RAY = f"env infer-ray serve {_RANKS_MODEL}"
_EXTRA_LOADS = "infer-bench scaling --replicas 16 --max-extra-load 0 1 2 4 8 16 64"

RESULTS = (
    Result(name="batching", command="infer-bench batching", minutes=0.2),
    Result(name="engine", command="infer-bench engine", minutes=1),
    Result(name="concurrency-smollm-135m", command="infer-bench concurrency", minutes=2),
    Result(name="host-step", command="infer-bench host-step", minutes=1),
    Result(name="prompt-cap", command="infer-bench prompt-cap", minutes=2),
    Result(name="prompt-budget", command="infer-bench prompt-budget", minutes=1),
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
    Result(name="scaling", command="infer-bench scaling", minutes=6.5),
    Result(
        name="scaling-starts-together",
        command="infer-bench scaling --replicas 1000 --policy prefix --starts-together --name scaling-starts-together",
        minutes=2,
    ),
    *(
        Result(
            name=f"scaling-extra-load-skew-{skew}",
            command=f"{_EXTRA_LOADS} --rate {rate} --skew {skew} --name scaling-extra-load-skew-{skew}",
            minutes=0.4,
        )
        for skew, rate in ((0, 2.5), (1, 2.5), (2, 6))
    ),
    Result(name="peers-llama-135m-8k", elsewhere=_PEERS),
    Result(name="peers-qwen3-0.6b-8k", elsewhere=_PEERS),
    Result(name="quantized-peers-qwen3-0.6b-8k", elsewhere=f"{_PEERS}, and a CPU with AMX"),
    Result(name="quantized-peers-qwen3-0.6b-8k-huge-pages", elsewhere=f"{_PEERS}, and a CPU with AMX"),
    Result(name="quantized-peers-qwen3-0.6b-8k-zen4", elsewhere=f"{_PEERS}, and a Zen 4 CPU"),
    Result(name="engine-process", elsewhere="the benchmark of its commit: a server with its core in a thread"),
    Result(name="soak", elsewhere="an hour by itself: `nox -s soak`"),
)
"""What is measured, in the order in which it runs; those from elsewhere last."""

_ZEN_RACES = ("peers-llama-135m-8k", "peers-qwen3-0.6b-8k")
_EXTRA = tuple(f"scaling-extra-load-skew-{skew}" for skew in (0, 1, 2))

TABLES = (
    Table(name="batching/commit", sources=("batching",), render=offline.commit),
    Table(name="concurrency/short", sources=("concurrency-smollm-135m",), render=offline.concurrency_short),
    Table(name="concurrency", sources=("concurrency-smollm-135m",), render=offline.concurrency_rounds),
    Table(name="engine", sources=("engine",), render=offline.engine_steps),
    Table(name="host-step", sources=("host-step",), render=offline.host_steps),
    Table(name="prompt-cap", sources=("prompt-cap",), render=offline.prompt_cap),
    Table(name="prompt-budget", sources=("prompt-budget",), render=offline.prompt_budget),
    Table(name="kv-cache", sources=("kv-cache-int8",), render=offline.kv_cache),
    Table(name="transformers", sources=("compare-transformers-smollm-135m",), render=offline.transformers),
    Table(name="structured", sources=("structured",), render=offline.structured),
    Table(
        name="cpu-steps",
        sources=("cpu-steps-llama-135m-8k", "cpu-steps-qwen3-0.6b-8k-quantized"),
        render=cpu.steps,
    ),
    Table(name="cpu-steps/quantized", sources=("cpu-steps-qwen3-0.6b-8k-quantized",), render=cpu.quantized),
    Table(name="kernels-cpu", sources=("kernels-cpu",), render=cpu.kernels),
    Table(name="streaming", sources=("streaming",), render=serving.streaming),
    Table(name="text-side", sources=("text-side",), render=serving.text_side),
    Table(name="serving-mixed", sources=("serving-mixed",), render=serving.workload_mixed),
    Table(name="serving-all", sources=("serving-all",), render=serving.workloads),
    Table(name="serving-smollm2", sources=("serving-smollm2",), render=serving.workloads_real),
    Table(name="policies", sources=("policies",), render=serving.policies),
    Table(name="over-http", sources=("over-http-smollm-135m",), render=serving.over_http),
    Table(name="ablation-cpu", sources=("ablation-cpu",), render=serving.ladder),
    Table(name="ablation-cpu/capacity", sources=("ablation-cpu",), render=serving.ladder_capacity),
    Table(name="ablation-cpu/chunks", sources=("ablation-cpu",), render=serving.ladder_chunks),
    Table(name="ablation-cpu/runs", sources=("ablation-cpu",), render=serving.ladder_runs),
    Table(name="engine-process", sources=("engine-process",), render=serving.engine_process),
    Table(name="routing", sources=("routing-4", "routing-2"), render=replicas.routing_hits),
    Table(name="replicas", sources=("replicas-llama-135m-8k",), render=replicas.replicas),
    Table(name="ranks", sources=("ranks-llama-30m",), render=replicas.ranks),
    Table(name="ranks/ray", sources=("ranks-llama-30m",), render=replicas.ray),
    Table(name="scaling", sources=("scaling",), render=replicas.scaling),
    Table(
        name="scaling/starts-together", sources=("scaling", "scaling-starts-together"), render=replicas.starts_together
    ),
    Table(name="scaling/extra-load", sources=_EXTRA, render=replicas.extra_load),
    Table(name="peers/135m", sources=_ZEN_RACES[:1], render=peers.race_135m),
    Table(name="peers/0.6b", sources=_ZEN_RACES[1:], render=peers.race_06b),
    Table(name="peers/times-better", sources=_ZEN_RACES, render=peers.times_better),
    Table(name="quantized-peers/xeon", sources=("quantized-peers-qwen3-0.6b-8k",), render=peers.quantized_xeon),
    Table(
        name="quantized-peers/huge-pages",
        sources=("quantized-peers-qwen3-0.6b-8k-huge-pages",),
        render=peers.quantized_huge_pages,
    ),
    Table(name="quantized-peers/zen4", sources=("quantized-peers-qwen3-0.6b-8k-zen4",), render=peers.quantized_zen4),
    Table(name="soak", sources=("soak",), render=soak.soak),
)


PICTURES = (
    Picture(name="batching.png", source="batching", draw=plot_batching),
    Picture(name="ablation-cpu.png", source="ablation-cpu", draw=draw_ladder),
    Picture(name="serving-mixed.png", source="serving-mixed"),
    Picture(name="soak.png", source="soak", draw=soak.draw_soak),
)

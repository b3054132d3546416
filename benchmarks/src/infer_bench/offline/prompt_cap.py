"""Cost and gain of the cap on prompt tokens beside decodes: the ladder's workloads on one core, on its CPU time.

    uv run infer-bench prompt-cap
    uv run infer-bench prompt-cap --cap 48 96 2048 --rounds 5

The engine runs in this process with one thread, and requests arrive on a clock of the process's CPU time, so that
waiting for a core changes no number. HTTP is no part of them. Caps are measured in turns, and medians compared.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from infer_bench.client.summary import percentile
from infer_bench.client.workloads import Workload, make_workload
from infer_bench.results import argument_parser, medians, save, table
from infer_bench.shapes import NO_DRAFTS, SHAPES, write_config
from infer_engine.assembly.core import build_core
from infer_engine.core.engine_core import EngineCore
from infer_engine.messages import Submit
from infer_engine.protocol import EngineConfig, SamplingParams

SHAPE = "llama-30m"
LOADS = (("chunked_prefill", 0.5, 0.5), ("chunked_prefill", 0.5, 1.0), ("mixed", 1.0, 1.0))
"""Workload, factor on its lengths, factor on its rate."""
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
Numbers = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every cap on every load, print the medians and save them."""
    parser = argument_parser(__doc__, quick="one round of four requests", rounds=3)
    parser.add_argument("--cap", type=int, nargs="+", default=[48, 2048], help="2048 is none")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rounds, num_requests = (1, 4) if args.quick else (args.rounds, None)
    cores = {cap: build(cap) for cap in args.cap}
    rows = []
    for name, scale, rate_scale in LOADS:
        found: dict[int, list[Numbers]] = {cap: [] for cap in cores}
        for number in range(rounds):
            contents = {"contents": number, "vocab_size": 512, "num_requests": num_requests}
            workload = make_workload(name, scale=scale, rate_scale=rate_scale, **contents)  # type: ignore[arg-type]  # by name
            for cap, core in cores.items():
                found[cap].append(play(core, workload))
        for cap, runs in found.items():
            rows.append({"workload": f"{name} x{scale:g}, rate x{rate_scale:g}", "cap": cap, **medians(runs)})
    print(
        table(
            list(rows[0]), [[each if isinstance(each, str) else f"{each:.4g}" for each in row.values()] for row in rows]
        )
    )
    if not args.quick:
        save("prompt-cap", {"shape": SHAPE, "rows": rows}, args.out)


def build(cap: int) -> EngineCore:
    """Return a core with random weights that computes `cap` prompt tokens beside decodes."""
    config = {
        "load_format": "dummy",
        "device": "cpu",
        "use_prefix_caching": False,
        "kv_cache_memory": "512MiB",
        **NO_DRAFTS,
    }
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_config(SHAPES[SHAPE], Path(folder)))
        sizes = {"max_seq_len": 2048, "prefill_chunk_size": 256, "max_prefill_tokens_beside_decodes": cap}
        core = build_core(EngineConfig(model=model, **config, **sizes)).core  # type: ignore[arg-type]  # plain fields
    play(core, make_workload("mixed", scale=0.1, vocab_size=512, contents=999))
    return core


def play(core: EngineCore, workload: Workload) -> Numbers:
    """Let requests arrive by the time of steps until all have ended; return milliseconds, and tokens per second."""
    requests, now_s, num_arrived, num_tokens = workload.requests, 0.0, 0, 0
    first_s: dict[int, float] = {}
    last_s: dict[int, float] = {}
    gaps_s: list[float] = []
    while num_arrived < len(requests) or core.has_work:
        if not core.has_work:
            now_s = max(now_s, requests[num_arrived].arrival_s)
        while num_arrived < len(requests) and requests[num_arrived].arrival_s <= now_s:
            request = requests[num_arrived]
            prompt, length = request.prompt, request.max_tokens
            submit = Submit(
                request_id=f"{num_arrived}", prompt_token_ids=prompt, max_tokens=length, seed=0, params=GREEDY
            )
            core.handle(submit)
            num_arrived += 1
        began_s = time.process_time()
        result = core.step()
        now_s += time.process_time() - began_s
        for output in result.outputs:
            index = int(output.request_id)
            num_tokens += len(output.token_ids)
            if index in first_s:
                gaps_s.append(now_s - last_s[index])
            else:
                first_s[index] = now_s - requests[index].arrival_s
            last_s[index] = now_s
    ttft_s = list(first_s.values())
    shortest = sorted(first_s, key=lambda index: len(requests[index].prompt))[: max(1, len(requests) // 4)]
    return {
        "TTFT p50, ms": 1e3 * percentile(ttft_s, 50),
        "TTFT p99, ms": 1e3 * percentile(ttft_s, 99),
        "TTFT p50 of the shortest quarter, ms": 1e3 * percentile([first_s[index] for index in shortest], 50),
        "ITL p50, ms": 1e3 * percentile(gaps_s, 50),
        "ITL p99, ms": 1e3 * percentile(gaps_s, 99),
        "tokens/s": num_tokens / now_s,
    }

"""The cost of serving: the workload `single` over HTTP, beside the same request through `LLM.generate`, in turns.

Both have the same model with random weights, the same configuration and as many threads; the server computes in a
process of its own, and its answer is streamed. A request over HTTP is timed from its arrival to its last token, one
through `generate` from the call to its return. Who goes first alternates; each round has a prompt of its own.

    uv run infer-bench over-http
    uv run infer-bench over-http --shape llama-30m --rounds 21
"""

import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from infer_bench.client.load import run_workload
from infer_bench.client.workloads import Workload, make_workload
from infer_bench.results import argument_parser, save, table
from infer_bench.server.launch import serving
from infer_bench.serving.ablation_plan import flags, metric_words
from infer_bench.shapes import NO_DRAFTS, SHAPES, write_config
from infer_engine import LLM, SamplingParams

OPTIONS: dict[str, Any] = {"max_seq_len": 1024, "kv_cache_memory": "512MiB", "seed": 0, **NO_DRAFTS}

Rounds = list[dict[str, float]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one round at a quarter of the lengths", rounds=9, shape="smollm-135m")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompt and answer")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="that each side computes with")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending our server
    scale, rounds = (args.scale / 4, 1) if args.quick else (args.scale, args.rounds)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # the server inherits it
    torch.set_num_threads(args.threads)
    found = measure(args.shape, scale=scale, rounds=rounds)
    result = {"shape": args.shape, "scale": scale, "threads": args.threads, **summary_of(found), "rounds": found}
    print(f"\n{report(result)}")
    if not args.quick:
        save(f"over-http-{args.shape}", result, args.out)


def measure(shape: str, *, scale: float, rounds: int) -> Rounds:
    """Return what each round took on both sides, in seconds, after one that warms up."""
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(str(write_config(shape, Path(folder))), load_format="dummy", **OPTIONS)
    found: Rounds = []
    with serving(flags(OPTIONS), shape=shape) as server:
        for number in range(rounds + 1):
            workload = make_workload("single", scale=scale, contents=number, vocab_size=SHAPES[shape]["vocab_size"])
            if number % 2:
                row = ask_server(server.url, workload) | ask_llm(llm, workload)
            else:
                row = ask_llm(llm, workload) | ask_server(server.url, workload)
            found.append(row)
    return found[1:]


def ask_server(url: str, workload: Workload) -> dict[str, float]:
    """Return the seconds from a request's arrival to its first and to its last token.

    Raises:
        RuntimeError: it failed.
    """
    [result] = asyncio.run(run_workload(url, workload, progress=False))
    if result.error or result.num_tokens != workload.requests[0].max_tokens:
        raise RuntimeError(f"the server gave {result.num_tokens} tokens: {result.error}")
    return {
        "http_s": result.token_times_s[-1] - result.arrival_s,
        "http_ttft_s": result.token_times_s[0] - result.arrival_s,
        "num_tokens": result.num_tokens,
    }


def ask_llm(llm: LLM, workload: Workload) -> dict[str, float]:
    """Return the seconds that `generate` takes."""
    [request] = workload.requests
    params = SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
    began_s = time.perf_counter()
    llm.generate([request.prompt], params, use_tqdm=False)
    return {"direct_s": time.perf_counter() - began_s}


def summary_of(rounds: Rounds) -> dict[str, Any]:
    """Return medians, the median of the rounds' ratios with the least and the greatest, and the cost of a token."""
    ratios = [row["http_s"] / row["direct_s"] for row in rounds]
    medians = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    extra_s = statistics.median((row["http_s"] - row["direct_s"]) / row["num_tokens"] for row in rounds)
    ratio = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return {"medians": medians, "ratio": ratio, "extra_s_per_token": extra_s}


def report(result: Mapping[str, Any]) -> str:
    """Return a table of a result, as its JSON file has it."""
    medians, ratio = result["medians"], result["ratio"]
    spread = f"{ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})"
    rows = [
        ["`LLM.generate`", metric_words("_s", medians["direct_s"]), ""],
        ["over HTTP, streamed", metric_words("_s", medians["http_s"]), spread],
        ["more for each token", metric_words("_s", result["extra_s_per_token"]), ""],
    ]
    head = f"`single` x{result['scale']:g}, {result['shape']}, {result['threads']} threads"
    return table([head, "median", "ratio, median (least-greatest)"], rows)

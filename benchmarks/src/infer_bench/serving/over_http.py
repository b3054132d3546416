"""The cost of serving: the workload `single` over HTTP, beside the same request through `LLM.generate`, in turns.

Both have the same model with random weights, the same configuration and as many threads; the server computes in a
process of its own, and its answer is streamed. A request over HTTP is timed from its arrival to its last token, one
through `generate` from the call to its return. Who goes first alternates; each round has a prompt of its own.

    uv run infer-bench over-http
    uv run infer-bench over-http --shape llama-30m --rounds 21
"""

import asyncio
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from infer_bench.client.load import run_workload, whole
from infer_bench.client.summary import metric_words
from infer_bench.client.workloads import Workload, make_workload
from infer_bench.results import argument_parser, in_turns, medians, save, seconds_of, table
from infer_bench.server.launch import flags_of, serving
from infer_bench.shapes import NO_DRAFTS, SHAPES, write_config
from infer_engine import LLM, SamplingParams

OPTIONS: dict[str, Any] = {"max_seq_len": 1024, "kv_cache_memory": "512MiB", "seed": 0, **NO_DRAFTS}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one round at a quarter of the lengths", rounds=9, shape="smollm-135m")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompt and answer")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="that each side computes with")
    args = parser.parse_args(arguments)
    scale, rounds = (args.scale / 4, 1) if args.quick else (args.scale, args.rounds)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # the server inherits it
    torch.set_num_threads(args.threads)
    found = measure(args.shape, scale=scale, rounds=rounds)
    result = {"shape": args.shape, "scale": scale, "threads": args.threads, **summary_of(found), "rounds": found}
    print(f"\n{report(result)}")
    save(f"over-http-{args.shape}", result, args)


def measure(shape: str, *, scale: float, rounds: int) -> list[dict[str, float]]:
    """Return what each round took on both sides, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(str(write_config(shape, Path(folder))), load_format="dummy", **OPTIONS)

    def workload(number: int) -> Workload:
        return make_workload("single", scale=scale, contents=number, vocab_size=SHAPES[shape]["vocab_size"])

    with serving(flags_of(OPTIONS), shape=shape) as server:
        sides = {
            "llm": lambda number: ask_llm(llm, workload(number)),
            "server": lambda number: ask_server(server.url, workload(number)),
        }
        found = in_turns(sides, rounds=rounds)
    return [own | other for own, other in zip(*found.values(), strict=True)]


def ask_server(url: str, workload: Workload) -> dict[str, float]:
    """Return the seconds from a request's arrival to its first and to its last token, and how many there are."""
    [result] = whole(asyncio.run(run_workload(url, workload, progress=False)), workload)
    first_s, last_s = (result.token_times_s[place] - result.arrival_s for place in (0, -1))
    return {"http_s": last_s, "http_ttft_s": first_s, "num_tokens": result.num_tokens}


def ask_llm(llm: LLM, workload: Workload) -> dict[str, float]:
    """Return the seconds that `generate` takes."""
    [request] = workload.requests
    params = SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
    return {"direct_s": seconds_of(lambda: llm.generate([request.prompt], params, use_tqdm=False))}


def summary_of(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return medians, the median of the rounds' ratios with the least and the greatest, and the cost of a token."""
    ratios = [row["http_s"] / row["direct_s"] for row in rounds]
    extra_s = statistics.median((row["http_s"] - row["direct_s"]) / row["num_tokens"] for row in rounds)
    ratio = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return {"medians": medians(rounds), "ratio": ratio, "extra_s_per_token": extra_s}


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

"""Gain and cost of each scheduling policy, beside first come, first served, on two loads.

    uv run infer-bench policies
    uv run infer-bench policies --rounds 1

*Arrivals*: prompts of the workload `chunked_prefill` arrive faster than 8 requests at once are done; every fourth is
urgent. *Small steps*: the burst of `paged_attention`, 32 requests at once, where a step computes 16 tokens. The
policies take turns, each with a server of its own in every round. Judged is what `priority` is for, and that no policy
costs much throughput.
"""

import asyncio
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any

from infer_bench.client.load import RequestResult, run_workload, whole
from infer_bench.client.summary import metric_of, metric_words, summarize, ttft_s
from infer_bench.client.workloads import Workload
from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, in_turns, medians, save, table
from infer_bench.server.launch import flags_of, serving
from infer_bench.serving.ladder import CPU, plan, server_options
from infer_engine.scheduling import POLICIES

SHAPE, URGENT, EVERY = CPU.shapes[0], -10, 4
"""The model's shape, the priority of urgent requests, and one of how many is urgent."""
FIRST = "fcfs"
LOADS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "arrivals": ("chunked_prefill", {"max_batch_size": 8}),
    "small steps": ("paged_attention", {"max_num_batched_tokens": 16, "prefill_chunk_size": 16}),
}
"""By name: the workload, and what the server has other than the ladder's step `chunked`."""
MOST_OF_URGENT, LEAST_SPEED = 0.5, 0.85
"""Chosen: what `priority` leaves of urgent requests' TTFT at most, and what any policy keeps of the throughput."""
METRICS = {
    "tokens/s": "output_tokens_per_s",
    "TTFT P50": "ttft_p50_s",
    "of urgent ones": "urgent_ttft_p50_s",
    "TTFT P99": "ttft_p99_s",
    "ITL P50": "itl_p50_s",
    "ITL P99": "itl_p99_s",
    "longest gap": "longest_gap_s",
}
"""Columns of the table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and save the result; return 1 where a limit is missed."""
    parser = argument_parser(__doc__, quick="one round of four arrivals; nothing is judged", rounds=3)
    args = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = str(CPU.num_threads)  # servers inherit it; this process computes nothing
    loads, rounds, num_requests = (["arrivals"], 1, EVERY) if args.quick else (list(LOADS), args.rounds, None)
    turns = {
        load: in_turns(
            {policy: partial(take_turn, load, policy, num_requests) for policy in POLICIES}, rounds=rounds, warm_up=0
        )
        for load in loads
    }
    result = {"shape": SHAPE, "turns": turns}
    print(f"\n{policies_table(result)}")
    save("policies", result, args)
    return 0 if args.quick else judge(limits_of(result))


def with_urgent(workload: Workload) -> Workload:
    """Return the same requests, every `EVERY`th of them urgent."""
    requests = (
        replace(request, priority=URGENT if number % EVERY == EVERY - 1 else 0)
        for number, request in enumerate(workload.requests)
    )
    return replace(workload, requests=tuple(requests))


def take_turn(load: str, policy: str, num_requests: int | None, number: int) -> dict[str, float]:
    """Ask a server with a policy; return its metrics in a round."""
    name, options = LOADS[load]
    workload = with_urgent(plan(CPU, SHAPE, name, contents=number, num_requests=num_requests))
    warm_up = replace(plan(CPU, SHAPE, "mixed", contents=10_000, num_requests=2), name="warm-up")
    options = server_options(CPU, SHAPE)["chunked"] | options | {"scheduler_policy": policy}
    with serving(flags_of(options), shape=SHAPE) as server:
        asyncio.run(run_workload(server.url, warm_up, progress=False))
        results = whole(asyncio.run(run_workload(server.url, workload)), workload)
    return metrics_of(results, compress(results, (request.priority for request in workload.requests)))


def metrics_of(results: Sequence[RequestResult], urgent: Iterable[RequestResult]) -> dict[str, float]:
    """Return the numbers of one run."""
    summary = summarize(results)
    own = {"urgent_ttft_p50_s": statistics.median(map(ttft_s, urgent)), "longest_gap_s": summary["itl_s"]["max"]}
    return {metric: own[metric] if metric in own else metric_of(summary, metric) for metric in METRICS.values()}


def policies_table(result: Mapping[str, Any]) -> str:
    """Return a row for each policy on each load: medians over the rounds."""
    rows = [
        [load, f"`{policy}`", *(metric_words(metric, medians(rounds)[metric]) for metric in METRICS.values())]
        for load, policies in result["turns"].items()
        for policy, rounds in policies.items()
    ]
    return table(["load", "policy", *METRICS], rows)


def limits_of(result: Mapping[str, Any]) -> list[Limit]:
    """Return what is judged, each as a share of the same number under `fcfs`."""
    limits = []
    for load, policies in result["turns"].items():
        found = {policy: medians(rounds) for policy, rounds in policies.items()}
        for policy in found.keys() - {FIRST}:
            speed = found[policy]["output_tokens_per_s"] / found[FIRST]["output_tokens_per_s"]
            limits.append(Limit(what=f"tokens/s of `{policy}` on {load}", value=speed, least=LEAST_SPEED))
        urgent = found["priority"]["urgent_ttft_p50_s"] / found[FIRST]["urgent_ttft_p50_s"]
        limits.append(Limit(what=f"TTFT of urgent requests on {load}", value=urgent, most=MOST_OF_URGENT))
    return limits

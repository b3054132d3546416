"""The worth of routing by prefix: a server with replicas, once with each policy, on prompts that share prefixes.

    uv run infer-bench routing                      # the demo model, 4 replicas
    uv run infer-bench routing --replicas 2 --shape smollm-135m

Groups of prompts have a long beginning in common, and come in a random order: the same for every policy. The caches
of all replicas together have room for all beginnings, that of one replica has not. Reported for each policy: the share
of prompt tokens that were found in a cache, the median time to the first token, and requests per second. The policies
take turns, each with a server of its own in every round.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import get_args

from infer_bench.client.load import run_workload, whole
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.results import argument_parser, in_turns, medians, save, table
from infer_bench.server.launch import flags_of, serving
from infer_bench.shapes import SHAPES
from infer_engine.protocol.config import RoutingPolicy

TOKEN_IDS = range(3, 500)  # every vocabulary has these
BLOCK_SIZE, SHARED_TOKENS, OWN_TOKENS, NEW_TOKENS = 32, 256, 32, 8
GROUP_SIZE, GROUPS_PER_REPLICA, OPEN_PER_REPLICA = 8, 8, 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one round of two replicas and few prompts", rounds=3)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="with random weights; left out: the demo model")
    args = parser.parse_args(arguments)
    num_replicas, rounds, group_size = (2, 1, 3) if args.quick else (args.replicas, args.rounds, GROUP_SIZE)

    def turn(policy: str, number: int) -> dict[str, float]:
        workload = make_workload(num_replicas * GROUPS_PER_REPLICA, group_size, seed=number)
        return take_turn(workload, policy, num_replicas=num_replicas, shape=args.shape)

    turns = in_turns({policy: partial(turn, policy) for policy in get_args(RoutingPolicy)}, rounds=rounds, warm_up=0)
    found = {policy: medians(each) for policy, each in turns.items()}
    base = found["random"]["prefix hits"]
    rows = [
        [policy, *(f"{value:.3g}" for value in each.values()), f"{each['prefix hits'] / base if base else 0.0:.2f}"]
        for policy, each in found.items()
    ]
    print(f"\n{table(['policy', *found['random'], 'hits beside random'], rows)}")
    save(f"routing-{num_replicas}", {"replicas": num_replicas, "shape": args.shape or "demo", "turns": turns}, args)


def make_workload(num_groups: int, group_size: int, *, seed: int) -> Workload:
    """Return prompts of groups, each with a beginning of its own, in a random order."""
    draw = Random(seed)  # noqa: S311 - no secret

    def tokens(count: int) -> list[int]:
        return draw.choices(TOKEN_IDS, k=count)

    prompts = [
        begin + tokens(OWN_TOKENS) for begin in map(tokens, [SHARED_TOKENS] * num_groups) for _ in range(group_size)
    ]
    draw.shuffle(prompts)
    requests = tuple(PlannedRequest(arrival_s=0.0, prompt=prompt, max_tokens=NEW_TOKENS) for prompt in prompts)
    return Workload(name="groups of prompts", requests=requests, is_closed_loop=True)


def take_turn(workload: Workload, policy: str, *, num_replicas: int, shape: str | None) -> dict[str, float]:
    """Ask a server with this policy; return its numbers."""
    running = OPEN_PER_REPLICA * -(-(SHARED_TOKENS + OWN_TOKENS + NEW_TOKENS) // BLOCK_SIZE)
    options = {
        "data_parallel_size": num_replicas,
        "routing_policy": policy,
        "block_size": BLOCK_SIZE,
        "num_kv_blocks": GROUPS_PER_REPLICA * SHARED_TOKENS // BLOCK_SIZE + 2 * running,
        "max_seq_len": 512,
    }
    with serving(flags_of(options), shape=shape) as server:
        asked = run_workload(server.url, workload, max_concurrency=OPEN_PER_REPLICA * num_replicas)
        summary = summarize(whole(asyncio.run(asked), workload))
    return {
        "prefix hits": summary["num_cached_tokens"] / summary["num_prompt_tokens"],
        "first token, ms": 1e3 * summary["ttft_s"]["p50"],
        "requests/s": summary["requests_per_s"],
    }

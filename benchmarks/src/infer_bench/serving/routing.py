"""The worth of routing by prefix: a server with replicas, once with each policy, on prompts that share prefixes.

    uv run infer-bench routing                      # the demo model, 4 replicas
    uv run infer-bench routing --replicas 2 --shape smollm-135m

Groups of prompts have a long beginning in common, and come in a random order: the same for every policy. The caches
of all replicas together have room for all beginnings, that of one replica has not. Reported for each policy: the share
of prompt tokens that were found in a cache, the median time to the first token, and requests per second. The policies
take turns, each with a server of its own in every round.
"""

import asyncio
import statistics
from collections.abc import Sequence
from random import Random
from typing import Any, get_args

from infer_bench.client.load import RequestResult, run_workload
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.results import argument_parser, medians, save, table
from infer_bench.server.launch import serving
from infer_bench.shapes import SHAPES
from infer_engine.protocol.config import RoutingPolicy

POLICIES: tuple[str, ...] = get_args(RoutingPolicy)
TOKEN_IDS = range(3, 500)  # every vocabulary has these
BLOCK_SIZE = 32
SHARED_TOKENS, OWN_TOKENS, NEW_TOKENS = 256, 32, 8
GROUP_SIZE = 8
GROUPS_PER_REPLICA = 8
OPEN_PER_REPLICA = 4

Turn = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one round of two replicas and few prompts; result not saved", rounds=3)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="with random weights; left out: the demo model")
    args = parser.parse_args(arguments)
    num_replicas, rounds = (2, 1) if args.quick else (args.replicas, args.rounds)
    group_size = 3 if args.quick else GROUP_SIZE
    turns: dict[str, list[Turn]] = {policy: [] for policy in POLICIES}
    for number in range(rounds):
        workload = make_workload(num_replicas * GROUPS_PER_REPLICA, group_size, seed=number)
        for policy in POLICIES:
            turns[policy].append(take_turn(workload, policy, num_replicas=num_replicas, shape=args.shape))
    print(f"\n{table(*turn_table(turns))}")
    if not args.quick:
        what = {"replicas": num_replicas, "shape": args.shape or "demo", "turns": turns}
        save(f"routing-{num_replicas}", what, args.out)


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


def take_turn(workload: Workload, policy: str, *, num_replicas: int, shape: str | None) -> Turn:
    """Ask a server with this policy; return its numbers.

    Raises:
        RuntimeError: a request failed.
    """
    running = OPEN_PER_REPLICA * -(-(SHARED_TOKENS + OWN_TOKENS + NEW_TOKENS) // BLOCK_SIZE)
    num_blocks = GROUPS_PER_REPLICA * SHARED_TOKENS // BLOCK_SIZE + 2 * running
    flags = {
        "--data-parallel-size": num_replicas,
        "--routing-policy": policy,
        "--block-size": BLOCK_SIZE,
        "--num-kv-blocks": num_blocks,
        "--max-seq-len": 512,
    }
    with serving([str(word) for flag in flags.items() for word in flag], shape=shape) as server:
        results = asyncio.run(run_workload(server.url, workload, max_concurrency=OPEN_PER_REPLICA * num_replicas))
    failed = [result.error for result in results if result.error]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first one so: {failed[0]}")
    return {
        "prefix hits": sum(each.num_cached_tokens for each in results)
        / sum(each.num_prompt_tokens for each in results),
        "first token, ms": 1e3 * statistics.median(map(first_token_s, results)),
        "requests/s": len(results) / max(each.ended_s for each in results),
    }


def first_token_s(result: RequestResult) -> float:
    """Return how long a request waited for its first token."""
    return result.token_times_s[0] - result.sent_s


def turn_table(turns: dict[str, list[Turn]]) -> tuple[list[str], list[list[Any]]]:
    """Return the head and the rows of a table: medians over the rounds, and prefix hits beside those at random."""
    names = list(turns[POLICIES[0]][0])
    found = {policy: medians(rounds) for policy, rounds in turns.items()}
    base = found["random"]["prefix hits"]
    rows = [
        [policy, *(f"{each[name]:.3g}" for name in names), f"{each['prefix hits'] / base if base else 0.0:.2f}"]
        for policy, each in found.items()
    ]
    return ["policy", *names, "hits beside random"], rows

"""Throughput, latency and prefix hits of 1 to 1,000 replicas, simulated, by routing policy and number of ingresses.

    uv run infer-bench scaling
    uv run infer-bench scaling --replicas 1000 --ingresses 32 --rate 2

The router, the scheduler and the KV cache are those that serve; only time is simulated (SimPy). A step takes what one
takes on two cores with 135 million parameters (`cpu-steps-llama-135m-8k.json`). An ingress has one processor, on
which a token takes what it takes our server (`text-side.json`). Requests come as a Poisson process whose rate grows
with the replicas; each has a beginning of 512 tokens that it shares with those of its group, and 64 tokens of its
own. There are 8 groups for each replica. The requests of a group come through one ingress (consistent hashing); an
ingress knows what it has sent, and nothing of the others.
"""

import math
import statistics
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any, get_args

import simpy

from infer_bench.client.summary import percentile
from infer_bench.results import argument_parser, save, table
from infer_bench.scaling.replica import BLOCK_SIZE, SimulatedReplica, StepTimes
from infer_engine import SamplingParams
from infer_engine.messages import StepResult, Submit
from infer_engine.protocol.config import RoutingPolicy
from infer_engine.replicas.routing import MAX_EXTRA_LOAD, Router

# 8.8 ms with one sequence, 18.9 ms with 16, 871 ms for a prompt of 1024 tokens.
TIMES = StepTimes(base_s=8.1e-3, decode_s=0.67e-3, prompt_token_s=0.85e-3)
INGRESS_TOKEN_S = 46e-6
SHARED_TOKENS, OWN_TOKENS, NEW_TOKENS = 512, 64, 64
GROUPS_PER_REPLICA = 8
CACHE_TOKENS = 16_384
MAX_BATCH_SIZE = 32
MAX_WITH_ONE_INGRESS = 500
"""Replicas up to which the table also has a row with one ingress, which shows what it cannot do."""
POLICIES: tuple[RoutingPolicy, ...] = get_args(RoutingPolicy)
WARM_UP_S, MEASURED_S = 8.0, 16.0

_PARAMS = SamplingParams(temperature=0, ignore_eos=True)


@dataclass(slots=True)
class _Asked:
    arrived_s: float
    ingress: int
    replica: int
    first_s: float | None = None
    num_cached: int = 0


@dataclass(slots=True)
class _Measured:
    """What came after the warm-up."""

    num_tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)


class Simulation:
    """Replicas behind ingresses, on a clock of their own."""

    def __init__(
        self,
        num_replicas: int,
        *,
        policy: RoutingPolicy,
        num_ingresses: int,
        rate: float,
        skew: float = 0.0,
        max_extra_load: int = MAX_EXTRA_LOAD,
        starts_together: bool = False,
        seed: int = 0,
    ) -> None:
        """Make replicas, ingresses and the requests to come.

        Args:
            num_replicas: how many there are.
            policy: how their requests are routed.
            num_ingresses: processors that text goes through.
            rate: requests per second for each replica.
            skew: how much more popular some groups are: the k-th has a weight of k to the power of `-skew`.
            max_extra_load: limit of the `prefix` policy.
            starts_together: whether all ingresses begin with the same replica.
            seed: seed of the arrivals.
        """
        self._world = simpy.Environment()
        self._draw = Random(seed)  # noqa: S311 - no secret
        self._rate = rate * num_replicas
        weights = [(rank + 1) ** -skew for rank in range(GROUPS_PER_REPLICA * num_replicas)]
        self._groups, self._cum_weights = range(len(weights)), list(accumulate(weights))
        self._ingresses = [simpy.Resource(self._world) for _ in range(num_ingresses)]
        self._routers = [
            Router(
                policy=policy,
                cache_tokens=CACHE_TOKENS,
                max_extra_load=max_extra_load,
                first=0 if starts_together else index * num_replicas // num_ingresses,
                draw=Random(seed + index),  # noqa: S311 - as above
            )
            for index in range(num_ingresses)
        ]
        self._loads = [dict.fromkeys(range(num_replicas), 0) for _ in range(num_ingresses)]
        self._asked: dict[str, _Asked] = {}
        self._measured = _Measured()
        self._busy_s = 0.0
        self._replicas = [
            SimulatedReplica(
                self._world,
                times=TIMES,
                num_blocks=CACHE_TOKENS // BLOCK_SIZE,
                max_batch_size=MAX_BATCH_SIZE,
                deliver=self._deliver,
            )
            for _ in range(num_replicas)
        ]
        self._world.process(self._arrive())

    def run(self) -> dict[str, float]:
        """Run to the end; return what was measured."""
        began_s = time.perf_counter()
        self._world.run(until=WARM_UP_S + MEASURED_S)
        found = self._measured
        return {
            "tokens/s": found.num_tokens / MEASURED_S,
            "TTFT p50, ms": 1e3 * percentile(found.first_token_s, 50),
            "TTFT p99, ms": 1e3 * percentile(found.first_token_s, 99),
            "prefix hits": statistics.fmean(found.hits) if found.hits else 0.0,
            "ingress busy": self._busy_s / MEASURED_S / len(self._ingresses),
            "simulated in, s": time.perf_counter() - began_s,
        }

    def _arrive(self) -> Generator[simpy.Event, None, None]:
        number = 0
        while True:
            yield self._world.timeout(self._draw.expovariate(self._rate))
            [group] = self._draw.choices(self._groups, cum_weights=self._cum_weights)
            prompt = [group] * SHARED_TOKENS + [number] * OWN_TOKENS
            self._ask(f"r{number}", prompt, ingress=group % len(self._ingresses))
            number += 1

    def _ask(self, request_id: str, prompt: list[int], *, ingress: int) -> None:
        loads = self._loads[ingress]
        replica = self._routers[ingress].choose(prompt, salt=None, loads=loads)
        loads[replica] += 1
        self._asked[request_id] = _Asked(arrived_s=self._world.now, ingress=ingress, replica=replica)
        self._replicas[replica].submit(
            Submit(request_id=request_id, prompt_token_ids=prompt, max_tokens=NEW_TOKENS, seed=0, params=_PARAMS)
        )

    def _deliver(self, result: StepResult) -> None:
        for output in result.outputs:
            self._world.process(
                self._send(output.request_id, output.num_cached_tokens, output.finish_reason is not None)
            )

    def _send(self, request_id: str, num_cached: int, is_last: bool) -> Generator[simpy.Event, None, None]:  # noqa: FBT001 - SimPy calls it
        """Pass one token through the processor of its ingress."""
        asked = self._asked[request_id]
        with self._ingresses[asked.ingress].request() as turn:
            yield turn
            yield self._world.timeout(INGRESS_TOKEN_S)
        is_measured = self._world.now > WARM_UP_S
        self._busy_s += INGRESS_TOKEN_S if is_measured else 0.0
        self._measured.num_tokens += is_measured
        if asked.first_s is None:
            asked.first_s = self._world.now
            if is_measured:
                self._measured.first_token_s.append(asked.first_s - asked.arrived_s)
                self._measured.hits.append(num_cached / (SHARED_TOKENS + OWN_TOKENS))
        if is_last:
            self._loads[asked.ingress][asked.replica] -= 1
            del self._asked[request_id]


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one and four replicas; result not saved")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1000])
    parser.add_argument("--ingresses", type=int, help="left out: one, and then as many as half a processor each needs")
    parser.add_argument("--rate", type=float, default=1.5, help="requests per second for each replica")
    parser.add_argument("--skew", type=float, default=0.0, help="of the popularity of groups; 0: all are equal")
    parser.add_argument(
        "--max-extra-load", type=int, nargs="+", default=[MAX_EXTRA_LOAD], help="of the policy `prefix`, one or more"
    )
    parser.add_argument(
        "--starts-together", action="store_true", help="all ingresses begin with the same replica: what that costs"
    )
    parser.add_argument("--policy", choices=POLICIES, nargs="+", default=POLICIES, help="only these")
    parser.add_argument("--name", default="scaling", help="of the result, without `.json`")
    args = parser.parse_args(arguments)
    numbers = [1, 4] if args.quick else args.replicas
    rows: list[dict[str, Any]] = []
    for num_replicas in numbers:
        tokens_per_s = num_replicas * args.rate * NEW_TOKENS
        enough = args.ingresses or math.ceil(2 * tokens_per_s * INGRESS_TOKEN_S)
        plans: list[tuple[RoutingPolicy, int, int]] = [("prefix", enough, load) for load in args.max_extra_load]
        if len(plans) == 1:
            plans += [("least_loaded", enough, 0), ("random", enough, 0)]
        if enough > 1 and num_replicas < MAX_WITH_ONE_INGRESS and args.ingresses is None:
            plans.append(("prefix", 1, MAX_EXTRA_LOAD))
        for policy, num_ingresses, load in (each for each in plans if each[0] in args.policy):
            simulation = Simulation(
                num_replicas,
                policy=policy,
                num_ingresses=num_ingresses,
                rate=args.rate,
                skew=args.skew,
                max_extra_load=load,
                starts_together=args.starts_together,
            )
            name = f"{policy}, {load}" if len(args.max_extra_load) > 1 else policy
            rows.append({"replicas": num_replicas, "ingresses": num_ingresses, "policy": name, **simulation.run()})
            print(rows[-1], file=sys.stderr, flush=True)
    print(f"\n{table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])}")
    if not args.quick:
        plan = {"rate": args.rate, "skew": args.skew, "starts_together": args.starts_together}
        save(args.name, {**plan, "rows": rows}, args.out)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return f"{value}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"

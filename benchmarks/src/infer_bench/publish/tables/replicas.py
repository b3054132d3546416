"""Tables of several copies or ranks of a model, measured beside one."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infer_bench.publish.declared import Json
from infer_bench.publish.tables.words import number
from infer_bench.results import table

BATCH, GAP, STREAM, PREFILL = "W, tokens/s", "W, ITL p99, ms", "one stream, tokens/s", "prefill, ms"
START, MEMORY = "start, s", "idle memory over the weights, GB"


def replicas(result: Json) -> str:
    """Return one core with two threads beside two replicas."""
    one, two = (result["medians"][side] for side in ("infer", "two replicas"))
    times = f" ({two[BATCH] / one[BATCH]:.2f} times)"
    rows = [
        ["16 requests at once, tokens/s", number(one[BATCH]), f"{number(two[BATCH])}{times}"],
        ["their time between tokens, p99", f"{number(one[GAP])} ms", f"{number(two[GAP])} ms"],
        ["one stream, tokens/s", number(one[STREAM]), number(two[STREAM])],
        ["a prompt of 1024 tokens", f"{number(one[PREFILL])} ms", f"{number(two[PREFILL])} ms"],
        ["memory over the weights", f"{one[MEMORY]:.2f} GB", f"{two[MEMORY]:.2f} GB, and the weights twice"],
    ]
    return table(["", "one core, two threads", "two replicas, a processor each"], rows)


RANKS = {"infer": "one process, two threads", "two ranks": "two ranks, a processor each"}
RAY = {"infer": "`infer-server`", "ray": "`infer-ray serve`", "ray with two processors": "with `--num-cpus 2`"}


def sides(names: Mapping[str, str]) -> Callable[[Json], str]:
    """Return a table of servers beside each other: a column for each of `names`, side by heading."""

    def render(result: Json) -> str:
        found = [result["medians"][side] for side in names]
        rows = [
            ["16 requests at once, tokens/s", *(number(each[BATCH]) for each in found)],
            ["one stream, tokens/s", *(number(each[STREAM]) for each in found)],
            ["a prompt of 1024 tokens", *(f"{number(each[PREFILL])} ms" for each in found)],
            ["from the command to `/health`", *(f"{each[START]:.1f} s" for each in found)],
        ]
        return table(["", *names.values()], rows)

    return render


def routing_hits(*results: Json) -> str:
    """Return the shares of prompt tokens that servers found, by their number of replicas."""
    found = []
    for result in results:
        by_prefix, at_random = (_hits(result["turns"][policy]) for policy in ("prefix", "random"))
        found.append(
            f"with {result['replicas']} of them {by_prefix:.0%} of the prompt tokens are found instead of "
            f"{at_random:.0%} at random"
        )
    return ", ".join(found)


def _hits(turns: Sequence[dict[str, Any]]) -> float:
    return float(statistics.median(turn["prefix hits"] for turn in turns))

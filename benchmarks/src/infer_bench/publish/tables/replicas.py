"""Tables of several copies or ranks of a model: measured beside one, and simulated."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from infer_bench.publish.declared import Json
from infer_bench.publish.tables.words import measured_on, number, paragraph, sections
from infer_bench.results import table

BATCH, GAP, STREAM, PREFILL = "W, tokens/s", "W, ITL p99, ms", "one stream, tokens/s", "prefill, ms"
START, MEMORY = "start, s", "idle memory over the weights, GB"


def replicas(result: Json) -> str:
    """Return one core with two threads beside two replicas."""
    one, two = (result["medians"][side] for side in ("infer", "two replicas"))
    rows = [
        [
            "16 requests at once, tokens/s",
            number(one[BATCH]),
            f"{number(two[BATCH])} ({two[BATCH] / one[BATCH]:.2f} times)",
        ],
        ["their time between tokens, p99", f"{number(one[GAP])} ms", f"{number(two[GAP])} ms"],
        ["one stream, tokens/s", number(one[STREAM]), number(two[STREAM])],
        ["a prompt of 1024 tokens", f"{number(one[PREFILL])} ms", f"{number(two[PREFILL])} ms"],
        ["memory over the weights", f"{one[MEMORY]:.2f} GB", f"{two[MEMORY]:.2f} GB, and the weights twice"],
    ]
    return sections(
        measured_on("replicas-llama-135m-8k", result, rounds=len(result["turns"]["infer"])),
        table(["", "one core, two threads", "two replicas, a processor each"], rows),
    )


def ranks(result: Json) -> str:
    """Return one process beside two ranks."""
    return _sides(result, {"infer": "one process, two threads", "two ranks": "two ranks, a processor each"})


def ray(result: Json) -> str:
    """Return our server beside one behind Ray."""
    return _sides(
        result,
        {"infer": "`infer-server`", "ray": "`infer-ray serve`", "ray with two processors": "with `--num-cpus 2`"},
    )


def _sides(result: Json, names: Mapping[str, str]) -> str:
    found = [result["medians"][side] for side in names]
    rows = [
        ["16 requests at once, tokens/s", *(number(each[BATCH]) for each in found)],
        ["one stream, tokens/s", *(number(each[STREAM]) for each in found)],
        ["a prompt of 1024 tokens", *(f"{number(each[PREFILL])} ms" for each in found)],
        ["from the command to `/health`", *(f"{each[START]:.1f} s" for each in found)],
    ]
    rounds = len(result["turns"]["infer"])
    return sections(measured_on("ranks-llama-30m", result, rounds=rounds), table(["", *names.values()], rows))


def scaling(result: Json) -> str:
    """Return the simulated replicas by policy."""
    head = [
        "replicas",
        "ingresses",
        "policy",
        "tokens/s",
        "TTFT p50, ms",
        "TTFT p99, ms",
        "prefix hits",
        "ingress busy",
    ]
    rows = [
        [
            f"{row['replicas']:,}",
            row["ingresses"],
            f"`{row['policy']}`",
            *(f"{row[name]:,.0f}" for name in head[3:6]),
            f"{row['prefix hits']:.3f}",
            f"{row['ingress busy']:.2f}",
        ]
        for row in result["rows"]
    ]
    return sections(paragraph(_simulated("scaling", result)), table(head, rows))


def starts_together(result: Json, together: Json) -> str:
    """Return the p99 of the time to the first token where all ingresses begin with the same replica."""
    count = together["rows"][0]["replicas"]

    def p99(found: Json) -> float:
        rows = (row for row in found["rows"] if row["replicas"] == count and row["policy"] == "prefix")
        return float(next(rows)["TTFT p99, ms"])

    return f"{p99(together):,.0f} ms instead of {p99(result):,.0f} ms"


def extra_load(*results: Json) -> str:
    """Return hits and times to the first token by how much busier a replica may be, a column for each popularity."""
    cells: dict[str, list[str]] = {}
    for result in results:
        for row in result["rows"]:
            extra = row["policy"].removeprefix("prefix, ")
            numbers = f"{row['prefix hits']:.2f}, {row['TTFT p50, ms']:,.0f} ms, {row['TTFT p99, ms']:,.0f} ms"
            cells.setdefault(extra, []).append(numbers)
    head = [f"skew {result['skew']:g}, {result['rate']:g} requests/s: hits, TTFT p50, p99" for result in results]
    return table(["extra requests", *head], [[extra, *row] for extra, row in cells.items()])


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


def _simulated(name: str, result: Json) -> str:
    commit = result["environment"]["commit"]
    return f"Simulated at commit `{commit}` ([result](repo:benchmarks/results/{name}.json)):"

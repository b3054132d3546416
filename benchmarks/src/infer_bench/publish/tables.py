"""Published tables that no benchmark prints itself: of results from elsewhere, and of several results together."""

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from infer_bench.client.summary import spread_words
from infer_bench.offline.steps import STAGES, step_ms
from infer_bench.publish.declared import Json
from infer_bench.publish.words import count_words, machine
from infer_bench.results import Columns, lines_table, number, numbers, paragraph, sections, table
from infer_bench.serving.peers import measured, race_table, times_better
from infer_bench.serving.workloads import SERVER_ROWS
from infer_bench.soak.latency import Kill, Window
from infer_bench.soak.memory import MemorySeries
from infer_bench.soak.plot import plot_soak

Turn = Mapping[str, float]

# One process

PROMPT_CAP: Columns = {
    "workload": lambda row: re.sub(r"^\S+", r"`\g<0>`", row["workload"]),
    "prompt tokens beside decodes": lambda row: "none" if row["cap"] >= 2048 else row["cap"],
    **numbers("TTFT p50, ms", "TTFT p99, ms", "TTFT p50 of the shortest quarter, ms"),
    **numbers("ITL p50, ms", "ITL p99, ms", "tokens/s"),
}
STEPS: Columns = {
    "schedule, ms": lambda times: number(times["schedule"]),
    "forward pass, ms": lambda times: number(times["forward pass"]),
    "choose tokens and the rest, ms": lambda times: number(sum(times[stage] for stage in STAGES[2:])),
    "**step, ms**": lambda times: f"**{number(step_ms(times))}**",
    "dense layers, one call of Python each, ms": lambda times: number(times["products"]),
    "reading all weights at the best rate seen, ms": lambda times: number(times["read"]),
}
STEP_KINDS = {"1 sequence": "1 sequence", "16 sequences": "16", "prompt of 1024": "prompt of 1024"}
"""By name in results: what a column's head calls it."""


def cpu_steps(small: Json, large: Json) -> str:
    """Return the stages of steps in bf16, and their floors, of both shapes."""
    columns = [
        (f"{shape}: {words}" if kind == "1 sequence" else words, result["measured"]["none"]["milliseconds"][kind])
        for shape, result in (("135m", small), ("0.6b", large))
        for kind, words in STEP_KINDS.items()
    ]
    return sections(
        paragraph(
            f"`infer-bench cpu-steps`, in one process without HTTP, on {machine(small)} "
            "(results: [135m](repo:benchmarks/results/cpu-steps-llama-135m-8k.json), "
            "[0.6b](repo:benchmarks/results/cpu-steps-qwen3-0.6b-8k-quantized.json)):"
        ),
        lines_table(STEPS, columns),
    )


# Over HTTP


def engine_process(result: Json) -> str:
    """Return the server with its core in a process beside one with its core in a thread."""
    rates = ("{streams}", "{tokens_per_s process:.0f}", "{tokens_per_s thread:.0f}")
    waits = [f"{{{name} {side}:.1f}}" for name in ("itl_p99_ms", "health_max_ms") for side in ("process", "thread")]
    rows = []
    for row in result["rows"]:
        ratio = f"{row['tokens_per_s process'] / row['tokens_per_s thread']:.2f}"
        rows.append([*(each.format_map(row) for each in rates), ratio, *(each.format_map(row) for each in waits)])
    head = ["streams", "process tokens/s", "thread tokens/s", "ratio", "ITL p99 ms", "", "/health max ms", ""]
    return table(head, rows)


def workload_mixed(result: Json) -> str:
    """Return the medians and spreads of the repeated runs."""
    load = result["runs"][0]
    rows = [[name, spread_words(found)] for name, found in load["spread"].items()]
    for name, key in SERVER_ROWS.items():
        rows.append([name, f"{max(run['server'].get(key, 0.0) for run in load['runs']):.3g}"])
    rows.append(["errors", f"{sum(run['num_errors'] for run in load['runs'])}"])
    return table(["", "median (least-most)"], rows)


def text_side(result: Json) -> str:
    """Return what looking for calls costs a server, in a sentence."""
    plain, tools = (result["server_cpu_s_per_token"][name] for name in ("plain", "with tools"))
    ratio = statistics.median(own / other for own, other in zip(tools, plain, strict=True))
    us = [f"{1e6 * statistics.median(times):.0f}" for times in (plain, tools)]
    return paragraph(
        f"`infer-bench text-side`, on {machine(result)} ([result](repo:benchmarks/results/text-side.json)): the CPU "
        f"time of a server per streamed token is {us[0]} us without tools and {us[1]} us with them, {ratio:.2f} times "
        f"in the median of {count_words(len(plain))} rounds."
    )


# Several copies or ranks of a model

BATCH, GAP, STREAM, PREFILL = "W, tokens/s", "W, ITL p99, ms", "one stream, tokens/s", "prefill, ms"
START, MEMORY = "start, s", "idle memory over the weights, GB"
RANKS = {"infer": "one process, two threads", "two ranks": "two ranks, a processor each"}
RAY = {"infer": "`infer-server`", "ray": "`infer-ray serve`", "ray with two processors": "with `--num-cpus 2`"}
SIDES: Columns = {
    "16 requests at once, tokens/s": lambda turn: number(turn[BATCH]),
    "one stream, tokens/s": lambda turn: number(turn[STREAM]),
    "a prompt of 1024 tokens": lambda turn: f"{number(turn[PREFILL])} ms",
    "from the command to `/health`": f"{{{START}:.1f}} s",
}


def sides(names: Mapping[str, str]) -> Callable[[Json], str]:
    """Return a table of servers beside each other: a column for each of `names`, heading by side."""
    return lambda result: lines_table(SIDES, ((words, result["medians"][side]) for side, words in names.items()))


def replicas(result: Json) -> str:
    """Return one core with two threads beside two replicas."""
    one, two = (result["medians"][side] for side in ("infer", "two replicas"))
    lines: Columns = {
        "16 requests at once, tokens/s": lambda turn: (
            number(turn[BATCH]) + (f" ({two[BATCH] / one[BATCH]:.2f} times)" if turn is two else "")
        ),
        "their time between tokens, p99": lambda turn: f"{number(turn[GAP])} ms",
        "one stream, tokens/s": SIDES["one stream, tokens/s"],
        "a prompt of 1024 tokens": SIDES["a prompt of 1024 tokens"],
        "memory over the weights": lambda turn: (
            f"{turn[MEMORY]:.2f} GB" + (", and the weights twice" if turn is two else "")
        ),
    }
    return lines_table(lines, {"one core, two threads": one, "two replicas, a processor each": two}.items())


def routing_hits(*results: Json) -> str:
    """Return the shares of prompt tokens that servers found, by their number of replicas."""

    def hits(turns: Sequence[Turn]) -> float:
        return statistics.median(turn["prefix hits"] for turn in turns)

    return ", ".join(
        f"with {result['replicas']} of them {hits(result['turns']['prefix']):.0%} of the prompt tokens are found "
        f"instead of {hits(result['turns']['random']):.0%} at random"
        for result in results
    )


# Races

PEERS = {
    "infer": "infer",
    "vllm": "vLLM CPU 0.32.0, both cores",
    "vllm-default": "vLLM, its default",
    "llama.cpp": "llama.cpp, BF16",
}
RATES = (BATCH, GAP, STREAM, PREFILL)
PAIRS = (("infer none",), ("infer int8", "llama.cpp Q8_0"), ("infer int4", "llama.cpp Q4_0"))
"""Sides with weights of as many bits."""
QUANTIZED = {
    "W: 16 requests at once, tokens/s": BATCH,
    "W: time between tokens, p50, ms": "W, ITL p50, ms",
    "W: time between tokens, p99, ms": GAP,
    "one stream, tokens/s": STREAM,
    "a prompt of 1,024 tokens, ms": PREFILL,
    "memory before the first request, GB": "idle memory, GB",
}


def race(result: Json) -> str:
    """Return all sides of a race."""
    turns = result["turns"]
    return race_table({words: turns[side] for side, words in PEERS.items() if side in turns})


def beside_the_best(small: Json, large: Json) -> str:
    """Return how many times better than the best peer ours is, of both races; bold where it is not."""

    def ratio(medians: Mapping[str, Turn], name: str) -> str:
        found = min(
            times_better(medians["infer"][name], turn[name], name) for side, turn in medians.items() if side != "infer"
        )
        return f"{found:.2f}" if found >= 1 else f"**{found:.2f}**"

    lines: Columns = {
        name.removesuffix(", tokens/s" if "stream" in name else ", ms"): lambda medians, name=name: ratio(medians, name)  # type: ignore[misc]  # a default
        for name in RATES
    }
    columns = (("135m", small["medians"]), ("0.6b", large["medians"]))
    return lines_table(lines, columns, corner="infer, times better than the best of them")


def quantized_race(result: Json) -> str:
    """Return all sides of a race with quantized weights; bold what is better than the other side of as many bits."""
    medians: Mapping[str, Turn] = result["medians"]

    def cell(side: str, others: Iterable[str], name: str) -> str:
        text = measured(result["turns"][side], name)
        ratios = [times_better(medians[side][name], medians[other][name], name) for other in others]
        return f"**{text}**" if ratios and "memory" not in name and min(ratios) > 1 else text

    pairs = [[side for side in pair if side in medians] for pair in PAIRS]
    found = [(side, [other for other in pair if other != side]) for pair in pairs for side in pair]
    rows = [[words, *(cell(*side, name) for side in found)] for words, name in QUANTIZED.items()]
    return table(["", *("bf16" if side == "infer none" else side.removeprefix("infer ") for side, _ in found)], rows)


# The soak


def draw_soak(result: Json, path: Path) -> None:
    """Draw memory and P99s over the minutes."""
    plot_soak(
        [MemorySeries(**series) for series in result["memory"]],
        [Window(**window) for window in result["p99_by_minute"]],
        [Kill(**kill) for kill in result["kills"]],
        path,
        title=f"{result['minutes']:g} minutes of traffic over two replicas of the demo model",
        warm_up_s=60 * result["warmup_minutes"],
    )

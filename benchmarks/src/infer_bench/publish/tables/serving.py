"""Tables of what our own client measures over HTTP: streaming, workloads, the ladder, what the text side costs."""

import statistics

from infer_bench.client.summary import spread_words
from infer_bench.publish.declared import Json
from infer_bench.publish.tables.words import count_words, machine, paragraph
from infer_bench.results import table
from infer_bench.serving.workloads import SERVER_ROWS


def workload_mixed(result: Json) -> str:
    """Return the medians and spreads of the repeated runs."""
    load = result["runs"][0]
    rows = [[name, spread_words(found)] for name, found in load["spread"].items()]
    for name, key in SERVER_ROWS.items():
        rows.append([name, f"{max(run['server'].get(key, 0.0) for run in load['runs']):.3g}"])
    rows.append(["errors", f"{sum(run['num_errors'] for run in load['runs'])}"])
    return table(["", "median (least-most)"], rows)


def engine_process(result: Json) -> str:
    """Return the server with its core in a process beside one with its core in a thread."""
    rows = []
    for row in result["rows"]:
        process, thread = row["tokens_per_s process"], row["tokens_per_s thread"]
        pairs = (
            f"{row[f'{name} {side}']:.1f}" for name in ("itl_p99_ms", "health_max_ms") for side in ("process", "thread")
        )
        rows.append([row["streams"], f"{process:.0f}", f"{thread:.0f}", f"{process / thread:.2f}", *pairs])
    return table(
        ["streams", "process tokens/s", "thread tokens/s", "ratio", "ITL p99 ms", "", "/health max ms", ""], rows
    )


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

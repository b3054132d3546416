"""Tables of what our own client measures over HTTP: streaming, workloads, the ladder, what the text side costs."""

import statistics

from infer_bench.client.summary import spread_words
from infer_bench.publish.declared import Json
from infer_bench.publish.tables.words import count_words, machine, measured_on, paragraph, sections
from infer_bench.results import table
from infer_bench.serving.ablation import (
    capacity_table,
    caps_table,
    chunks_table,
    claims_table,
    ladder_table,
    latency_table,
)
from infer_bench.serving.over_http import report as over_http_table
from infer_bench.serving.policies import policies_table
from infer_bench.serving.streaming import delay_table, throughput_table
from infer_bench.serving.workloads import SERVER_ROWS, workloads_table


def streaming(result: Json) -> str:
    """Return rates by streams, and what long prompts delay."""
    return sections(
        measured_on("streaming", result), throughput_table(result["throughput"]), delay_table(result["delays"])
    )


def workload_mixed(result: Json) -> str:
    """Return the medians and spreads of the repeated runs."""
    load = result["runs"][0]
    rows = [[name, spread_words(found)] for name, found in load["spread"].items()]
    for name, key in SERVER_ROWS.items():
        rows.append([name, f"{max(run['server'].get(key, 0.0) for run in load['runs']):.3g}"])
    rows.append(["errors", f"{sum(run['num_errors'] for run in load['runs'])}"])
    return sections(
        measured_on("serving-mixed", result, rounds=len(load["runs"])), table(["", "median (least-most)"], rows)
    )


def ladder(result: Json) -> str:
    """Return the steps' numbers, and the claims with their judgements."""
    return sections(_measured_rounds(result), ladder_table(result), claims_table(result))


def ladder_capacity(result: Json) -> str:
    """Return how many sequences of each length fit."""
    return capacity_table(result)


def ladder_chunks(result: Json) -> str:
    """Return what chunks and their cap do, and sizes of chunks."""
    return sections(caps_table(result), chunks_table(result))


def ladder_runs(result: Json) -> str:
    """Return P50 and P99 of every workload on every step that ran it."""
    return latency_table(result)


def _measured_rounds(result: Json) -> str:
    rounds = max(len(found) for row in result["rounds"].values() for found in row.values())
    return measured_on("ablation-cpu", result, rounds=rounds)


def workloads(result: Json) -> str:
    """Return a row for each workload."""
    rounds = len(result["workloads"]["single"]["runs"])
    return sections(measured_on("serving-all", result, rounds=rounds), workloads_table(result))


def workloads_real(result: Json) -> str:
    """Return a row for each workload on the real model."""
    return sections(measured_on("serving-smollm2", result, rounds=1), workloads_table(result))


def policies(result: Json) -> str:
    """Return a row for each policy on each load."""
    rounds = len(result["turns"]["arrivals"]["fcfs"])
    return sections(measured_on("policies", result, rounds=rounds), policies_table(result))


def over_http(result: Json) -> str:
    """Return one request over HTTP beside the same one without."""
    measured = measured_on(f"over-http-{result['shape']}", result, rounds=len(result["rounds"]))
    return sections(measured, over_http_table(result))


def engine_process(result: Json) -> str:
    """Return the server with its core in a process beside one with its core in a thread."""
    rows = []
    for row in result["rows"]:
        process, thread = row["tokens_per_s process"], row["tokens_per_s thread"]
        pairs = (
            f"{row[f'{name} {side}']:.1f}" for name in ("itl_p99_ms", "health_max_ms") for side in ("process", "thread")
        )
        rows.append([row["streams"], f"{process:.0f}", f"{thread:.0f}", f"{process / thread:.2f}", *pairs])
    head = ["streams", "process tokens/s", "thread tokens/s", "ratio", "ITL p99 ms", "", "/health max ms", ""]
    return sections(measured_on("engine-process", result), table(head, rows))


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

"""The Markdown tables of the ablation, each made of a result as its JSON file has it, and of nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from infer_bench.client.workloads import WORKLOADS
from infer_bench.results import table
from infer_bench.serving.ablation_claims import Measured, metric_words
from infer_bench.serving.ablation_steps import CHUNKS, FULL_CHUNK, LABELS, ONE_BY_ONE, ONLY_CHUNKED, STEPS

COLUMNS = {
    "`baseline` tokens/s": ("baseline", "output_tokens_per_s"),
    "`mixed` tokens/s": ("mixed", "output_tokens_per_s"),
    "`continuous_batching` TTFT P99": ("continuous_batching", "ttft_p99_s"),
    "decoding, mean": ("continuous_batching", "num_decoding_mean"),
    "most": ("continuous_batching", "num_decoding_peak"),
    "`paged_attention` tokens/s": ("paged_attention", "output_tokens_per_s"),
    "most decoding": ("paged_attention", "num_decoding_peak"),
    "`chunked_prefill` ITL P99": ("chunked_prefill", "itl_p99_s"),
    "TTFT P50": ("chunked_prefill", "ttft_p50_s"),
    "`prefix_caching` TTFT P50": ("prefix_caching", "ttft_p50_s"),
}
"""Of the ladder: a heading, and the workload and its metric below it."""
LATENCIES = {
    "tokens/s": "output_tokens_per_s",
    "TTFT P50": "ttft_p50_s",
    "TTFT P99": "ttft_p99_s",
    "ITL P50": "itl_p50_s",
    "ITL P99": "itl_p99_s",
    "decoding, mean": "num_decoding_mean",
    "most": "num_decoding_peak",
}
"""Of the table of every run: a heading, and the metric below it."""
METRICS = tuple(dict.fromkeys([*(metric for _, metric in COLUMNS.values()), *LATENCIES.values(), "kv_occupancy_peak"]))
"""What a result has of each step and workload, as medians over the rounds."""

Result = Mapping[str, Any]


def report(result: Result) -> str:
    """Return all tables that have rows, each under a line that says what it is."""
    tables = {
        "Each row one switch more:": ladder_table(result),
        "What each step must show:": claims_table(result),
        "Sequences that fit into the same memory:": capacity_table(result),
        "Chunks and their cap, on `chunked_prefill`:": caps_table(result),
        "Sizes of chunks, one chunk a step, on `chunked_prefill`:": chunks_table(result),
        "Every run:": latency_table(result),
    }
    return "\n".join(f"\n{heading}\n\n{text}" for heading, text in tables.items() if len(text.splitlines()) > 2)


def ladder_table(result: Result) -> str:
    """Return a row a step, with the metrics that the claims are about."""
    measured: Measured = result["medians"]
    rows = [
        [STEPS[step], *(_cell(measured[step], workload, metric) for workload, metric in COLUMNS.values())]
        for step in STEPS
        if step in measured
    ]
    return table(["", *COLUMNS], rows)


def claims_table(result: Result) -> str:
    """Return a row a claim: its step, what it says, whether it held, and the numbers."""
    rows = [
        [LABELS[claim["step"]], claim["text"], "held" if claim["held"] else "**not held**", claim["evidence"]]
        for claim in result["claims"]
    ]
    return table(["step", "claim", "", "numbers"], rows)


def capacity_table(result: Result) -> str:
    """Return how many sequences of each length fit into slots and into blocks."""
    rows = [
        [each["num_tokens"], each["in_slots"], each["in_blocks"], f"{each['in_blocks'] / each['in_slots']:g}"]
        for each in result["capacity"]
    ]
    return table(["tokens of a sequence", "in slots", "in blocks", "times"], rows)


def caps_table(result: Result) -> str:
    """Return what whole prompts and chunks do, as many a step as fit and one a step."""
    names = {
        "paged": ("whole prompts", "as many as fit"),
        "capped": ("whole prompts", "one"),
        "uncapped": ("chunks", "as many as fit"),
        "chunked": ("chunks", "one"),
    }
    rows = [[*words, *_latencies(result, step)] for step, words in names.items() if _has_prompts(result, step)]
    return table(["computed", "in a step", *LATENCIES], rows)


def chunks_table(result: Result) -> str:
    """Return TTFT and ITL by the size of chunks, at full size and as they were run."""
    steps = {f"chunk-{size}" if size != FULL_CHUNK else "chunked": size for size in CHUNKS}
    rows = [
        [size, result["options"][step][ONLY_CHUNKED], *_latencies(result, step)]
        for step, size in steps.items()
        if _has_prompts(result, step)
    ]
    return table(["chunk", "as run, tokens", *LATENCIES], rows)


def latency_table(result: Result) -> str:
    """Return a row for each workload on each step of the ladder that ran it: P50 and P99 of TTFT and ITL, and rates."""
    measured: Measured = result["medians"]
    rows = [
        [f"`{workload}`", STEPS[step], *_latencies(result, step, workload)]
        for workload in (*WORKLOADS, ONE_BY_ONE)
        for step in STEPS
        if workload in measured.get(step, {})
    ]
    return table(["workload", "step", *LATENCIES], rows)


def _has_prompts(result: Result, step: str) -> bool:
    return "chunked_prefill" in result["medians"].get(step, {})


def _latencies(result: Result, step: str, workload: str = "chunked_prefill") -> Sequence[str]:
    return [_cell(result["medians"][step], workload, metric) for metric in LATENCIES.values()]


def _cell(row: Mapping[str, Mapping[str, float]], workload: str, metric: str) -> str:
    return metric_words(metric, row[workload][metric]) if workload in row else ""

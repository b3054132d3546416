"""Tables of what a step costs on a CPU, with and without quantized weights, and of the kernels alone."""

from typing import Any

from infer_bench.offline.steps import STAGES, step_ms
from infer_bench.publish.declared import Json
from infer_bench.publish.tables.words import machine, number, paragraph, sections
from infer_bench.results import table

KINDS = {"1 sequence": "1 sequence", "16 sequences": "16", "prompt of 1024": "prompt of 1024"}


def steps(small: Json, large: Json) -> str:
    """Return the stages of steps in bf16, and their floors, of both shapes."""
    heads, found = [], []
    for shape, result in (("135m", small), ("0.6b", large)):
        for kind, words in KINDS.items():
            heads.append(words if words != "1 sequence" else f"{shape}: {words}")
            found.append(result["measured"]["none"]["milliseconds"][kind])
    rest = STAGES[2:]
    lines: dict[str, list[float]] = {
        "schedule, ms": [times["schedule"] for times in found],
        "forward pass, ms": [times["forward pass"] for times in found],
        "choose tokens and the rest, ms": [sum(times[stage] for stage in rest) for times in found],
        "**step, ms**": [step_ms(times) for times in found],
        "dense layers, one call of Python each, ms": [times["products"] for times in found],
        "reading all weights at the best rate seen, ms": [times["read"] for times in found],
    }
    rows = [
        [name, *(f"**{number(each)}**" if "*" in name else number(each) for each in line)]
        for name, line in lines.items()
    ]
    return sections(
        paragraph(
            f"`infer-bench cpu-steps`, in one process without HTTP, on {machine(small)} "
            "(results: [135m](repo:benchmarks/results/cpu-steps-llama-135m-8k.json), "
            "[0.6b](repo:benchmarks/results/cpu-steps-qwen3-0.6b-8k-quantized.json)):"
        ),
        table(["", *heads], rows),
    )


def quantized(result: Json) -> str:
    """Return the memory and the steps of each quantization."""
    measured: dict[str, dict[str, Any]] = result["measured"]
    plain = measured["none"]
    kinds = {"1 sequence": "a step of one sequence", "16 sequences": "a step of 16 sequences"}
    kinds["prompt of 1024"] = "a prompt of 1,024 tokens"

    def cell(name: str, kind: str) -> str:
        times = measured[name]["milliseconds"][kind]
        floor = f", floor {number(times['read'])}" if kind == "1 sequence" else ""
        faster = "" if name == "none" else f": {step_ms(plain['milliseconds'][kind]) / step_ms(times):.2f} times faster"
        return f"{number(step_ms(times))} ms{floor}{faster}"

    weights = [
        f"{each['weight_bytes'] / 1e6:.1f} MB" + ("" if name == "none" else f", {each['share_of_bf16']:.2f} of bf16")
        for name, each in measured.items()
    ]
    rows = [
        ["weights", *weights],
        *([words, *(cell(name, kind) for name in measured)] for kind, words in kinds.items()),
    ]
    return table(["", *("bf16" if name == "none" else name for name in measured)], rows)

"""Tables of what is measured in one process: concurrency, the engine's steps, `transformers`, grammars."""

import re
import statistics
from typing import Any

from infer_bench.agreement import TokenAgreement
from infer_bench.offline.engine import step_table
from infer_bench.publish.declared import Json
from infer_bench.publish.tables.words import number, numbers, paragraph, sections
from infer_bench.results import Columns, columns_table, table

KV_CACHE: Columns = {
    "sequences": "{sequences}",
    "tokens of each": "{tokens:,}",
    "rows of each": "{rows}",
    "bf16, us": "{bf16_us:,}",
    "int8, us": "{int8_us:,}",
    "times faster": "{speedup:.2f}",
}
PROMPT_CAP: Columns = {
    "workload": lambda row: re.sub(r"^\S+", r"`\g<0>`", row["workload"]),
    "prompt tokens beside decodes": lambda row: "none" if row["cap"] >= 2048 else row["cap"],
    **numbers("TTFT p50, ms", "TTFT p99, ms", "TTFT p50 of the shortest quarter, ms"),
    **numbers("ITL p50, ms", "ITL p99, ms", "tokens/s"),
}
TRANSFORMERS: Columns = {
    "prompts": "{part}",
    "infer, output tokens/s": "{ours:.1f}",
    "transformers, output tokens/s": "{theirs:.1f}",
    "ratio": "{ratio:.2f}",
    "slowest - fastest round": "{slowest:.2f} - {fastest:.2f}",
}
GRAMMARS = {
    "free text": "free text",
    "json_schema": "JSON Schema",
    "regex": "regular expression (`([a-z ]{1,40}\\n){200}`)",
}


def concurrency_short(result: Json) -> str:
    """Return the medians of both sides, and their ratio."""
    rows = {
        "one by one": statistics.median(result["one_by_one"]),
        "all together": statistics.median(result["together"]),
    }
    cells = [[name, f"{rate:.1f}"] for name, rate in rows.items()]
    ceiling = "ratio (16 is the ceiling where a step only reads the weights)"
    return table(["", "output tokens/s"], [*cells, [ceiling, f"{result['ratio']:.2f}"]])


def concurrency_rounds(result: Json) -> str:
    """Return every round of both sides."""
    rows = [
        [side, ", ".join(f"{rate:.1f}" for rate in result[key]), f"{statistics.median(result[key]):.1f}"]
        for side, key in (("one by one", "one_by_one"), ("together", "together"))
    ]
    head = ["", "output tokens/s, each round", "median"]
    return sections(table(head, rows), f"The ratio is {result['ratio']:.2f}.")


def engine_steps(result: Json) -> str:
    """Return the costs of steps, and of the text of a token."""
    return sections(
        step_table(result["per_step"], result.get("steps", 2000)),
        paragraph(
            f"The output processor makes text beside the steps: {result['text_us_per_token']:.1f} us a token with a "
            "stop string watched."
        ),
    )


def transformers(result: Json) -> str:
    """Return both sides' rates, and how their tokens agree."""
    return sections(
        columns_table(TRANSFORMERS, [_compared(part, **rates) for part, rates in result["tokens_per_s"].items()]),
        paragraph(
            "Greedy answers of both are compared up to their first difference, as they continue other texts after it. "
            "A difference counts where the best candidate's margin, by the peer's logits, exceeds what rounding "
            "explains: 0.1 standard deviations of the logits in bf16, 0.001 in fp32. "
            f"{TokenAgreement(**result['agreement'])}"
        ),
    )


def _compared(part: str, *, infer: list[float], transformers: list[float]) -> dict[str, Any]:
    ratios = [own / other for own, other in zip(infer, transformers, strict=True)]
    ours, theirs = statistics.median(infer), statistics.median(transformers)
    fields = {"part": part, "ours": ours, "theirs": theirs, "ratio": ours / theirs}
    return fields | {"slowest": min(ratios), "fastest": max(ratios)}


def structured(result: Json) -> str:
    """Return rates with and without a grammar, and the times to a first token."""
    speeds = {name: statistics.median(rates) for name, rates in result["tokens_per_s"].items()}
    rows = []
    for kind, words in GRAMMARS.items():
        cells = [words]
        for rows_name in ("batch", "stream"):
            rate = speeds[f"{kind}, {rows_name}"]
            share = "" if kind == "free text" else f"{rate / speeds[f'free text, {rows_name}']:.2f}"
            cells += [number(rate), share]
        rows.append(cells)
    head = ["", f"{result['rows']} requests, tokens/s", "of free text", "one request, tokens/s", "of free text"]
    first = {name: f"{1e3 * statistics.median(times):.1f}" for name, times in result["first_token_s"].items()}
    return sections(
        table(head, rows),
        paragraph(
            f"The first token came after {first['free text']} ms for free text, {first['same grammar']} with a grammar "
            f"that was compiled before, {first['new grammar']} with a new one."
        ),
    )

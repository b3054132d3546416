"""Tables of what is measured in one process: concurrency, the engine's steps, `transformers`, grammars."""

import statistics

from infer_bench.agreement import TokenAgreement
from infer_bench.kernels.expectations import ASSUMPTIONS
from infer_bench.kernels.mixed_steps import PREFILL_ATTENTION_OPERATIONS
from infer_bench.offline import host_step
from infer_bench.offline.engine import step_table
from infer_bench.publish.declared import Json
from infer_bench.publish.tables.words import measured_on, number, paragraph, sections
from infer_bench.results import table
from infer_bench.scaling.prompt_budget import NO_BUDGET


def commit(result: Json) -> str:
    """Return the commit of a result."""
    return f"`{result['environment']['commit']}`"


def concurrency_short(result: Json) -> str:
    """Return the medians of both sides, and their ratio."""
    together, alone = (statistics.median(result[side]) for side in ("together", "one_by_one"))
    rows = [
        ["one by one", f"{alone:.1f}"],
        ["all together", f"{together:.1f}"],
        ["ratio (16 is the ceiling where a step only reads the weights)", f"{result['ratio']:.2f}"],
    ]
    rounds = len(result["together"])
    return sections(
        measured_on("concurrency-smollm-135m", result, what="`uv run infer-bench concurrency`", rounds=rounds),
        table(["", "output tokens/s"], rows),
    )


def concurrency_rounds(result: Json) -> str:
    """Return every round of both sides."""
    rows = [
        [side, ", ".join(f"{rate:.1f}" for rate in result[key]), f"{statistics.median(result[key]):.1f}"]
        for side, key in (("one by one", "one_by_one"), ("together", "together"))
    ]
    return sections(
        measured_on("concurrency-smollm-135m", result, rounds=len(result["together"])),
        table(["", "output tokens/s, each round", "median"], rows),
        f"The ratio is {result['ratio']:.2f}.",
    )


def engine_steps(result: Json) -> str:
    """Return the costs of steps, and of the text of a token."""
    return sections(
        measured_on("engine", result),
        step_table(result["per_step"], result.get("steps", 2000)),
        paragraph(
            f"The output processor makes text beside the steps: {result['text_us_per_token']:.1f} us a token with a "
            "stop string watched."
        ),
    )


def host_steps(result: Json) -> str:
    """Return the stages of each batch's step, of the first of the commits."""
    own = result["commits"][0]
    return sections(
        measured_on("host-step", result, what="Microseconds, measured", rounds=len(own["rounds"])),
        host_step.time_table(own["microseconds"]),
    )


def transformers(result: Json) -> str:
    """Return both sides' rates, and how their tokens agree."""
    rows = []
    rounds = 0
    for part, rates in result["tokens_per_s"].items():
        ours, theirs = rates["infer"], rates["transformers"]
        ratios = sorted(own / other for own, other in zip(ours, theirs, strict=True))
        medians = statistics.median(ours), statistics.median(theirs)
        rows.append(
            [
                part,
                *(f"{each:.1f}" for each in medians),
                f"{medians[0] / medians[1]:.2f}",
                f"{ratios[0]:.2f} - {ratios[-1]:.2f}",
            ]
        )
        rounds = len(ours)
    head = ["prompts", "infer, output tokens/s", "transformers, output tokens/s", "ratio", "slowest - fastest round"]
    name = "compare-transformers-smollm-135m"
    return sections(
        measured_on(name, result, what=f"transformers {result['transformers']}, measured", rounds=rounds),
        table(head, rows),
        paragraph(
            "Greedy answers of both are compared up to their first difference, as they continue other texts after it. "
            "A difference counts where the best candidate's margin, by the peer's logits, exceeds what rounding "
            "explains: 0.1 standard deviations of the logits in bf16, 0.001 in fp32. "
            f"{TokenAgreement(**result['agreement'])}"
        ),
    )


def structured(result: Json) -> str:
    """Return rates with and without a grammar, and the times to a first token."""
    speeds = {name: statistics.median(rates) for name, rates in result["tokens_per_s"].items()}
    kinds = {
        "free text": "free text",
        "json_schema": "JSON Schema",
        "regex": "regular expression (`([a-z ]{1,40}\\n){200}`)",
    }
    rows = []
    for kind, words in kinds.items():
        cells = [words]
        for rows_name in ("batch", "stream"):
            rate = speeds[f"{kind}, {rows_name}"]
            share = "" if kind == "free text" else f"{rate / speeds[f'free text, {rows_name}']:.2f}"
            cells += [number(rate), share]
        rows.append(cells)
    head = ["", f"{result['rows']} requests, tokens/s", "of free text", "one request, tokens/s", "of free text"]
    first = {name: f"{1e3 * statistics.median(times):.1f}" for name, times in result["first_token_s"].items()}
    return sections(
        measured_on("structured", result, rounds=len(result["first_token_s"]["free text"])),
        table(head, rows),
        paragraph(
            f"The first token came after {first['free text']} ms for free text, {first['same grammar']} with a grammar "
            f"that was compiled before, {first['new grammar']} with a new one."
        ),
    )


def prompt_cap(result: Json) -> str:
    """Return what each cap gives on each load."""
    names = (
        "TTFT p50, ms",
        "TTFT p99, ms",
        "TTFT p50 of the shortest quarter, ms",
        "ITL p50, ms",
        "ITL p99, ms",
        "tokens/s",
    )
    rows = [
        [f"`{name}` {rest}".strip(), "none" if row["cap"] >= 2048 else row["cap"], *(number(row[key]) for key in names)]
        for row in result["rows"]
        for name, _, rest in [row["workload"].partition(" ")]
    ]
    return sections(
        measured_on("prompt-cap", result), table(["workload", "prompt tokens beside decodes", *names], rows)
    )


def prompt_budget(result: Json) -> str:
    """Return what budgets of prompt tokens would do on an H100."""
    head = ["model, rate", "budget", "step, times", "ITL p99, ms", "TTFT p50, ms", "TTFT p99, ms", "tokens/s"]
    rows, last = [], ""
    for row in result["rows"]:
        load = f"{row['model']}, {row['rate']}"
        budget = "none" if row["budget"] == NO_BUDGET else f"{row['budget']:,}"
        if row["budget"] == result["chosen"][row["model"]]:
            budget = f"**{budget}**"
        rows.append(["" if load == last else load, budget, *(number(row[key]) for key in head[2:])])
        last = load
    lead = (
        "Counted and simulated, not measured: the engine's scheduler with the limits of a GPU, on a clock on which a "
        "step takes what bytes, operations and launches take an H100. Assumed beside the counts: products reach "
        f"{ASSUMPTIONS.library_operations / 1e12:.0f} TFLOP/s and {ASSUMPTIONS.library_share:.0%} of bandwidth, "
        f"prefill attention {PREFILL_ATTENTION_OPERATIONS / 1e12:.0f} TFLOP/s. {result['num_requests']} requests of "
        f"`{result['workload']}` at full lengths; rates are factors on its 6 requests/s. *Step* is how many times as "
        "long a step of 16 decodes takes with a chunk that fills the budget. What an engine chooses is bold "
        f"(commit `{result['environment']['commit']}`, [result](repo:benchmarks/results/prompt-budget.json)):"
    )
    return sections(paragraph(lead), table(head, rows))


def kv_cache(result: Json) -> str:
    """Return what attention over int8 codes gains in each case."""
    rows = [
        [
            case["sequences"],
            f"{case['tokens']:,}",
            case["rows"],
            f"{case['bf16_us']:,}",
            f"{case['int8_us']:,}",
            f"{case['speedup']:.2f}",
        ]
        for case in result["cases"]
    ]
    head = ["sequences", "tokens of each", "rows of each", "bf16, us", "int8, us", "times faster"]
    return sections(measured_on("kv-cache-int8", result), table(head, rows))

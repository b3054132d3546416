"""What speculative decoding gains: the same requests with drafts and without, in turns, by one process.

    copied      a list that the prompt holds is written again
    free        a story, which repeats little
    together    16 stories at once, whose steps get no drafts

The medians of tokens a second are compared. Tokens must be the same; of text that repeats little and of many streams
the loss is at most two hundredths; else the exit code is 1.

    uv run infer-bench speculation
    uv run infer-bench speculation --model SmolLM2-135M-Instruct --num-tokens 8
"""

import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, save, table
from infer_engine import LLM, SamplingParams

LEAST = 0.98
"""Least ratio where drafts are rejected, or none are made."""


def workloads() -> dict[str, list[list[dict[str, Any]]]]:
    """Return the conversations of each workload."""
    things = "\n".join(f"{i}. Item number {i} costs {7 * i} euros and is on shelf {i % 5}." for i in range(1, 25))
    stories = [f"Write a story about the number {number} and a {thing}." for number in range(4) for thing in
               ("fox", "ship", "clock", "garden")]  # fmt: skip
    return {
        "copied": [[{"role": "user", "content": f"Repeat this list exactly, to its end:\n{things}"}]],
        "free": [[{"role": "user", "content": stories[0]}]],
        "together": [[{"role": "user", "content": story}] for story in stories],
    }


def measure(
    llm: LLM, conversations: list[list[dict[str, Any]]], params: SamplingParams
) -> tuple[float, list[tuple[int, ...]]]:
    """Return tokens a second, and the tokens of each answer."""
    started = time.perf_counter()
    completions = llm.chat(conversations, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    answers = [tuple(each.token_ids) for each in completions]
    return sum(map(len, answers)) / seconds, answers


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and save the result; return 1 if a limit is broken."""
    parser = argument_parser(__doc__, quick="one round of 40 tokens")
    parser.add_argument("--model", default=None, help="left out: the default model")
    parser.add_argument("--num-tokens", type=int, default=4, help="most draft tokens of a request in a step")
    parser.add_argument("--max-tokens", type=int, default=300, help="of an answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(arguments)
    max_tokens, repeats = (40, 1) if args.quick else (args.max_tokens, args.repeats)

    options: dict[str, Any] = {"model": args.model, "max_seq_len": 1_024, "kv_cache_memory": "512MiB"}
    config = json.dumps({"method": "ngram", "num_speculative_tokens": args.num_tokens})
    engines = {"without": LLM(**options), "with": LLM(**options, speculative_config=config)}
    params = SamplingParams(temperature=args.temperature, seed=1, max_tokens=max_tokens, ignore_eos=True)
    rates: dict[str, dict[str, list[float]]] = {}
    rows, num_different = [], 0
    results: dict[str, dict[str, Any]] = {}
    for name, conversations in workloads().items():
        rates[name] = {kind: [] for kind in engines}
        before = engines["with"].stats
        for number in range(repeats + 1):  # the first round warms up
            answers = {}
            for kind, llm in engines.items():
                rate, answers[kind] = measure(llm, conversations, params)
                rates[name][kind] += [rate] if number or repeats == 1 else []
            num_different += answers["with"] != answers["without"]
        after = engines["with"].stats
        medians = {kind: statistics.median(each) for kind, each in rates[name].items()}
        ratio = medians["with"] / medians["without"]
        num_drafts = after.num_draft_tokens - before.num_draft_tokens
        share = (after.num_accepted_tokens - before.num_accepted_tokens) / num_drafts if num_drafts else 0.0
        results[name] = {"rates": rates[name], "ratio": ratio, "num_draft_tokens": num_drafts, "accepted": share}
        rows.append(
            [name, *(f"{medians[kind]:.1f}" for kind in engines), f"{ratio:.2f}", f"{num_drafts}", f"{share:.2f}"]
        )
    head = ["tokens/s", *engines, "ratio", "drafted", "accepted"]
    print(f"\n{table(head, rows)}")
    if not args.quick:
        save("speculation", {"model": engines["with"].info.model, "num_tokens": args.num_tokens, **results}, args.out)
    limits = [Limit(what="rounds whose tokens differ", value=num_different, most=0)]
    if not args.quick:
        limits += [
            Limit(what=f"loss of {name}, hundredths", value=100 * (1 - results[name]["ratio"]), most=100 * (1 - LEAST))
            for name in ("free", "together")
        ]
    return judge(limits)

"""The worth of continuous batching: 16 mixed requests together against the same requests one by one.

The ceiling of the ratio is the number of requests, where a step's cost is reading the weights once. Both sides run in
the same process, on the same engine, in turns; the ratio is that of the medians. It must be at least 1, else the exit
code is 1.

    uv run infer-bench concurrency
    uv run infer-bench concurrency --device cuda --shape qwen3-0.6b --requests 256 --lengths 100 1024 --alone 4
"""

import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, in_turns, save, seconds_of, table
from infer_bench.shapes import NO_DRAFTS, SHAPES, write_config
from infer_engine import LLM, SamplingParams

SIDES = {"one by one": "one_by_one", "together": "together"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and save the result; return 1 if requests together are no faster than one by one."""
    parser = argument_parser(__doc__, quick="one round at a quarter of the lengths", rounds=3, shape="smollm-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--alone", type=int, help="of them, that are asked one by one, too; left out: all")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the workload's prompt and answer lengths")
    parser.add_argument("--lengths", type=int, nargs=2, help="of prompts and of answers, in place of the workload's")
    args = parser.parse_args(arguments)
    if args.quick:
        args.scale, args.rounds = 0.25, 1
    prompts, params = mixed_workload(
        args.requests, scale=args.scale, vocab_size=SHAPES[args.shape]["vocab_size"], lengths=args.lengths
    )
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_config(args.shape, Path(folder)))
        options: dict[str, Any] = {"max_batch_size": args.requests, "use_prefix_caching": False, "device": args.device}
        llm = LLM(model, load_format="dummy", **options, **NO_DRAFTS)
    llm.generate(prompts[:2], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)

    def together(_: int) -> float:
        return num_tokens(params) / seconds_of(lambda: llm.generate(prompts, params))

    def one_by_one(_: int) -> float:
        alone = list(zip(prompts, params, strict=True))[: args.alone]
        took_s = sum(seconds_of(lambda: llm.generate([prompt], own, use_tqdm=False)) for prompt, own in alone)  # noqa: B023 - called at once
        return num_tokens(params[: args.alone]) / took_s

    rates = in_turns({"together": together, "one_by_one": one_by_one}, rounds=args.rounds, warm_up=0)
    ratio = statistics.median(rates["together"]) / statistics.median(rates["one_by_one"])
    result = {"shape": args.shape, "scale": args.scale, **rates, "ratio": ratio}
    print(f"\n{args.shape}, {args.requests} requests, {num_tokens(params)} tokens, x{args.scale:g} lengths\n")
    print(short_table(result, ceiling=args.requests))
    save(f"concurrency-{args.shape}", result, args)
    limit = Limit(what="throughput together over one by one", value=ratio, least=1.0)
    return 0 if args.quick else judge([limit])  # so short that another program decides


def num_tokens(params: Sequence[SamplingParams]) -> int:
    """Return how many tokens all answers have together."""
    return sum(each.max_tokens or 0 for each in params)


def mixed_workload(
    num_requests: int, *, scale: float, vocab_size: int, lengths: Sequence[int] | None = None
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Return prompts of random tokens and answers, of lengths between two numbers times `scale`; always the same."""
    draw = random.Random(0)  # noqa: S311 - a workload, not a secret

    def length(low: int, high: int) -> int:
        return max(1, int(draw.randint(*(lengths or (low, high))) * scale))

    prompts = [[draw.randrange(vocab_size) for _ in range(length(32, 1024))] for _ in range(num_requests)]
    return prompts, [
        SamplingParams(temperature=0, ignore_eos=True, max_tokens=length(64, 256)) for _ in range(num_requests)
    ]


def short_table(result: dict[str, Any], *, ceiling: int = 16) -> str:
    """Return the medians of both sides, and their ratio."""
    names = {"one by one": "one_by_one", "all together": "together"}
    rows = [[name, f"{statistics.median(result[key]):.1f}"] for name, key in names.items()]
    words = f"ratio ({ceiling} is the ceiling where a step only reads the weights)"
    return table(["", "output tokens/s"], [*rows, [words, f"{result['ratio']:.2f}"]])


def rounds_table(result: dict[str, Any]) -> str:
    """Return every round of both sides, and the ratio."""
    rows = [
        [side, ", ".join(f"{rate:.1f}" for rate in result[key]), f"{statistics.median(result[key]):.1f}"]
        for side, key in SIDES.items()
    ]
    rounds = table(["", "output tokens/s, each round", "median"], rows)
    return f"{rounds}\n\nThe ratio is {result['ratio']:.2f}."

"""The worth of continuous batching: 16 mixed requests together against the same requests one by one.

The ceiling of the ratio is the number of requests, where a step's cost is reading the weights once. Both sides run in
the same process, on the same engine, alternating; the ratio is that of the medians. It must be at least 1, else the
exit code is 1.

    uv run infer-bench concurrency
    uv run infer-bench concurrency --device cuda --shape qwen3-0.6b --requests 256 --lengths 100 1024 --alone 4
"""

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import NO_DRAFTS, SHAPES, write_config
from infer_engine import LLM, SamplingParams

LEAST_RATIO = 1.0
PROMPT_TOKENS, ANSWER_TOKENS = (32, 1024), (64, 256)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and save the result; return 1 if requests together are no faster than one by one."""
    parser = argument_parser(__doc__, quick="one round at a quarter of the lengths", rounds=3, shape="smollm-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--alone", type=int, help="of them, that are asked one by one, too; left out: all")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the workload's prompt and answer lengths")
    parser.add_argument("--lengths", type=int, nargs=2, help="of prompts and of answers, in place of the workload's")
    args = parser.parse_args(arguments)
    scale, rounds = (0.25, 1) if args.quick else (args.scale, args.rounds)

    prompts, params = mixed_workload(
        args.requests,
        scale=scale,
        vocab_size=SHAPES[args.shape]["vocab_size"],
        prompt_tokens=args.lengths or PROMPT_TOKENS,
        answer_tokens=args.lengths or ANSWER_TOKENS,
    )
    num_tokens = sum(param.max_tokens or 0 for param in params)
    num_alone_tokens = sum(param.max_tokens or 0 for param in params[: args.alone])
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_config(args.shape, Path(folder)))
        options: dict[str, Any] = {"max_batch_size": args.requests, "use_prefix_caching": False, "device": args.device}
        llm = LLM(model, load_format="dummy", **options, **NO_DRAFTS)
    llm.generate(prompts[:2], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)

    together: list[float] = []
    one_by_one: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        llm.generate(prompts, params)
        together.append(num_tokens / (time.perf_counter() - started))
        started = time.perf_counter()
        for prompt, param in list(zip(prompts, params, strict=True))[: args.alone]:
            llm.generate([prompt], param, use_tqdm=False)
        one_by_one.append(num_alone_tokens / (time.perf_counter() - started))

    ratio = statistics.median(together) / statistics.median(one_by_one)
    head = [f"{args.shape}, {args.requests} requests, {num_tokens} tokens, x{scale:g} lengths", "output tokens/s"]
    rows = [
        ["one by one", f"{statistics.median(one_by_one):.1f}"],
        ["together", f"{statistics.median(together):.1f}"],
        [f"ratio (ceiling {args.requests})", f"{ratio:.2f}"],
    ]
    print(f"\n{table(head, rows)}")
    if args.quick:  # so short that another program decides
        return 0
    result = {"shape": args.shape, "scale": scale, "together": together, "one_by_one": one_by_one, "ratio": ratio}
    save(f"concurrency-{args.shape}", result, args.out)
    return judge([limit(ratio)])


def limit(ratio: float) -> Limit:
    """Return the limit of the ratio of the two throughputs."""
    return Limit(what="throughput together over one by one", value=ratio, least=LEAST_RATIO)


def mixed_workload(
    num_requests: int,
    *,
    scale: float,
    vocab_size: int,
    prompt_tokens: Sequence[int] = PROMPT_TOKENS,
    answer_tokens: Sequence[int] = ANSWER_TOKENS,
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Return prompts of random tokens and answers, of lengths between two numbers times `scale`; always the same."""
    draw = random.Random(0)  # noqa: S311 - a workload, not a secret
    prompts = [
        [draw.randrange(vocab_size) for _ in range(max(1, int(draw.randint(*prompt_tokens) * scale)))]
        for _ in range(num_requests)
    ]
    params = [
        SamplingParams(temperature=0, ignore_eos=True, max_tokens=max(1, int(draw.randint(*answer_tokens) * scale)))
        for _ in range(num_requests)
    ]
    return prompts, params

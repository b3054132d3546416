"""How fast `LLM` is, beside what the machine could do at best: mixes of requests, one prompt, one stream.

    mixes       output tokens a second of `LLM.generate` on all requests at once
    prefill     prompt tokens a second of one prompt, to its first new token
    decode      tokens a second of one stream, from its first token to its last

Rows take turns, and the machine is measured before every turn. Prompts are random tokens, another draw every turn;
prefix caching is off, answers are greedy and run to their full length. Lengths of the mixes are scaled by `--scale`:
on a CPU by a sixteenth unless it is given, on a GPU not at all.

    uv run infer-bench offline
    uv run infer-bench offline --shape llama-3.2-3b --device cuda
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from infer_bench.ceilings import READ_BYTES, CeilingProbe, Ceilings, ModelCosts, Work
from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import SHAPES, write_config
from infer_engine import LLM, SamplingParams
from infer_models import ModelConfig
from infer_models.hub import resolve_checkpoint

CPU_SCALE = 1 / 16


MIXES = {
    "even": (256, (100, 1024), (100, 1024)),
    "reading": (64, (1024, 1536), (16, 64)),
    "writing": (64, (16, 64), (512, 1024)),
}
"""Requests that come all at once: how many, and the bounds between which prompts and answers are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing to measure, and what was.

    Attributes:
        name: in the table.
        num_tokens: that the rate counts.
        work: the least that it takes.
        run: does it and returns the seconds; the argument is the turn's number, 0 to warm up.
        seconds: of every turn so far.
    """

    name: str
    num_tokens: int
    work: Work
    run: Callable[[int], float]
    seconds: list[float] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Tokens per second, of every turn."""
        return [self.num_tokens / seconds for seconds in self.seconds]

    def ceiling(self, ceilings: Ceilings) -> float:
        """Return tokens per second at best."""
        return self.num_tokens / self.work.least_seconds(ceilings)

    def share(self, ceilings: Ceilings) -> float:
        """Return the median rate over the ceiling."""
        return statistics.median(self.rates) / self.ceiling(ceilings)

    def as_json(self, ceilings: Ceilings) -> dict[str, Any]:
        """What is saved."""
        return {
            "name": self.name,
            "num_tokens": self.num_tokens,
            "tokens_per_s": self.rates,
            "ceiling_tokens_per_s": self.ceiling(ceilings),
            "limit": self.work.limit(ceilings),
            "share": self.share(ceilings),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    args = read_arguments(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder = resolve_checkpoint(args.model) if args.model else write_config(args.shape, Path(made))
        llm = LLM(
            str(folder),
            load_format="auto" if args.model else "dummy",
            dtype=args.dtype,
            device=args.device,
            use_prefix_caching=False,
            gpu_memory_utilization=0.8,  # the rest is for what measures the ceilings
        )
        config = ModelConfig.from_folder(folder)
    device, dtype = torch.device(llm.info.device), getattr(torch, llm.info.dtype)
    costs = ModelCosts(config=config, num_parameters=llm.info.num_parameters, element_bytes=dtype.itemsize)
    scale = args.scale or (CPU_SCALE if device.type == "cpu" else 1.0)
    probe = CeilingProbe(device, dtype, num_bytes=args.read_bytes, matmul_sizes=args.matmul_sizes)
    rows = [
        *(mix_row(llm, costs, name, scale=scale) for name in args.mixes),
        *(prefill_row(llm, costs, length) for length in args.prefill),
        *(decode_row(llm, costs, length, num_steps=args.decode_steps) for length in args.decode),
    ]
    take_turns(rows, probe, rounds=args.rounds)
    name = args.model or args.shape
    print_report(name, rows, probe.best, scale=scale)
    if not args.quick:
        result = {
            "model": name,
            "info": {field: getattr(llm.info, field) for field in llm.info.__struct_fields__},
            "scale": scale,
            "ceilings": probe.as_json(),
            "rows": [row.as_json(probe.best) for row in rows],
        }
        save(f"offline-{Path(name).name}", result, args.out)


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags."""
    parser = argument_parser(__doc__, quick="two turns at a quarter of the lengths")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smollm-135m", help="with random weights")
    parser.add_argument("--model", help="folder or Hub id of a checkpoint, in place of `--shape`")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--mixes", nargs="*", choices=sorted(MIXES), default=list(MIXES))
    parser.add_argument("--scale", type=float, help="factor on the lengths of the mixes")
    parser.add_argument("--prefill", type=int, nargs="*", default=[128, 1024], metavar="TOKENS", help="of one prompt")
    parser.add_argument("--decode", type=int, nargs="*", default=[128, 1024], metavar="TOKENS", help="before the steps")
    parser.add_argument("--decode-steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="turns of every row, after a warm-up")
    parser.add_argument("--read-bytes", type=int, default=READ_BYTES, help="of the tensor that shows the memory's rate")
    parser.add_argument("--matmul-sizes", type=int, nargs="+", help="of the matrices that show its rate")
    args = parser.parse_args(arguments)
    if args.quick:
        args.rounds, args.scale, args.mixes = 2, (args.scale or CPU_SCALE) / 4, args.mixes[:1]
        args.prefill, args.decode = ([max(1, length // 4) for length in each] for each in (args.prefill, args.decode))
    return args


def mix_row(llm: LLM, costs: ModelCosts, name: str, *, scale: float) -> Row:
    """Return the row of `LLM.generate` on all requests of the mix `name`; lengths are always the same ones."""
    num_requests, *bounds = MIXES[name]
    draw = random.Random(name)  # noqa: S311 - a workload, not a secret
    lengths = []
    for _ in range(num_requests):
        prompt, answer = (max(1, round(draw.randint(*bound) * scale)) for bound in bounds)
        lengths.append((prompt, answer))

    def run(turn: int) -> float:
        chosen = lengths if turn else lengths[:32]  # enough to warm up
        prompts = draw_prompts([prompt for prompt, _ in chosen], llm, turn)
        params = [answer_of(answer) for _, answer in chosen]
        started_s = time.perf_counter()
        completions = llm.generate(prompts, params)
        took_s = time.perf_counter() - started_s
        check_counts([len(each.token_ids) for each in completions], [answer for _, answer in chosen])
        return took_s

    columns = (f"{min(each)}-{max(each)}" for each in zip(*lengths, strict=True))
    described = f"{name}: {num_requests} requests, {' tokens in and '.join(columns)} out"
    num_tokens = sum(answer for _, answer in lengths)
    return Row(name=described, num_tokens=num_tokens, work=costs.generate(lengths), run=run)


def prefill_row(llm: LLM, costs: ModelCosts, num_tokens: int) -> Row:
    """Return the row of one prompt."""

    def run(turn: int) -> float:
        prompts = draw_prompts([num_tokens], llm, turn)
        started_s = time.perf_counter()
        llm.generate(prompts, answer_of(1), use_tqdm=False)
        return time.perf_counter() - started_s

    return Row(
        name=f"prefill: one prompt of {num_tokens}", num_tokens=num_tokens, work=costs.prefill(num_tokens), run=run
    )


def decode_row(llm: LLM, costs: ModelCosts, num_before: int, *, num_steps: int) -> Row:
    """Return the row of one stream's decode steps."""

    def run(turn: int) -> float:
        [prompt] = draw_prompts([num_before], llm, turn)
        times_s = [
            (time.perf_counter(), len(output.token_ids)) for output in llm.stream(prompt, answer_of(1 + num_steps))
        ]
        check_counts([sum(count for _, count in times_s)], [1 + num_steps])
        return times_s[-1][0] - times_s[0][0]

    return Row(
        name=f"decode: one stream after {num_before}",
        num_tokens=num_steps,
        work=costs.decode(num_before, num_steps),
        run=run,
    )


def take_turns(rows: Sequence[Row], probe: CeilingProbe, *, rounds: int) -> None:
    """Run every row once to warm up, then all of them `rounds` times, the machine measured before each time."""
    for turn in range(1 + rounds):
        print("warm-up" if turn == 0 else f"turn {turn} of {rounds}", file=sys.stderr)
        probe.measure()
        for row in rows:
            seconds = row.run(turn)
            if turn:
                row.seconds.append(seconds)


def draw_prompts(lengths: Sequence[int], llm: LLM, turn: int) -> list[list[int]]:
    """Return prompts of random tokens."""
    draw = random.Random(turn)  # noqa: S311 - a workload, not a secret
    return [[draw.randrange(llm.info.vocab_size) for _ in range(length)] for length in lengths]


def answer_of(num_tokens: int) -> SamplingParams:
    """Return the parameters of a greedy answer of exactly so many tokens."""
    return SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_tokens)


def check_counts(counted: list[int], planned: list[int]) -> None:
    """Raise where an answer has not the planned length: its rate would be of other work."""
    if counted != planned:
        raise RuntimeError(f"{sum(counted)} tokens came of {sum(planned)}: a request failed or ended early.")


def print_report(name: str, rows: Sequence[Row], ceilings: Ceilings, *, scale: float) -> None:
    """Print the ceilings and the table."""
    print(
        f"\n{name}; lengths of the mixes times {scale:g}. At best, this machine read "
        f"{ceilings.read_bytes_per_s / 1e9:.1f} GB/s, copied {ceilings.copy_bytes_per_s / 1e9:.1f} GB/s (read and "
        f"written) and multiplied {ceilings.operations_per_s / 1e9:.0f} GFLOP/s.\n"
    )
    cells = [
        [
            row.name,
            f"{statistics.median(row.rates):.1f}",
            f"{min(row.rates):.1f} - {max(row.rates):.1f}",
            f"{row.ceiling(ceilings):.0f}",
            row.work.limit(ceilings),
            f"{row.share(ceilings):.0%}",
        ]
        for row in rows
    ]
    head = ["what", "tokens/s, median", "slowest - fastest turn", "ceiling, tokens/s", "set by", "share"]
    print(table(head, cells))

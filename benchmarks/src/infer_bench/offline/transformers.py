"""`LLM` and `transformers` in one process, turn by turn: the same checkpoint, the same prompts.

`transformers` gets all prompts padded on the left, or one at a time. Every answer is greedy and has the same number of
tokens on both sides. Every turn has prompts of its own, and the side that goes first alternates; the ratio is that of
the medians, its spread that of the turns' own ratios. Other engines are asked as servers: `infer-bench peers`.

    uv run infer-bench transformers
    uv run infer-bench transformers --model CHECKPOINT --device cuda
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

from infer_bench.agreement import TOLERANCES, JudgedAnswer, compare_tokens
from infer_bench.checkpoints import write_checkpoint
from infer_bench.client.workloads import PlannedRequest, Workload, make_workload
from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import SHAPES
from infer_engine import LLM, SamplingParams
from infer_models.hub import resolve_checkpoint

CPU_SCALE = 0.25
WARM_UP_CONTENTS = 1_000_000
"""Prompts that no measured turn has."""


class Side(Protocol):
    """One of the two that are compared."""

    name: str

    def run(self, workload: Workload) -> int:
        """Answer all requests at once, or one after another in a closed loop; return how many tokens were generated."""


class Ours:
    """`LLM`."""

    name = "infer"

    def __init__(self, folder: Path, *, device: str, max_batch_size: int) -> None:
        """Load the checkpoint in `folder`."""
        self.llm = LLM(
            str(folder),
            device=device,
            max_batch_size=max_batch_size,
            use_prefix_caching=False,
            gpu_memory_utilization=0.5,  # the other side has its weights and cache there too
        )

    def run(self, workload: Workload) -> int:
        """Answer all at once, or one by one."""
        return sum(len(answer) for group in _groups(workload) for answer in self.answers(group))

    def answers(self, requests: Sequence[PlannedRequest]) -> list[list[int]]:
        """Return the tokens of every answer.

        Raises:
            RuntimeError: a request failed.
        """
        params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=request.max_tokens) for request in requests]
        completions = self.llm.generate([request.prompt for request in requests], params, use_tqdm=False)
        for completion in completions:
            if completion.error:
                raise RuntimeError(f"a request failed: {completion.error.message}")
        return [completion.token_ids for completion in completions]


class Transformers:
    """`transformers`: `generate`, padded on the left where prompts are of several lengths."""

    name = "transformers"

    def __init__(self, folder: Path, *, device: str) -> None:
        """Load the checkpoint in `folder`, in its own dtype."""
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 - it takes seconds

        self._device = torch.device(device)
        load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
        self._model = load(folder, dtype="auto").to(self._device)
        self._model.generation_config.eos_token_id = None  # answers run to their full length
        self._model.generation_config.pad_token_id = 0
        self.dtype: torch.dtype = self._model.dtype
        self.attention: str = self._model.config._attn_implementation  # noqa: SLF001 - it has no public name

    def run(self, workload: Workload) -> int:
        """Answer in one padded batch, or one by one."""
        return sum(len(row) for group in _groups(workload) for row in self._cut(group, self._generate(group)))

    def judged_answers(self, requests: Sequence[PlannedRequest]) -> list[JudgedAnswer]:
        """Return the tokens of every answer with their margins, from one padded batch."""
        found = self._generate(requests, output_logits=True, return_dict_in_generate=True)
        margins = torch.stack([_margins(logits) for logits in found.logits], dim=1).tolist()
        return [
            JudgedAnswer(token_ids=answer, margins=row[: len(answer)])
            for answer, row in zip(self._cut(requests, found.sequences), margins, strict=True)
        ]

    def _generate(self, requests: Sequence[PlannedRequest], **options: Any) -> Any:
        longest = max(len(request.prompt) for request in requests)
        ids, mask = torch.zeros(2, len(requests), longest, dtype=torch.long)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        with torch.inference_mode():
            return self._model.generate(
                ids.to(self._device),
                attention_mask=mask.to(self._device),
                max_new_tokens=max(request.max_tokens for request in requests),
                do_sample=False,
                **options,
            )

    @staticmethod
    def _cut(requests: Sequence[PlannedRequest], sequences: torch.Tensor) -> list[list[int]]:
        longest = max(len(request.prompt) for request in requests)
        answers: list[list[int]] = sequences[:, longest:].tolist()
        return [answer[: request.max_tokens] for answer, request in zip(answers, requests, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """One workload's turns: seconds and generated tokens of each, by side, ours first."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    num_tokens: dict[str, list[int]] = field(default_factory=dict)

    def add(self, side: str, *, seconds: float, num_tokens: int) -> None:
        """Keep one side's turn."""
        self.seconds.setdefault(side, []).append(seconds)
        self.num_tokens.setdefault(side, []).append(num_tokens)

    @property
    def rates(self) -> dict[str, list[float]]:
        """Tokens per second of every turn, by side."""
        return {
            side: [count / took for count, took in zip(self.num_tokens[side], seconds, strict=True)]
            for side, seconds in self.seconds.items()
        }

    @property
    def ratio(self) -> float:
        """Our median rate over the peer's."""
        ours, peer = map(statistics.median, self.rates.values())
        return ours / peer

    @property
    def ratios(self) -> list[float]:
        """Our rate over the peer's, turn by turn."""
        return [ours / peer for ours, peer in zip(*self.rates.values(), strict=True)]

    def as_json(self) -> dict[str, Any]:
        """Return what is saved."""
        return {
            "name": self.name,
            "tokens_per_s": self.rates,
            "num_tokens": self.num_tokens,
            "ratio": self.ratio,
            "ratios": self.ratios,
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print a table and save the result."""
    args = read_arguments(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder = resolve_checkpoint(args.model) if args.model else write_checkpoint(args.shape, Path(made))
        ours = Ours(folder, device=args.device, max_batch_size=max(1, args.requests))
        peer = Transformers(folder, device=args.device)
    vocab_size = ours.llm.info.vocab_size
    parts = [(args.requests, False), (args.one_by_one, True)]
    plans = [planner(args, count, vocab_size, is_closed_loop=one_by_one) for count, one_by_one in parts if count]
    found = [alternate((ours, peer), plan, rounds=args.rounds) for plan in plans]
    requests = plans[0](0).requests
    agreement = compare_tokens(ours.answers(requests), peer.judged_answers(requests), tolerance=TOLERANCES[peer.dtype])
    model = args.model or f"{args.shape}, random weights"
    print(f"\n{model} on {args.device}; 32-1024 prompt tokens times {args.scale:g}, {args.answer_tokens} new ones.\n")
    print(report(found))
    print(f"\n{agreement}")
    if not args.quick:
        info = {name: getattr(ours.llm.info, name) for name in ours.llm.info.__struct_fields__}
        theirs = {"version": version("transformers"), "attention": peer.attention, "dtype": str(peer.dtype)}
        result = {
            "model": args.model or args.shape,
            "workload": {"requests": args.requests, "scale": args.scale, "answer_tokens": args.answer_tokens},
            "sides": {ours.name: info, peer.name: theirs},
            "turns": [turns.as_json() for turns in found],
            "agreement": agreement.as_json(),
        }
        save(f"compare-transformers-{Path(args.model or args.shape).name}", result, args.out)


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked."""
    parser = argument_parser(__doc__, quick="one turn at a quarter of the lengths")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smollm-135m", help="with random weights")
    parser.add_argument("--model", help="folder or Hub id of a checkpoint, in place of `--shape`")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--requests", type=int, default=16, help="prompts at once; 0 leaves this part out")
    parser.add_argument("--one-by-one", type=int, default=4, help="prompts one after another; 0 leaves this part out")
    parser.add_argument("--scale", type=float, help="factor on the prompts' 32-1024 tokens; on a CPU a quarter")
    parser.add_argument("--answer-tokens", type=int, default=32, help="of every answer")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides, after a warm-up")
    args = parser.parse_args(arguments)
    if not args.requests and not args.one_by_one:
        parser.error("`--requests` and `--one-by-one` are both 0: nothing is left to compare")
    args.scale = args.scale or (CPU_SCALE if args.device == "cpu" else 1.0)
    if args.quick:
        args.rounds, args.scale, args.answer_tokens = 1, args.scale / 4, max(1, args.answer_tokens // 4)
    return args


def planner(
    args: argparse.Namespace, num_requests: int, vocab_size: int, *, is_closed_loop: bool
) -> Callable[[int], Workload]:
    """Return what makes a round's prompts, those of the workload `mixed`, with answers all of one length."""

    def plan(contents: int) -> Workload:
        workload = make_workload(
            "mixed", scale=args.scale, contents=contents, vocab_size=vocab_size, num_requests=num_requests
        )
        requests = tuple(replace(request, max_tokens=args.answer_tokens) for request in workload.requests)
        name = f"{num_requests} {'one by one' if is_closed_loop else 'at once'}"
        return replace(workload, name=name, requests=requests, is_closed_loop=is_closed_loop)

    return plan


def alternate(sides: Sequence[Side], plan: Callable[[int], Workload], *, rounds: int) -> Turns:
    """Run all sides in turns, each round in the other order, after a warm-up that does not count."""
    warm_up = plan(WARM_UP_CONTENTS)
    for side in sides:
        side.run(warm_up)
    turns = Turns(name=warm_up.name)
    for number in range(rounds):
        workload = plan(number)
        print(f"{turns.name}: round {number + 1} of {rounds}", file=sys.stderr)
        for side in sides if number % 2 == 0 else reversed(sides):
            started_s = time.perf_counter()
            num_tokens = side.run(workload)
            turns.add(side.name, seconds=time.perf_counter() - started_s, num_tokens=num_tokens)
    return turns


def report(found: Sequence[Turns]) -> str:
    """Return the table, and what makes a comparison unfair."""
    names = list(found[0].seconds)
    head = ["prompts", *(f"{name}, output tokens/s" for name in names), "ratio", "slowest - fastest round"]
    rows = [
        [
            turns.name,
            *(f"{statistics.median(rates):.1f}" for rates in turns.rates.values()),
            f"{turns.ratio:.2f}",
            f"{min(turns.ratios):.2f} - {max(turns.ratios):.2f}",
        ]
        for turns in found
    ]
    return table(head, rows)


def _groups(workload: Workload) -> list[Sequence[PlannedRequest]]:
    return [[request] for request in workload.requests] if workload.is_closed_loop else [workload.requests]


def _margins(logits: torch.Tensor) -> torch.Tensor:
    """Return [sequences]: the best logit above the next one, in standard deviations of all."""
    logits = logits.float()
    best = logits.topk(2, dim=-1).values
    return (best[:, 0] - best[:, 1]) / logits.std(dim=-1)

"""Ours and a peer that is installed or running here: the same checkpoint, the same prompts, turn by turn.

`transformers` runs in this process, beside `LLM`; its `generate` gets all prompts padded on the left, or one at a time.
Any other peer is a server with an OpenAI-compatible URL, which the user has started on the same checkpoint; ours is
started as a server too, and both are asked by the same client.

    uv run python benchmarks/compare.py
    uv run python benchmarks/compare.py --model CHECKPOINT --peer-url http://127.0.0.1:8080 --peer-name vllm

Every answer is greedy and has the same number of tokens on both sides. Every turn has prompts of its own, and the side
that goes first alternates; the ratio is that of the medians, its spread that of the turns' own ratios.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from agreement import TOLERANCES, TextAgreement, TokenAgreement, compare_texts, compare_tokens
from compare_sides import Ours, OverHttp, Side, Transformers
from infer_models import ModelConfig
from infer_models.hub import resolve_checkpoint
from own_server import serving
from report import ROOT, save
from request_dialects import CHAT, PLAIN, TEXT, TOKEN_IDS, Dialect
from shapes import SHAPES, write_shape
from workloads import Workload, make_workload

CPU_SCALE = 0.25
COMMON_VOCAB_SIZE = 512
"""Prompts to servers are of these ids: those at an embedding's end may be padding that no tokenizer knows."""
WARM_UP_CONTENTS = 1_000_000
"""Prompts that no measured turn has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """One workload's turns.

    Attributes:
        name: how the table calls it.
        seconds: of every turn, by side, ours first.
        num_tokens: generated in every turn, by side.
    """

    name: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    num_tokens: dict[str, list[int]] = field(default_factory=dict)

    def add(self, side: str, *, seconds: float, num_tokens: int) -> None:
        """Keep one side's turn."""
        self.seconds.setdefault(side, []).append(seconds)
        self.num_tokens.setdefault(side, []).append(num_tokens)

    def rates(self, side: str) -> list[float]:
        """Return tokens per second, of every turn."""
        return [count / took for count, took in zip(self.num_tokens[side], self.seconds[side], strict=True)]

    def ratio(self, ours: str, peer: str) -> float:
        """Return our median rate over the peer's."""
        return statistics.median(self.rates(ours)) / statistics.median(self.rates(peer))

    def ratios(self, ours: str, peer: str) -> list[float]:
        """Return our rate over the peer's, turn by turn."""
        return [own / other for own, other in zip(self.rates(ours), self.rates(peer), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two sides on one checkpoint.

    Attributes:
        ours: the first side.
        peer: the second one.
        vocab_size: prompts are token ids below.
        agree: compares the greedy answers of both.
    """

    ours: Side
    peer: Side
    vocab_size: int
    agree: Callable[[Workload], TokenAgreement | TextAgreement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is asked of both sides: so many prompts, one after another in a closed loop, else all at once."""

    num_requests: int
    is_closed_loop: bool

    @property
    def name(self) -> str:
        """How the table calls it."""
        return f"{self.num_requests} {'one by one' if self.is_closed_loop else 'at once'}"


def main(arguments: list[str] | None = None) -> list[Turns]:
    """Compare, print a table, save the result and return it."""
    args = read_arguments(arguments)
    with pair_of(args) as pair:
        found = [
            alternate(part.name, (pair.ours, pair.peer), partial(plan, args, part, pair.vocab_size), rounds=args.rounds)
            for part in parts_of(args)
        ]
        agreement = pair.agree(plan(args, parts_of(args)[0], pair.vocab_size, 0))
        sides = {side.name: side.describe() for side in (pair.ours, pair.peer)}
    print_report(args, found, ours=pair.ours.name, peer=pair.peer.name)
    print(f"\n{agreement}")
    if not args.quick:
        result = {
            "model": args.model or args.shape,
            "workload": {"requests": args.requests, "scale": args.scale, "answer_tokens": args.answer_tokens},
            "sides": sides,
            "serve": args.serve,
            "turns": [result_of(turns, ours=pair.ours.name, peer=pair.peer.name) for turns in found],
            "agreement": agreement.as_json(),
        }
        print("saved", save(f"compare-{pair.peer.name}-{Path(args.model or args.shape).name}", result, args.out))
    return found


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smollm-135m", help="with random weights")
    parser.add_argument("--model", help="folder or Hub id of a checkpoint, in place of `--shape`")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--requests", type=int, default=16, help="prompts at once; 0 leaves this part out")
    parser.add_argument("--one-by-one", type=int, default=4, help="prompts one after another; 0 leaves this part out")
    parser.add_argument("--scale", type=float, help="factor on the prompts' 32-1024 tokens; on a CPU a quarter")
    parser.add_argument("--answer-tokens", type=int, default=32, help="of every answer")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides, after a warm-up")
    parser.add_argument("--peer-url", help="of a server with the same checkpoint; left out: `transformers`, here")
    parser.add_argument("--peer-name", default="peer", help="how the report calls that server")
    parser.add_argument("--peer-model", help="the model's name in requests to it; left out: none is sent")
    parser.add_argument("--api-key", help="of that server")
    parser.add_argument("--api", choices=("completions", "chat"), default="completions")
    parser.add_argument("--prompt-as-text", action="store_true", help="words in place of token ids, to both sides")
    parser.add_argument("--plain", action="store_true", help="send neither `ignore_eos` nor `temperature`")
    parser.add_argument("--quick", action="store_true", help="one turn at a quarter of the lengths; result not saved")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of our server; must come last")
    args = parser.parse_args(arguments)
    if args.serve and not args.peer_url:
        parser.error("`--serve` is for our server, which only `--peer-url` starts")
    if not args.requests and not args.one_by_one:
        parser.error("`--requests` and `--one-by-one` are both 0: nothing is left to compare")
    if args.peer_url and not args.model:
        parser.error("`--peer-url` needs `--model`, the checkpoint that the peer serves")
    args.scale = args.scale or (CPU_SCALE if args.device == "cpu" else 1.0)
    if args.quick:
        args.rounds, args.scale, args.answer_tokens = 1, args.scale / 4, max(1, args.answer_tokens // 4)
    return args


@contextmanager
def pair_of(args: argparse.Namespace) -> Iterator[Pair]:
    """Yield both sides, ready."""
    with tempfile.TemporaryDirectory() as made:
        folder = resolve_checkpoint(args.model) if args.model else make_checkpoint(args.shape, Path(made))
        if args.peer_url is None:
            yield in_process(args, folder)
            return
        vocab_size = min(COMMON_VOCAB_SIZE, ModelConfig.from_folder(folder).vocab_size)
        with serving(["--model", str(folder), "--device", args.device, *args.serve]) as own:
            ours = OverHttp("infer", own.url, model=None, dialect=dialect_of(args))
            peer = OverHttp(
                args.peer_name, args.peer_url, model=args.peer_model, dialect=dialect_of(args), api_key=args.api_key
            )

            def agree(workload: Workload) -> TextAgreement:
                return compare_texts(ours.texts(workload), peer.texts(workload))

            yield Pair(ours=ours, peer=peer, vocab_size=vocab_size, agree=agree)


def in_process(args: argparse.Namespace, folder: Path) -> Pair:
    """Return `LLM` and `transformers`, loaded from `folder`."""
    ours = Ours(folder, device=args.device, max_batch_size=max(1, args.requests))
    peer = Transformers(folder, device=args.device)

    def agree(workload: Workload) -> TokenAgreement:
        tolerance = TOLERANCES[peer.dtype]
        return compare_tokens(ours.answers(workload), peer.judged_answers(workload), tolerance=tolerance)

    return Pair(ours=ours, peer=peer, vocab_size=ours.vocab_size, agree=agree)


def make_checkpoint(shape: str, folder: Path) -> Path:
    """Save a checkpoint with random weights of `shape` and a word for each token into `folder`, and return it.

    Matrices keep the scale of what they multiply: the best candidates of a position are then no ties.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - it takes seconds

    print(f"making a random {shape}", file=sys.stderr)
    config = AutoConfig.from_pretrained(write_shape(shape, folder))
    make: Callable[..., Any] = AutoModelForCausalLM.from_config
    model = make(config, dtype=getattr(torch, SHAPES[shape]["torch_dtype"]))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{token_id}": token_id for token_id in range(config.vocab_size)}))
    words.save(str(folder / "tokenizer.json"))
    return folder


def dialect_of(args: argparse.Namespace) -> Dialect:
    """Return how requests are put to both servers."""
    dialect = CHAT if args.api == "chat" else TEXT if args.prompt_as_text else TOKEN_IDS
    return replace(dialect, extras=PLAIN) if args.plain else dialect


def parts_of(args: argparse.Namespace) -> list[Part]:
    """Return what is compared, in order."""
    parts = (
        Part(num_requests=args.requests, is_closed_loop=False),
        Part(num_requests=args.one_by_one, is_closed_loop=True),
    )
    return [part for part in parts if part.num_requests]


def plan(args: argparse.Namespace, part: Part, vocab_size: int, contents: int) -> Workload:
    """Return prompts of the workload `mixed`, drawn anew for each `contents`, with answers all of one length."""
    workload = make_workload(
        "mixed", scale=args.scale, contents=contents, vocab_size=vocab_size, num_requests=part.num_requests
    )
    requests = tuple(replace(request, max_tokens=args.answer_tokens) for request in workload.requests)
    return replace(workload, requests=requests, is_closed_loop=part.is_closed_loop)


def alternate(name: str, sides: Sequence[Side], make: Callable[[int], Workload], *, rounds: int) -> Turns:
    """Run all sides in turns, each round in the other order, after a warm-up that does not count.

    Args:
        name: of the result.
        sides: who takes part.
        make: gives a round's workload, by its number.
        rounds: that count.
    """
    turns = Turns(name=name)
    for side in sides:
        side.run(make(WARM_UP_CONTENTS))
    for number in range(rounds):
        workload = make(number)
        print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr)
        for side in sides if number % 2 == 0 else reversed(sides):
            started_s = time.perf_counter()
            num_tokens = side.run(workload)
            turns.add(side.name, seconds=time.perf_counter() - started_s, num_tokens=num_tokens)
    return turns


def result_of(turns: Turns, *, ours: str, peer: str) -> dict[str, Any]:
    """Return what is saved of `turns`."""
    return {
        "name": turns.name,
        "tokens_per_s": {side: turns.rates(side) for side in (ours, peer)},
        "num_tokens": turns.num_tokens,
        "ratio": turns.ratio(ours, peer),
        "ratios": turns.ratios(ours, peer),
    }


def print_report(args: argparse.Namespace, found: Sequence[Turns], *, ours: str, peer: str) -> None:
    """Print the table, and what makes a comparison unfair."""
    model = args.model or f"{args.shape}, random weights"
    print(f"\n{model} on {args.device}; 32-1024 prompt tokens times {args.scale:g}, {args.answer_tokens} new ones.\n")
    print(f"| prompts | {ours}, output tokens/s | {peer}, output tokens/s | ratio | slowest - fastest round |")
    print("|---|---|---|---|---|")
    for turns in found:
        ratios = turns.ratios(ours, peer)
        rates = " | ".join(f"{statistics.median(turns.rates(side)):.1f}" for side in (ours, peer))
        print(f"| {turns.name} | {rates} | {turns.ratio(ours, peer):.2f} | {min(ratios):.2f} - {max(ratios):.2f} |")
    for turns in found:
        if turns.num_tokens[ours] != turns.num_tokens[peer]:
            print(f"\n{turns.name}: unlike numbers of tokens, rates are of each side's own: {turns.num_tokens}")


if __name__ == "__main__":
    main()

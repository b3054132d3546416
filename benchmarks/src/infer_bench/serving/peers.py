"""Our server and others that run on this machine: the same checkpoint, the same prompts, round by round.

    uv run infer-bench write-checkpoint llama-135m-8k /tmp/llama-135m-8k
    uv run infer-bench peers --model /tmp/llama-135m-8k --peer vllm=http://127.0.0.1:8101 \
        --peer llama.cpp=http://127.0.0.1:8102
    uv run infer-bench peers --demo

Ours is started for this. Sides answer one after another, each after a pause: a side's threads may spin on for a while
after its last answer, and the next one is to have the machine to itself. The order turns with every round. On a CPU the
dense layers are timed alone between the rounds (`cpu-floor`), with all servers idle and the variables of our server's
process: a step of these products cannot be shorter. Our server's idle memory is that of its processes before the first
request; of the KV cache nothing is written then. The texts of the warm-up are compared, as margins are not known.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infer_bench.agreement import TextAgreement, compare_texts
from infer_bench.client.dialects import TOKEN_IDS, Dialect, add_dialect_flags, chosen_dialect
from infer_bench.client.load import RequestResult, run_workload
from infer_bench.client.workloads import Workload
from infer_bench.cpu.floor import floor_process
from infer_bench.results import argument_parser, save, table
from infer_bench.server.launch import serving
from infer_bench.server.processes import core_environment, processes_behind, resident_memory
from infer_bench.serving.peer_rounds import Comparison, Plan, batch_rate, median_and_spread, stream_rate, turn_of
from infer_models import ModelConfig
from infer_models.hub import resolve_checkpoint

OURS = "infer"
DEMO_STREAMS = 32
WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A server that is compared.

    Attributes:
        name: in the table.
        url: without `/v1`.
        model: its name in requests; None: none is sent.
        dialect: how requests are put.
        api_key: sent as a bearer token.
    """

    name: str
    url: str
    model: str | None = None
    dialect: Dialect = TOKEN_IDS
    api_key: str | None = None

    def ask(self, workload: Workload) -> list[RequestResult]:
        """Send all requests at once and wait for every answer, whole.

        Raises:
            RuntimeError: a request failed, or its answer has another length than was asked for.
        """
        results = asyncio.run(
            run_workload(
                self.url, workload, model=self.model, progress=False, dialect=self.dialect, api_key=self.api_key
            )
        )
        for request, result in zip(workload.requests, results, strict=True):
            if result.error is not None:
                raise RuntimeError(f"{self.name} at {self.url}: {result.error}")
            if "ignore_eos" in self.dialect.extras and result.num_tokens != request.max_tokens:
                raise RuntimeError(
                    f"{self.name} at {self.url} counts {result.num_tokens} tokens in an answer of "
                    f"{request.max_tokens}; it must know `ignore_eos` and `stream_options.include_usage`, or use "
                    "`--plain`"
                )
        return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print the tables and save the result."""
    args = read_arguments(arguments)
    if args.demo:
        result, name = measure_demo(args), "demo"
    else:
        comparison, agreements = compare(args)
        print(comparison.tables())
        for peer, agreement in agreements.items():
            print(f"\n{OURS} and {peer}: {agreement}")
        result, name = comparison.as_json(), Path(args.model).resolve().name
        result["agreements"] = {peer: agreement.as_json() for peer, agreement in agreements.items()}
    result |= {"scale": args.scale, "serve": args.serve, "peers": {peer.name: peer.url for peer in args.peer}}
    save(f"peers-{name}", result, args.out)


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked; each peer as a `Side`."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", help="folder or Hub id of the checkpoint that all sides serve")
    parser.add_argument("--demo", action="store_true", help="our server alone, with the demo model")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL[,MODEL]", help="may be repeated")
    parser.add_argument("--device", default="cpu", help="of our server; the dense layers are timed on `cpu` alone")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every side, after a warm-up")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds before every side's turn")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompts and answers")
    parser.add_argument("--api-key", help="of the peers")
    add_dialect_flags(parser)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of our server; must come last")
    args = parser.parse_args(arguments)
    if bool(args.model) == args.demo:
        parser.error("give one of `--model` and `--demo`")
    if args.peer and not args.model:
        parser.error("`--peer` needs `--model`, the checkpoint that the peer serves")
    for name, is_allowed in (("pause", args.pause >= 0), ("rounds", args.rounds >= 1), ("scale", args.scale > 0)):
        if not is_allowed:
            parser.error(f"`--{name}` is {getattr(args, name):g}, which is too little")
    try:
        args.peer = [parse_peer(text, chosen_dialect(args), args.api_key) for text in args.peer]
    except ValueError as error:
        parser.error(str(error))
    names = [OURS, *(peer.name for peer in args.peer)]
    if len(set(names)) < len(names):
        parser.error(f"sides are {', '.join(names)}; every `--peer` needs a name of its own, other than `{OURS}`")
    return args


def parse_peer(text: str, dialect: Dialect = TOKEN_IDS, api_key: str | None = None) -> Side:
    """Return the peer that `text`, NAME=URL[,MODEL], means.

    Raises:
        ValueError: it means none.
    """
    name, _, rest = text.partition("=")
    url, _, model = rest.partition(",")
    if not name or not url.startswith(("http://", "https://")):
        raise ValueError(f"`{text}` is no NAME=URL[,MODEL], such as vllm=http://127.0.0.1:8101")
    url = url.rstrip("/").removesuffix("/v1")
    return Side(name=name, url=url, model=model or None, dialect=dialect, api_key=api_key)


def compare(args: argparse.Namespace) -> tuple[Comparison, dict[str, TextAgreement]]:
    """Start our server and let all sides take their turns; return these, and how far each peer's texts agree."""
    folder = resolve_checkpoint(args.model)
    plan = Plan(vocab_size=ModelConfig.from_folder(folder).vocab_size, scale=args.scale)
    with ExitStack() as stack:
        own = stack.enter_context(serving(["--model", str(folder), "--device", args.device, *args.serve]))
        processes = processes_behind(own.url)
        comparison = Comparison(
            plan=plan,
            idle=resident_memory(processes),
            weight_bytes=sum(path.stat().st_size for path in folder.glob("*.safetensors")),
        )
        sides = [Side(name=OURS, url=own.url, dialect=chosen_dialect(args)), *args.peer]
        floor = None
        if args.device == "cpu":
            floor = stack.enter_context(floor_process(folder, environment=core_environment(processes)))
        texts = {}
        for side in sides:
            texts[side.name] = [result.text for result in side.ask(plan.batch(WARM_UP))]
            turn_of(side.ask, plan, contents=WARM_UP)
            comparison.turns[side.name] = []
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
            if floor is not None:
                comparison.floors.append(floor.measure())
            for side in sides if number % 2 == 0 else reversed(sides):
                time.sleep(args.pause)
                comparison.turns[side.name].append(turn_of(side.ask, plan, contents=f"{number}"))
    return comparison, {peer.name: compare_texts(texts[OURS], texts[peer.name]) for peer in args.peer}


def measure_demo(args: argparse.Namespace) -> dict[str, Any]:
    """Print and return what our server reaches with the demo model."""
    plan = Plan(vocab_size=ModelConfig.from_folder(resolve_checkpoint(None)).vocab_size, scale=args.scale)
    with serving(["--device", args.device, *args.serve]) as own:
        side = Side(name=OURS, url=own.url)
        demo_turn(side, plan, contents=WARM_UP)
        rounds = [demo_turn(side, plan, contents=f"{number}") for number in range(args.rounds)]
    found = {name: [each[name] for each in rounds] for name in rounds[0]}
    print(table(["the demo model", OURS], [[name, median_and_spread(values)] for name, values in found.items()]))
    return {"rounds": found, "medians": {name: statistics.median(values) for name, values in found.items()}}


def demo_turn(side: Side, plan: Plan, *, contents: str) -> dict[str, float]:
    """Return one round's numbers."""
    (first,) = side.ask(plan.requests([16], 2, contents=f"first {contents}"))
    (stream,) = side.ask(plan.requests([16], plan.scaled(256), contents=f"stream {contents}"))
    streams = side.ask(plan.requests([16] * DEMO_STREAMS, plan.scaled(128), contents=f"streams {contents}"))
    return {
        "first token, ms": 1e3 * (first.token_times_s[0] - first.sent_s),
        "one stream, tokens/s": stream_rate(stream),
        f"{DEMO_STREAMS} streams, tokens/s": batch_rate(streams),
    }

"""Our server and others on the same checkpoint and machine, in alternating rounds, one server alive at a time.

    uv run infer-bench write-checkpoint llama-135m-8k CHECKPOINT
    uv run infer-bench peers --model CHECKPOINT \
        --peer "vllm=vllm serve CHECKPOINT --port {port}" \
        --peer "llama.cpp=llama-server -m CHECKPOINT.gguf --port {port} --parallel 16"
    uv run infer-bench quantized-peers --model CHECKPOINT \
        --peer int8 "llama.cpp Q8_0" "llama-server -m Q8_0.gguf --port {port} --parallel 16" \
        --peer int4 "llama.cpp Q4_0" "llama-server -m Q4_0.gguf --port {port} --parallel 16"

In its turn a side's server is started, warmed up, asked, and ended, so that it has the machine to itself:

    W         16 requests at once, prompts of 32 to 256 tokens, 64 new tokens each
    stream    five requests, each alone, 64 tokens in and 128 out; the median
    prefill   one prompt of 1024 tokens, up to its first token
    start     from the command to `/health`; the first round's may read files that the system has not cached
    memory    of all its processes before the first request, of `peers` less the checkpoint's weights

Greedy, to the full length. Lengths are the same in every turn, contents never, so that no prefix cache finds anything.
The order turns with every round. The texts of the warm-up are compared, as margins are not known. A peer's command
names a program of its own environment, `env NAME=VALUE program ...` with variables; it must answer `/health` once it is
ready, and take token ids and `ignore_eos`.

Of `quantized-peers` our sides serve the checkpoint as it is (`none`) and quantized while it is read, a peer a file that
its own tools made of it. Each of our sides is compared with `none`, and with the peers named for it.
"""

import argparse
import asyncio
import contextlib
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from random import Random

import httpx

from infer_bench.agreement import compare_texts
from infer_bench.client.load import RequestResult, run_workload
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.processes import ended_with_all
from infer_bench.results import argument_parser, medians, save, table
from infer_bench.server.metrics import describe, served_model
from infer_bench.server.processes import processes_behind, resident_memory
from infer_bench.shapes import NO_DRAFTS_FLAGS
from infer_models.hub import resolve_checkpoint

OURS, PLAIN = "infer", "none"
"""What our side is called, and the scheme of weights as the checkpoint has them."""
TOKEN_IDS = range(3, 512)
"""Tokens of prompts: below are special tokens; every vocabulary has these."""
STREAMS = 5
"""Requests, one after another, of which the median is a turn's rate of one stream."""
IDLE_MEMORY, ALL_MEMORY = "idle memory over the weights, GB", "idle memory, GB"

Command = list[str]
Turn = dict[str, float]
"""What one side did in one round: of rates more is better, of milliseconds less is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The measurements of all sides.

    Attributes:
        commands: commands of the servers, with `{port}`, by side.
        turns: every round, by side.
        texts: the answers of the warm-up, by side.
    """

    commands: Mapping[str, Sequence[str]]
    turns: dict[str, list[Turn]]
    texts: dict[str, list[str]]

    @property
    def medians(self) -> dict[str, Turn]:
        """The median of every number, by side."""
        return {side: medians(found) for side, found in self.turns.items()}

    def as_json(self, scale: float) -> dict[str, object]:
        """The saved result of every race."""
        commands = {side: shlex.join(command) for side, command in self.commands.items()}
        return {"scale": scale, "commands": commands, "turns": self.turns, "medians": self.medians}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare ours with peers, print the tables and save the result."""
    args = read_arguments(arguments)
    folder = resolve_checkpoint(args.model)
    files = [folder] if folder.is_file() else folder.glob("*.safetensors")
    weights = sum(file.stat().st_size for file in files)
    race = run_race(
        {OURS: own_command(folder, PLAIN, args), **args.peer},
        args,
        idle=lambda url: {IDLE_MEMORY: (idle_bytes(url) - weights) / 1e9},
    )
    print(f"\n{tables(race.turns)}")
    agreements = {peer: compare_texts(race.texts[OURS], race.texts[peer]) for peer in args.peer}
    for peer, agreement in agreements.items():
        print(f"\n{OURS} and {peer}: {agreement}")
    if not args.quick:
        found = {"agreements": {peer: agreement.as_json() for peer, agreement in agreements.items()}}
        save(args.name or f"peers-{Path(args.model).resolve().name}", race.as_json(args.scale) | found, args.out)


def main_of_quantized(arguments: Sequence[str] | None = None) -> None:
    """Compare our quantized weights with none and with peers' own, print the tables and save the result."""
    args = read_quantized_arguments(arguments)
    folder = resolve_checkpoint(args.model)
    commands = {ours(scheme): own_command(folder, scheme, args) for scheme in args.schemes}
    for peers in args.peer.values():
        commands |= peers
    race = run_race(commands, args, idle=lambda url: {ALL_MEMORY: idle_bytes(url) / 1e9})
    compared = {f"{own} / {other}": (own, other) for own, other in pairs(args.schemes, args.peer)}
    better = compare(race, compared)
    print(f"\n{spread_table(race.turns)}")
    if better:
        print(f"\n{ratio_table('times better', better)}")
    if not args.quick:
        agreements = {
            title: compare_texts(race.texts[own], race.texts[other]).as_json()
            for title, (own, other) in compared.items()
        }
        found = {"ratios": better, "agreements": agreements}
        save(f"quantized-peers-{Path(args.model).resolve().name}", race.as_json(args.scale) | found, args.out)


def run_race(commands: Mapping[str, Sequence[str]], args: argparse.Namespace, *, idle: Callable[[str], Turn]) -> Race:
    """Let every side take its turn in every round, alone on the machine; the order turns with every round.

    Args:
        commands: commands of the servers, with `{port}`, by side.
        args: has `rounds`, the turns of every side, `scale`, the factor on lengths, and `start_s`.
        idle: what to note of a server, given its URL, before it is asked.

    Raises:
        RuntimeError: a server did not start, or did not answer as it was asked to.
    """
    race = Race(commands=commands, turns={side: [] for side in commands}, texts={})
    for number in range(args.rounds):
        for side in commands if number % 2 == 0 else reversed(list(commands)):
            print(f"round {number + 1} of {args.rounds}: {side}", file=sys.stderr)
            began_s = time.monotonic()
            with running(commands[side], start_s=args.start_s) as url:
                noted = {"start, s": time.monotonic() - began_s, **idle(url)}
                warm_up = asyncio.run(ask(url, batch("warm-up", args.scale)))
                take_turn(url, "warm-up", args.scale)
                race.turns[side].append(take_turn(url, f"{number}", args.scale) | noted)
            race.texts.setdefault(side, [result.text for result in warm_up])
    return race


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the flags of `peers`, checked; `peer` becomes commands by name."""
    parser = _parser()
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="may be repeated")
    parser.add_argument("--name", help="of the result, without `.json`; left out: `peers-` and the checkpoint's")
    args = _checked(parser, arguments)
    peers: dict[str, Command] = {}
    for text in args.peer:
        name, _, command = text.partition("=")
        if "{port}" not in command or name in (OURS, *peers):
            parser.error(f"`--peer {text}` is no NAME=COMMAND with a name of its own and `{{port}}` in the command")
        peers[name] = shlex.split(command)
    args.peer, args.scheme_flags = peers, ""
    return args


def read_quantized_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the flags of `quantized-peers`, checked; `peer` becomes commands by scheme and name."""
    parser = _parser()
    parser.add_argument("--schemes", nargs="+", default=[PLAIN, "int8", "int4"], help="of our server, one side each")
    parser.add_argument(
        "--peer",
        nargs=3,
        action="append",
        default=[],
        metavar=("SCHEME", "NAME", "COMMAND"),
        help="a server to compare that scheme with; may be repeated",
    )
    parser.add_argument(
        "--scheme-flags", default="--quantization {scheme}", help="what makes our server quantize; nothing for `none`"
    )
    args = _checked(parser, arguments)
    args.schemes = list(dict.fromkeys(args.schemes))
    names = {ours(scheme) for scheme in args.schemes}
    peers: dict[str, dict[str, Command]] = {}
    for scheme, name, command in args.peer:
        if scheme not in args.schemes:
            parser.error(f"`--peer {scheme}` is none of the schemes {', '.join(args.schemes)}")
        if "{port}" not in command or name in names:
            parser.error(f"`--peer {scheme} {name}` needs a name of its own, and `{{port}}` in its command")
        names.add(name)
        peers.setdefault(scheme, {})[name] = shlex.split(command)
    args.peer = peers
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__, quick="one round at a tenth of the lengths", rounds=5)
    parser.add_argument("--model", required=True, help="folder or Hub id of the checkpoint that all sides serve")
    parser.add_argument("--device", default="auto", help="of our server")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompts and answers")
    parser.add_argument("--start-s", type=float, default=600.0, help="seconds that a server has to start")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of our server; must come last")
    return parser


def _checked(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    args = parser.parse_args(arguments)
    if args.rounds < 1 or args.scale <= 0:
        parser.error(f"`--rounds` is {args.rounds} and `--scale` is {args.scale:g}; both must be positive")
    if args.quick:
        args.rounds, args.scale = 1, args.scale / 10
    return args


def ours(scheme: str) -> str:
    """Return what the side is called that serves with `scheme`."""
    return f"{OURS} {scheme}"


def own_command(folder: Path, scheme: str, args: argparse.Namespace) -> Command:
    """Return how our server is started with `scheme`."""
    flags = [] if scheme == PLAIN else shlex.split(args.scheme_flags.replace("{scheme}", scheme))
    server = [sys.executable, "-m", "infer_server", "--model", str(folder), "--device", args.device]
    drafts = [] if "--speculative-config" in args.serve else NO_DRAFTS_FLAGS
    return [*server, "--no-access-log", "--port", "{port}", *drafts, *flags, *args.serve]


def pairs(schemes: Sequence[str], peers: Mapping[str, Mapping[str, Command]]) -> list[tuple[str, str]]:
    """Return which of our sides are compared with which others: first with ours as it is, then with their peers."""
    found = [(ours(scheme), ours(PLAIN)) for scheme in schemes if scheme != PLAIN and PLAIN in schemes]
    return found + [(ours(scheme), name) for scheme in schemes for name in peers.get(scheme, ())]


def compare(race: Race, compared: Mapping[str, tuple[str, str]]) -> dict[str, Turn]:
    """Return how many times better the first of each pair is, by the medians of all rounds."""
    found = race.medians
    return {title: ratios(found[own], found[other]) for title, (own, other) in compared.items()}


@contextmanager
def running(command: Sequence[str], *, start_s: float) -> Iterator[str]:
    """Start a server, yield its URL once it is ready, and end it with all its processes.

    Raises:
        RuntimeError: it ended, or was not ready within `start_s` seconds.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    words = [word.replace("{port}", port) for word in command]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - what the user named
    with ended_with_all(process), httpx.Client(base_url=url) as client:
        began_s = time.monotonic()
        while not is_ready(client):
            if process.poll() is not None or time.monotonic() - began_s > start_s:
                raise RuntimeError(f"`{shlex.join(words)}` was not ready; its exit code is {process.poll()}")
            time.sleep(0.05)
        yield url


def is_ready(client: httpx.Client) -> bool:
    """Return whether the server answers `/health` with 200."""
    with contextlib.suppress(httpx.TransportError):
        return client.get("/health").status_code == HTTPStatus.OK
    return False


def idle_bytes(url: str) -> int:
    """Return what a server that computes nothing takes, weights included."""
    return resident_memory(processes_behind(url)).total_bytes


async def ask(url: str, workload: Workload) -> list[RequestResult]:
    """Send all requests at once and wait for every answer, whole.

    Raises:
        RuntimeError: a request failed, or its answer has another length than was asked for.
    """
    model, _ = served_model(await describe(url, headers={}))
    results = await run_workload(url, workload, model=model, progress=False)
    for request, result in zip(workload.requests, results, strict=True):
        if result.error is not None or result.num_tokens != request.max_tokens:
            counted = f"{result.num_tokens} tokens came of {request.max_tokens}"
            raise RuntimeError(f"{workload.name}: {result.error or counted}")
    return results


def take_turn(url: str, contents: str, scale: float) -> Turn:
    """Ask a server everything, with prompts that `contents` draws."""
    batched = summarize(asyncio.run(ask(url, batch(contents, scale))))
    streams = [
        summarize(asyncio.run(ask(url, requests(f"stream {contents} {number}", [64], 128, scale))))
        for number in range(STREAMS)
    ]
    prefill = summarize(asyncio.run(ask(url, requests(f"prefill {contents}", [1024], 2, scale))))
    return {
        "W, tokens/s": batched["output_tokens_per_s"],
        "W, ITL p50, ms": 1e3 * batched["itl_s"]["p50"],
        "W, ITL p99, ms": 1e3 * batched["itl_s"]["p99"],
        "W, TTFT, ms": 1e3 * batched["ttft_s"]["p50"],
        "one stream, tokens/s": statistics.median(
            (stream["num_output_tokens"] - 1) / (stream["latency_s"]["mean"] - stream["ttft_s"]["mean"])
            for stream in streams
        ),
        "prefill, ms": 1e3 * prefill["ttft_s"]["mean"],
    }


def batch(contents: str, scale: float) -> Workload:
    """Return the requests of W, whose lengths are those of all published results."""
    draw = Random("cpu race")  # noqa: S311 - lengths, not a secret
    return requests(f"W {contents}", [draw.randint(32, 256) for _ in range(16)], 64, scale)


def requests(name: str, lengths: Sequence[int], num_new: int, scale: float) -> Workload:
    """Return requests with prompts of these lengths, times `scale`, all at once; `name` draws their tokens."""
    draw = Random(name)  # noqa: S311 - a workload, not a secret
    planned = [
        PlannedRequest(
            arrival_s=0.0,
            prompt=draw.choices(TOKEN_IDS, k=max(2, round(length * scale))),
            max_tokens=max(2, round(num_new * scale)),  # a rate is between two tokens
        )
        for length in lengths
    ]
    return Workload(name=name, requests=tuple(planned), is_closed_loop=False)


def ratios(ours: Turn, theirs: Turn) -> Turn:
    """Return how many times better ours is than theirs, number by number."""
    return {name: own / theirs[name] if name.endswith("/s") else theirs[name] / own for name, own in ours.items()}


def tables(turns: Mapping[str, Sequence[Turn]]) -> str:
    """Return the report in Markdown: medians with their spread, and ours over each peer's."""
    found = {side: medians(rounds) for side, rounds in turns.items()}
    better = {peer: ratios(found[OURS], found[peer]) for peer in turns if peer != OURS}
    spreads = spread_table(turns)
    return f"{spreads}\n\n{ratio_table(f'{OURS}, times better than', better)}" if better else spreads


def spread_table(turns: Mapping[str, Sequence[Turn]]) -> str:
    """Return every number's median, with the least and most of all rounds, a column for each side."""
    found = {side: medians(rounds) for side, rounds in turns.items()}
    num_rounds = max(len(rounds) for rounds in turns.values())
    rows = []
    for name in next(iter(found.values())):
        values = {side: [turn[name] for turn in rounds] for side, rounds in turns.items()}
        digits = 2 if name.endswith("GB") else 1
        cells = (
            f"{found[side][name]:.{digits}f} ({min(each):.{digits}f} - {max(each):.{digits}f})"
            for side, each in values.items()
        )
        rows.append([name, *cells])
    return table([f"median (least - most of {num_rounds} rounds)", *turns], rows)


def ratio_table(head: str, better: Mapping[str, Turn]) -> str:
    """Return a column for each of `better`: how many times better, number by number."""
    names = next(iter(better.values()))
    return table([head, *better], [[name, *(f"{each[name]:.2f}" for each in better.values())] for name in names])

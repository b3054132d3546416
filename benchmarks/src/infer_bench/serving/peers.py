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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

import httpx

from infer_bench.agreement import compare_texts
from infer_bench.client.load import RequestResult, run_workload, whole
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.results import argument_parser, in_turns, medians, save, table
from infer_bench.server.metrics import describe, served_model
from infer_bench.server.processes import ended_with_all, processes_behind, resident_memory
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare ours with peers, print the tables and save the result."""
    args = read_arguments(arguments)
    folder = resolve_checkpoint(args.model)
    files = [folder] if folder.is_file() else folder.glob("*.safetensors")
    weights = sum(file.stat().st_size for file in files)
    commands = {OURS: own_command(folder, PLAIN, args), **args.peer}
    turns, texts = run_race(commands, args, memory=IDLE_MEMORY, less_bytes=weights)
    found, agreements = medians_of(turns), {peer: compare_texts(texts[OURS], texts[peer]) for peer in args.peer}
    print(f"\n{spread_table(turns)}")
    print_ratios(f"{OURS}, times better than", {peer: ratios(found[OURS], found[peer]) for peer in args.peer})
    for peer, agreement in agreements.items():
        print(f"\n{OURS} and {peer}: {agreement}")
    result = saved_race(commands, turns, args)
    result |= {"agreements": {peer: agreement._asdict() for peer, agreement in agreements.items()}}
    save(args.name or f"peers-{Path(args.model).resolve().name}", result, args)


def main_of_quantized(arguments: Sequence[str] | None = None) -> None:
    """Compare our quantized weights with none and with peers' own, print the tables and save the result."""
    args = read_quantized_arguments(arguments)
    folder = resolve_checkpoint(args.model)
    commands = {f"{OURS} {scheme}": own_command(folder, scheme, args) for scheme in args.schemes}
    for peers in args.peer.values():
        commands |= peers
    turns, texts = run_race(commands, args, memory=ALL_MEMORY)
    found, compared = medians_of(turns), {f"{own} / {other}": (own, other) for own, other in pairs(args)}
    better = {title: ratios(found[own], found[other]) for title, (own, other) in compared.items()}
    print(f"\n{spread_table(turns)}")
    print_ratios("times better", better)
    agreements = {title: compare_texts(texts[own], texts[other])._asdict() for title, (own, other) in compared.items()}
    result = saved_race(commands, turns, args) | {"ratios": better, "agreements": agreements}
    save(f"quantized-peers-{Path(args.model).resolve().name}", result, args)


def run_race(
    commands: Mapping[str, Command], args: argparse.Namespace, *, memory: str, less_bytes: int = 0
) -> tuple[dict[str, list[Turn]], dict[str, list[str]]]:
    """Let every side take its turn in every round, alone on the machine; the order turns with every round.

    Returns:
        By side every round, and the answers of the warm-up.
    """
    texts: dict[str, list[str]] = {}

    def turn(side: str, number: int) -> Turn:
        print(f"round {number + 1} of {args.rounds}: {side}", file=sys.stderr)
        began_s = time.monotonic()
        with running(commands[side], start_s=args.start_s) as url:
            noted = {"start, s": time.monotonic() - began_s}
            noted[memory] = (sum(resident_memory(processes_behind(url))) - less_bytes) / 1e9
            warm_up = asyncio.run(ask(url, batch("warm-up", args.scale)))
            take_turn(url, "warm-up", args.scale)
            texts.setdefault(side, [result.text for result in warm_up])
            return take_turn(url, f"{number}", args.scale) | noted

    return in_turns({side: partial(turn, side) for side in commands}, rounds=args.rounds, warm_up=0), texts


def medians_of(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Turn]:
    """Return the medians of every side's rounds."""
    return {side: medians(rounds) for side, rounds in turns.items()}


def saved_race(
    commands: Mapping[str, Command], turns: Mapping[str, Sequence[Turn]], args: argparse.Namespace
) -> dict[str, Any]:
    """Return what results of both kinds have."""
    words = {side: shlex.join(command) for side, command in commands.items()}
    return {"scale": args.scale, "commands": words, "turns": turns, "medians": medians_of(turns)}


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
    names = {f"{OURS} {scheme}" for scheme in args.schemes}
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


def own_command(folder: Path, scheme: str, args: argparse.Namespace) -> Command:
    """Return how our server is started with `scheme`."""
    flags = [] if scheme == PLAIN else shlex.split(args.scheme_flags.replace("{scheme}", scheme))
    server = [sys.executable, "-m", "infer_server", "--model", str(folder), "--device", args.device]
    drafts = [] if "--speculative-config" in args.serve else NO_DRAFTS_FLAGS
    return [*server, "--no-access-log", "--port", "{port}", *drafts, *flags, *args.serve]


def pairs(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return which of our sides are compared with which others: first with ours as it is, then with their peers."""
    found = [(f"{OURS} {each}", f"{OURS} {PLAIN}") for each in args.schemes if each != PLAIN and PLAIN in args.schemes]
    return found + [(f"{OURS} {each}", name) for each in args.schemes for name in args.peer.get(each, ())]


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
        while not _is_ready(client):
            if process.poll() is not None or time.monotonic() - began_s > start_s:
                raise RuntimeError(f"`{shlex.join(words)}` was not ready; its exit code is {process.poll()}")
            time.sleep(0.05)
        yield url


def _is_ready(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/health").status_code == HTTPStatus.OK
    return False


async def ask(url: str, workload: Workload) -> Sequence[RequestResult]:
    """Send all requests at once and wait for every answer, whole."""
    model, _ = served_model(await describe(url, headers={}))
    return whole(await run_workload(url, workload, model=model, progress=False), workload)


def take_turn(url: str, contents: str, scale: float) -> Turn:
    """Ask a server everything, with prompts that `contents` draws."""

    def summary(workload: Workload) -> dict[str, Any]:
        return summarize(asyncio.run(ask(url, workload)))

    batched = summary(batch(contents, scale))
    streams = [summary(requests(f"stream {contents} {number}", [64], 128, scale)) for number in range(STREAMS)]
    prefill = summary(requests(f"prefill {contents}", [1024], 2, scale))
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
    num_new = max(2, round(num_new * scale))  # a rate is between two tokens
    prompts = [draw.choices(TOKEN_IDS, k=max(2, round(length * scale))) for length in lengths]
    planned = tuple(PlannedRequest(arrival_s=0.0, prompt=prompt, max_tokens=num_new) for prompt in prompts)
    return Workload(name=name, requests=planned, is_closed_loop=False)


def ratios(ours: Turn, theirs: Turn) -> Turn:
    """Return how many times better ours is than theirs, number by number."""
    return {name: own / theirs[name] if name.endswith("/s") else theirs[name] / own for name, own in ours.items()}


def spread_table(turns: Mapping[str, Sequence[Turn]]) -> str:
    """Return every number's median, with the least and most of all rounds, a column for each side."""
    rows = []
    for name in next(iter(turns.values()))[0]:
        digits = 2 if name.endswith("GB") else 1
        found = [[turn[name] for turn in rounds] for rounds in turns.values()]
        numbers = [(statistics.median(each), min(each), max(each)) for each in found]
        rows.append([name, *("{:.{d}f} ({:.{d}f} - {:.{d}f})".format(*each, d=digits) for each in numbers)])
    num_rounds = max(len(rounds) for rounds in turns.values())
    return table([f"median (least - most of {num_rounds} rounds)", *turns], rows)


def print_ratios(head: str, better: Mapping[str, Turn]) -> None:
    """Print a column for each of `better`: how many times better, number by number."""
    if better:
        names = next(iter(better.values()))
        rows = [[name, *(f"{each[name]:.2f}" for each in better.values())] for name in names]
        print(f"\n{table([head, *better], rows)}")

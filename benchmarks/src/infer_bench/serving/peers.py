"""Our server and others on the same checkpoint and machine, in alternating rounds, one server alive at a time.

    uv run infer-bench write-checkpoint llama-135m-8k CHECKPOINT
    uv run infer-bench peers --model CHECKPOINT \
        --peer "vllm=vllm serve CHECKPOINT --port {port}" \
        --peer "llama.cpp=llama-server -m CHECKPOINT.gguf --port {port} --parallel 16"
    uv run infer-bench peers --model CHECKPOINT --schemes none int8 int4 \
        --peer "int8:llama.cpp Q8_0=llama-server -m Q8_0.gguf --port {port} --parallel 16" \
        --peer "int4:llama.cpp Q4_0=llama-server -m Q4_0.gguf --port {port} --parallel 16"

In its turn a side's server is started, warmed up, asked, and ended, so that it has the machine to itself:

    W         16 requests at once, prompts of 32 to 256 tokens, 64 new tokens each
    stream    five requests, each alone, 64 tokens in and 128 out; the median
    prefill   one prompt of 1024 tokens, up to its first token
    start     from the command to `/health`; the first round's may read files that the system has not cached
    memory    of all its processes before the first request, less the checkpoint's weights if none is quantized

Greedy, to the full length. Lengths are the same in every turn, contents never, so that no prefix cache finds anything.
The order turns with every round. The texts of the warm-up are compared, as margins are not known. A peer's command
names a program of its own environment, `env NAME=VALUE program ...` with variables; it must answer `/health` once it is
ready, and take token ids and `ignore_eos`.

Of several schemes each is a side of ours, which serves the checkpoint as it is (`none`) or quantizes it while it is
read. Each is compared with `none`, and with the peers that name it, whose files their own tools made.
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
from typing import Any, NamedTuple

import httpx

from infer_bench.agreement import compare_texts
from infer_bench.client.load import RequestResult, run_workload, whole
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.results import Columns, argument_parser, in_turns, lines_table, medians, number, save
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


class Peer(NamedTuple):
    """A server that is compared with ours: the scheme of our weights, and how it is started."""

    scheme: str
    command: Command


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare ours with peers, print the tables and save the result."""
    args = read_arguments(arguments)
    folder = resolve_checkpoint(args.model)
    commands = {own_name(scheme, args): own_command(folder, scheme, args) for scheme in args.schemes}
    turns, texts = run_race(commands | {name: peer.command for name, peer in args.peer.items()}, folder, args)
    found, compared = {side: medians(rounds) for side, rounds in turns.items()}, pairs(args)
    better = {
        title: {name: times_better(value, found[other][name], name) for name, value in found[own].items()}
        for title, (own, other) in compared.items()
    }
    agreements = {title: compare_texts(texts[own], texts[other]) for title, (own, other) in compared.items()}
    print(f"\nmedians of {args.rounds} rounds\n\n{race_table(turns)}")
    if better:
        columns: Columns = {name: f"{{{name}:.2f}}" for name in next(iter(found.values()))}
        print(f"\n{lines_table(columns, better.items(), corner='times better')}")
    for title, agreement in agreements.items():
        print(f"\n{title}: {agreement}")
    result = {
        "scale": args.scale,
        "commands": {side: shlex.join(command) for side, command in commands.items()}
        | {name: shlex.join(peer.command) for name, peer in args.peer.items()},
        "turns": turns,
        "medians": found,
        "ratios": better,
        "agreements": {title: agreement._asdict() for title, agreement in agreements.items()},
    }
    kind = "peers" if args.schemes == [PLAIN] else "quantized-peers"
    save(args.name or f"{kind}-{Path(args.model).resolve().name}", result, args)


def run_race(
    commands: Mapping[str, Command], folder: Path, args: argparse.Namespace
) -> tuple[dict[str, list[Turn]], dict[str, list[str]]]:
    """Let every side take its turn in every round, alone on the machine; the order turns with every round.

    Returns:
        By side every round, and the answers of the warm-up.
    """
    texts: dict[str, list[str]] = {}
    files = [folder] if folder.is_file() else folder.glob("*.safetensors")
    memory, less_bytes = ALL_MEMORY, 0
    if args.schemes == [PLAIN]:
        memory, less_bytes = IDLE_MEMORY, sum(file.stat().st_size for file in files)

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


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked; `peer` becomes peers by name."""
    parser = argument_parser(__doc__, quick="one round at a tenth of the lengths", rounds=5)
    parser.add_argument("--model", required=True, help="folder or Hub id of the checkpoint that all sides serve")
    parser.add_argument("--device", default="auto", help="of our server")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompts and answers")
    parser.add_argument("--start-s", type=float, default=600.0, help="seconds that a server has to start")
    parser.add_argument("--schemes", nargs="+", default=[PLAIN], help="of our server's weights, one side each")
    parser.add_argument(
        "--scheme-flags", default="--quantization {scheme}", help="what makes our server quantize; nothing for `none`"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="[SCHEME:]NAME=COMMAND", help="to compare that scheme with"
    )
    parser.add_argument("--name", help="of the result, without `.json`; left out: by the schemes and the checkpoint")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of our server; must come last")
    args = parser.parse_args(arguments)
    if args.rounds < 1 or args.scale <= 0:
        parser.error(f"`--rounds` is {args.rounds} and `--scale` is {args.scale:g}; both must be positive")
    if args.quick:
        args.rounds, args.scale = 1, args.scale / 10
    args.schemes = list(dict.fromkeys(args.schemes))
    peers: dict[str, Peer] = {}
    for text in args.peer:
        title, _, command = text.partition("=")
        scheme, name = title.split(":", 1) if ":" in title else (args.schemes[0], title)
        if scheme not in args.schemes:
            parser.error(f"`--peer {text}`: {scheme} is none of the schemes {', '.join(args.schemes)}")
        if "{port}" not in command or name in {*peers, *(own_name(each, args) for each in args.schemes)}:
            parser.error(f"`--peer {text}` needs a name of its own, `=` and a command with `{{port}}`")
        peers[name] = Peer(scheme, shlex.split(command))
    args.peer = peers
    return args


def own_name(scheme: str, args: argparse.Namespace) -> str:
    """Return what our side with a scheme is called."""
    return OURS if args.schemes == [PLAIN] else f"{OURS} {scheme}"


def own_command(folder: Path, scheme: str, args: argparse.Namespace) -> Command:
    """Return how our server is started with `scheme`."""
    flags = [] if scheme == PLAIN else shlex.split(args.scheme_flags.replace("{scheme}", scheme))
    server = [sys.executable, "-m", "infer_server", "--model", str(folder), "--device", args.device]
    drafts = [] if "--speculative-config" in args.serve else NO_DRAFTS_FLAGS
    return [*server, "--no-access-log", "--port", "{port}", *drafts, *flags, *args.serve]


def pairs(args: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Return by title which of our sides is compared with which other: with ours as it is, and then with its peers."""
    quantized = [each for each in args.schemes if each != PLAIN and PLAIN in args.schemes]
    found = [(own_name(each, args), own_name(PLAIN, args)) for each in quantized]
    found += [
        (own_name(scheme, args), name)
        for scheme in args.schemes
        for name, peer in args.peer.items()
        if peer.scheme == scheme
    ]
    return {f"{own} / {other}": (own, other) for own, other in found}


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


def times_better(own: float, other: float, name: str) -> float:
    """Return how many times better `own` is: of rates more is better, of the rest less is."""
    return own / other if name.endswith("/s") else other / own


def measured(rounds: Sequence[Turn], name: str) -> str:
    """Return the median of a side's number, with the least and the most where there are several rounds."""
    found = [turn[name] for turn in rounds]
    spread = f" ({number(min(found))} - {number(max(found))})" if len(found) > 1 else ""
    return number(statistics.median(found)) + spread


def race_table(turns: Mapping[str, Sequence[Turn]]) -> str:
    """Return every number of all sides, a column for each."""
    lines: Columns = {
        name: lambda rounds, name=name: measured(rounds, name)  # type: ignore[misc]  # a default
        for name in next(iter(turns.values()))[0]
    }
    return lines_table(lines, turns.items())

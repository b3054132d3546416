"""Our server with quantized weights beside itself without, and beside peers with theirs, in alternating rounds.

    uv run infer-bench write-checkpoint qwen3-0.6b-8k CHECKPOINT
    uv run infer-bench quantized-peers --model CHECKPOINT \
        --peer int8 "llama.cpp Q8_0" "llama-server -m Q8_0.gguf --port {port} --parallel 16" \
        --peer int4 "llama.cpp Q4_0" "llama-server -m Q4_0.gguf --port {port} --parallel 16"

All sides serve the same checkpoint: ours as it is (`none`) and quantized while it is read, a peer a file that its own
tools made of it. They are asked, and take turns, as in `peers`: W, one stream, a prefill. The second table has each of
our sides over `none`, and over the peers named for it. Memory is all that a server takes before it is asked, weights
and tables included; what it maps of its file counts.
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from infer_bench.agreement import compare_texts
from infer_bench.results import argument_parser, save
from infer_bench.server.processes import processes_behind, resident_memory
from infer_bench.serving.peers import Race, Turn, medians, ratio_table, ratios, run_race, spread_table
from infer_models.hub import resolve_checkpoint

PLAIN = "none"
"""The scheme of weights as the checkpoint has them."""

Command = list[str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print the tables and save the result."""
    args = read_arguments(arguments)
    folder = resolve_checkpoint(args.model)
    commands = {ours(scheme): own_command(folder, scheme, args) for scheme in args.schemes}
    for peers in args.peer.values():
        commands |= peers
    race = run_race(commands, num_rounds=args.rounds, scale=args.scale, start_s=args.start_s, idle=idle_memory)
    compared = pairs(args.schemes, args.peer)
    better = compare(race, compared)
    print(f"\n{spread_table(race.turns)}")
    if better:
        print(f"\n{ratio_table('times better', better)}")
    agreements = {
        title(own, other): compare_texts(race.texts[own], race.texts[other]).as_json() for own, other in compared
    }
    if not args.quick:
        result = {
            "scale": args.scale,
            "commands": {side: shlex.join(command) for side, command in commands.items()},
            "turns": race.turns,
            "medians": {side: medians(found) for side, found in race.turns.items()},
            "ratios": better,
            "agreements": agreements,
        }
        save(f"quantized-peers-{Path(args.model).resolve().name}", result, args.out)


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked; `peer` becomes commands by scheme and name."""
    parser = argument_parser(__doc__, quick="one round at a tenth of the lengths")
    parser.add_argument("--model", required=True, help="folder or Hub id of the checkpoint that all sides serve")
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
    parser.add_argument("--device", default="auto", help="of our server")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every side")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompts and answers")
    parser.add_argument("--start-s", type=float, default=600.0, help="seconds that a server has to start")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of our server; must come last")
    args = parser.parse_args(arguments)
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
    if args.rounds < 1 or args.scale <= 0:
        parser.error(f"`--rounds` is {args.rounds} and `--scale` is {args.scale:g}; both must be positive")
    if args.quick:
        args.rounds, args.scale = 1, args.scale / 10
    return args


def ours(scheme: str) -> str:
    """Return what the side is called that serves with `scheme`."""
    return f"infer {scheme}"


def own_command(folder: Path, scheme: str, args: argparse.Namespace) -> Command:
    """Return how our server is started with `scheme`."""
    flags = [] if scheme == PLAIN else shlex.split(args.scheme_flags.replace("{scheme}", scheme))
    ours = [sys.executable, "-m", "infer_server", "--model", str(folder), "--device", args.device]
    return [*ours, "--no-access-log", "--port", "{port}", *flags, *args.serve]


def idle_memory(url: str) -> Turn:
    """Return what a server that computes nothing takes, weights included."""
    return {"idle memory, GB": resident_memory(processes_behind(url)).total_bytes / 1e9}


def pairs(schemes: Sequence[str], peers: Mapping[str, Mapping[str, Command]]) -> list[tuple[str, str]]:
    """Return which of our sides are compared with which others: first with ours as it is, then with their peers."""
    found = [(ours(scheme), ours(PLAIN)) for scheme in schemes if scheme != PLAIN and PLAIN in schemes]
    return found + [(ours(scheme), name) for scheme in schemes for name in peers.get(scheme, ())]


def title(own: str, other: str) -> str:
    """Return what the comparison of two sides is called."""
    return f"{own} / {other}"


def compare(race: Race, compared: Sequence[tuple[str, str]]) -> dict[str, Turn]:
    """Return how many times better the first of each pair is, by the medians of all rounds."""
    found = {side: medians(turns) for side, turns in race.turns.items()}
    return {title(own, other): ratios(found[own], found[other]) for own, other in compared}

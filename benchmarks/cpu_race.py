"""Our server on this CPU against others that are running here: same checkpoint, same prompts, round by round.

    python benchmarks/cpu_race.py --write-checkpoint llama-135m-8k /tmp/llama-135m-8k
    python benchmarks/cpu_race.py --model /tmp/llama-135m-8k --peer vllm=http://127.0.0.1:8101 \
        --peer llama.cpp=http://127.0.0.1:8102
    python benchmarks/cpu_race.py --demo

Sides answer one after another, each after a pause: a side's threads may spin on for a while after its last answer, and
the next one is to have the machine to itself. The order turns with every round; what a round asks is in
`race_rounds.py`. Between the rounds, with all servers idle, the dense layers are timed alone
(`cpu_floor.py`) with the variables of our server's process: a step of these products cannot be shorter.
Our server's idle memory is that of its processes before the first request; of the KV cache nothing is written then.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpu_floor import Floor, FloorProcess, floor_process
from infer_models import ModelConfig
from infer_models.hub import resolve_checkpoint
from make_checkpoint import write_checkpoint
from own_server import serving
from race_client import RaceServer
from race_report import Race, median_and_spread, table
from race_rounds import RacePlan, Turn, batch_rate, take_turn
from report import ROOT, save
from server_processes import core_environment, processes_behind, resident_memory
from shapes import SHAPES

OURS = "infer"
DEMO_STREAMS = 32
WARM_UP = "warm-up"


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Do what the command line says; print, save and return the result."""
    args = read_arguments(arguments)
    if args.write_checkpoint:
        shape, folder = args.write_checkpoint
        print("wrote", write_checkpoint(shape, Path(folder)))
        return {}
    if args.demo:
        result, name = race_demo(args), "demo"
    else:
        race = run_race(args)
        print(race.tables())
        result, name = race.as_json(), Path(args.model).resolve().name
    result |= {"scale": args.scale, "serve": args.serve, "peers": {peer.name: peer.url for peer in args.peer}}
    print("saved", save(f"cpu-race-{name}", result, args.out))
    return result


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or Hub id of the checkpoint that all sides serve")
    parser.add_argument("--demo", action="store_true", help="our server alone, with the demo model")
    parser.add_argument("--write-checkpoint", nargs=2, metavar=("SHAPE", "FOLDER"), help="make one to serve, and end")
    parser.add_argument(
        "--peer", type=parse_peer, action="append", default=[], metavar="NAME=URL[,MODEL]", help="may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of every side, after a warm-up")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds before every side's turn")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompts and answers")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of our server; must come last")
    args = parser.parse_args(arguments)
    if sum(map(bool, (args.model, args.demo, args.write_checkpoint))) != 1:
        parser.error("give one of `--model`, `--demo` and `--write-checkpoint`")
    if args.peer and not args.model:
        parser.error("`--peer` needs `--model`, the checkpoint that the peer serves")
    if args.write_checkpoint and args.write_checkpoint[0] not in SHAPES:
        parser.error(f"`{args.write_checkpoint[0]}` is no shape; there are {', '.join(SHAPES)}")
    if args.pause < 0:
        parser.error(f"`--pause` is {args.pause:g}; it must be at least 0")
    if args.rounds < 1:
        parser.error(f"`--rounds` is {args.rounds}; it must be at least 1")
    if args.scale <= 0:
        parser.error(f"`--scale` is {args.scale:g}; it must be positive")
    names = [OURS, *(peer.name for peer in args.peer)]
    if len(set(names)) < len(names):
        parser.error(f"sides are {', '.join(names)}; every `--peer` needs a name of its own, other than `{OURS}`")
    return args


def parse_peer(text: str) -> RaceServer:
    """Return the peer that `text`, NAME=URL[,MODEL], means.

    Raises:
        argparse.ArgumentTypeError: it means none.
    """
    name, _, rest = text.partition("=")
    url, _, model = rest.partition(",")
    if not name or not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"`{text}` is no NAME=URL[,MODEL], such as vllm=http://127.0.0.1:8101")
    return RaceServer(name=name, url=url.rstrip("/").removesuffix("/v1"), model=model or None)


def run_race(args: argparse.Namespace) -> Race:
    """Start our server and let all sides take their turns."""
    folder = resolve_checkpoint(args.model)
    plan = RacePlan(vocab_size=ModelConfig.from_folder(folder).vocab_size, scale=args.scale)
    with serving(["--model", str(folder), "--device", "cpu", *args.serve]) as own:
        ours = processes_behind(own.url)
        idle = resident_memory(ours)
        sides = [RaceServer(name=OURS, url=own.url), *args.peer]
        with floor_process(folder, environment=core_environment(ours)) as process:
            floors, turns = take_turns(sides, plan, process, rounds=args.rounds, pause_s=args.pause)
    return Race(
        plan=plan,
        turns=turns,
        floors=floors,
        idle=idle,
        weight_bytes=sum(path.stat().st_size for path in folder.glob("*.safetensors")),
    )


def take_turns(
    sides: Sequence[RaceServer], plan: RacePlan, process: FloorProcess, *, rounds: int, pause_s: float
) -> tuple[list[Floor], Mapping[str, list[Turn]]]:
    """Return the floor before every round, and every side's turns after a warm-up that does not count."""
    for side in sides:
        take_turn(side, plan, contents=WARM_UP)
    floors, turns = [], {side.name: list[Turn]() for side in sides}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        floors.append(process.measure())
        for side in sides if number % 2 == 0 else reversed(sides):
            time.sleep(pause_s)
            turns[side.name].append(take_turn(side, plan, contents=f"{number}"))
    return floors, turns


def race_demo(args: argparse.Namespace) -> dict[str, Any]:
    """Print and return what our server reaches with the demo model."""
    plan = RacePlan(vocab_size=ModelConfig.from_folder(resolve_checkpoint(None)).vocab_size, scale=args.scale)
    with serving(["--device", "cpu", *args.serve]) as own:
        server = RaceServer(name=OURS, url=own.url)
        demo_turn(server, plan, contents=WARM_UP)
        rounds = [demo_turn(server, plan, contents=f"{number}") for number in range(args.rounds)]
    found = {name: [each[name] for each in rounds] for name in rounds[0]}
    print(table(["the demo model", OURS], [[name, median_and_spread(values)] for name, values in found.items()]))
    return {"rounds": found, "medians": {name: statistics.median(values) for name, values in found.items()}}


def demo_turn(server: RaceServer, plan: RacePlan, *, contents: str) -> dict[str, float]:
    """Return one round's numbers."""
    (first,) = server.ask(plan.requests([16], 2, contents=f"first {contents}"))
    (stream,) = server.ask(plan.requests([16], plan.scaled(256), contents=f"stream {contents}"))
    streams = server.ask(plan.requests([16] * DEMO_STREAMS, plan.scaled(128), contents=f"streams {contents}"))
    return {
        "first token, ms": first.first_token_ms,
        "one stream, tokens/s": stream.tokens_per_s,
        f"{DEMO_STREAMS} streams, tokens/s": batch_rate(streams),
    }


if __name__ == "__main__":
    main()

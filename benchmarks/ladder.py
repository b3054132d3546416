"""What each optimization of the serving ladder is worth: our server started once a rung, each with one switch more.

    static ──> + continuous ──> + paged ──> + chunked prefill ──> + prefix caching

All rungs have the same model, the same bytes for keys and values, and the same requests; on each, five workloads run
over HTTP. Then every claim about a rung is judged by the numbers, and the report says so where one did not hold. Sizes,
chunk and rates are scaled by one factor, which the profile says; why it is that one stands beside it in `rungs.py`.

    uv run python benchmarks/ladder.py --profile cpu
    uv run python benchmarks/ladder.py --profile gpu --dry-run
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from infer_engine import EngineConfig
from kv_capacity import Capacity, count_capacity
from ladder_claims import ONE_BY_ONE, Claim, judge
from ladder_figure import draw
from ladder_report import METRICS, flatten, markdown
from load_generator import run_workload
from own_server import serving
from report import ROOT, save
from rungs import FULL_SEQ_LEN, PROFILES, SLOTS, Options, Profile, control, engine_options, flags, options_of, rungs
from server_facts import watching
from serving_report import summarize
from shapes import SHAPES
from workloads import Workload, make_workload

LADDER = ("mixed", "continuous_batching", "paged_attention", "chunked_prefill", "prefix_caching")
CONTENTS_OF_WARMUP = 10_000


@dataclass(slots=True)
class Runs:
    """What was measured: by rung, by workload, one summary a round."""

    cells: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)

    def add(self, rung: str, workload: str, summary: dict[str, Any]) -> None:
        """Keep one round's summary."""
        self.cells.setdefault(rung, {}).setdefault(workload, []).append(summary)

    def medians(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the median over the rounds of every metric of the table."""
        return {
            rung: {workload: _medians([flatten(summary) for summary in rounds]) for workload, rounds in row.items()}
            for rung, row in self.cells.items()
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Climb the ladder of each shape; print, draw and save what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="cpu")
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append", help="in place of the profile's shapes")
    parser.add_argument("--workload", choices=LADDER, action="append", help="only these; result not saved")
    parser.add_argument("--rounds", type=int, default=1, help="ladders to climb; medians are compared")
    parser.add_argument("--scale", type=float, help="in place of the profile's factor; result not saved")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    args = parser.parse_args(argv)
    profile = PROFILES[args.profile]
    profile = replace(profile, shapes=tuple(args.shape or profile.shapes), scale=args.scale or profile.scale)
    workloads = tuple(args.workload or LADDER)
    is_whole = workloads == LADDER and args.scale is None
    for shape in profile.shapes:
        print_plan(profile, shape, workloads)
        if args.dry_run:
            continue
        runs = climb(profile, shape, workloads, rounds=args.rounds)
        capacity = count_capacity(num_slots=SLOTS, num_tokens=256, max_seq_len=FULL_SEQ_LEN)
        medians = runs.medians()
        claims = judge(medians, capacity=capacity)
        print(markdown(medians, claims, names=_labels(profile)))
        if is_whole:
            name = _name(profile, shape)
            print("saved", save(name, result(profile, shape, runs, capacity, claims), args.out))
            print("drew", draw(medians, _labels(profile), args.images / f"{name}.png", title=_title(profile, shape)))


def result(profile: Profile, shape: str, runs: Runs, capacity: Capacity, claims: Sequence[Claim]) -> dict[str, Any]:
    """Return what is saved: the whole configuration of every rung, all rounds, medians and judgements."""
    return {
        "profile": asdict(profile),
        "shape": {"name": shape, **SHAPES[shape]},
        "rungs": {name: flags(engine_options(profile, shape, switches)) for name, switches in _servers(profile)},
        "metrics": list(METRICS),
        "medians": runs.medians(),
        "capacity": asdict(capacity),
        "claims": [asdict(claim) for claim in claims],
        "rounds": runs.cells,
    }


def climb(profile: Profile, shape: str, workloads: Sequence[str], *, rounds: int) -> Runs:
    """Let each workload run on each rung's server, of random weights; `rounds` times, each with other prompts."""
    runs = Runs()
    if profile.num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(profile.num_threads)  # servers inherit it; this process computes nothing
    for number in range(rounds):
        planned = [plan(profile, shape, name, contents=number) for name in workloads]
        for name, switches in _servers(profile):
            for workload, summary in _measure_rung(profile, shape, switches, _todo(name, planned)):
                runs.add(name, workload, summary)
    return runs


def _measure_rung(
    profile: Profile, shape: str, switches: Options, workloads: Sequence[Workload]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the summaries of `workloads` on a server of their own; without any none is started."""
    if not workloads:
        return []
    with serving(flags(engine_options(profile, shape, switches)), shape=shape) as server:
        return asyncio.run(measure(server.url, workloads, warm_up=warm_up(profile, shape)))


async def measure(url: str, workloads: Sequence[Workload], *, warm_up: Workload) -> list[tuple[str, dict[str, Any]]]:
    """Run `workloads` one after another; return each one's summary, with what the server's metrics said meanwhile.

    Raises:
        RuntimeError: a request failed: what is left is another workload, and no rung may profit from that.
    """
    await run_workload(url, warm_up, progress=False)
    found = []
    for workload in workloads:
        async with watching(url, headers={}) as watch:
            results = await run_workload(url, workload)
        summary = summarize(results)
        if summary["num_errors"]:
            raise RuntimeError(f"{summary['num_errors']} requests of {workload.name} failed: {summary['errors']}")
        found.append((workload.name, {**summary, **watch.facts, "machine_load": os.getloadavg()[0]}))
    return found


def plan(profile: Profile, shape: str, name: str, *, contents: int = 0) -> Workload:
    """Return the workload `name` at the profile's size."""
    return make_workload(
        name,
        scale=profile.scale,
        rate_scale=profile.scale,
        vocab_size=SHAPES[shape]["vocab_size"],
        contents=contents,
    )


def warm_up(profile: Profile, shape: str) -> Workload:
    """Return a few requests whose prompts are in no other workload."""
    workload = plan(profile, shape, "mixed", contents=CONTENTS_OF_WARMUP)
    return replace(workload, name="warm-up", requests=workload.requests[:4])


def print_plan(profile: Profile, shape: str, workloads: Sequence[str]) -> None:
    """Print each server's flags and each workload's size.

    Raises:
        ValueError: a rung's flags contradict each other, or a request is longer than `max_seq_len`.
    """
    print(f"# {profile.name}: {shape}, lengths, chunk and arrivals per second x{profile.scale:g}\n")
    for name, switches in _servers(profile):
        EngineConfig(**engine_options(profile, shape, switches))
        print(f"{name:10} infer-server {' '.join(flags(engine_options(profile, shape, switches)))}")
    print()
    for name in workloads:
        workload = plan(profile, shape, name)
        if workload.longest > profile.max_seq_len:
            raise ValueError(f"`{name}` has a request of {workload.longest} tokens, above {profile.max_seq_len}.")
        prompts = [len(request.prompt) for request in workload.requests]
        answers = [request.max_tokens for request in workload.requests]
        print(
            f"{name:20} {len(prompts)} requests over {workload.requests[-1].arrival_s:.1f} s, "
            f"prompts of {min(prompts)}-{max(prompts)} tokens ({sum(prompts)} in all), "
            f"answers of {min(answers)}-{max(answers)} ({sum(answers)})"
        )


def _servers(profile: Profile) -> list[tuple[str, Options]]:
    capped, switches = control(profile)
    ladder = [(rung.name, options_of(profile, rung.name)) for rung in rungs(profile)]
    return [*ladder, (capped.name, switches)]


def _todo(name: str, planned: Sequence[Workload]) -> list[Workload]:
    """Return what a server is to do: the ladder, and what some are there for besides."""
    if name == "capped":
        return [workload for workload in planned if workload.name == "chunked_prefill"]
    mixed = [workload for workload in planned if workload.name == "mixed" and name == "paged"]
    return [*planned, *(replace(workload, name=ONE_BY_ONE, is_closed_loop=True) for workload in mixed)]


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(values[name] for values in rounds) for name in METRICS}


def _labels(profile: Profile) -> dict[str, str]:
    capped, _ = control(profile)
    return {rung.name: rung.label for rung in (*rungs(profile), capped)}


def _name(profile: Profile, shape: str) -> str:
    is_only_one = PROFILES[profile.name].shapes == (shape,)
    return f"ladder-{profile.name}" if is_only_one else f"ladder-{profile.name}-{shape}"


def _title(profile: Profile, shape: str) -> str:
    return (
        f"The serving ladder: {shape} on {profile.device}, sizes and rates x{Fraction(profile.scale)}, equal KV memory"
    )


if __name__ == "__main__":
    main()

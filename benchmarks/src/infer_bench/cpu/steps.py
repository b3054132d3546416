"""Where the time of a step goes on a CPU: each stage of the engine, and the share that is nothing but matrices.

    uv run infer-bench cpu-steps
    uv run infer-bench cpu-steps --shape qwen3-0.6b-8k --least-share 0.5

The engine is the one that serves, with random weights, in this process and one thread of Python. Turn by turn, the
dense layers alone (`cpu-floor`), decode steps of one sequence of 128 tokens and of 16, and a prompt of 1024. What
the engine does inside its forward pass before the model, staging and attention's inputs, is done once more beside it,
on the same requests and off its clock; the rest of the model is what the pass takes beyond that and the floor.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from random import Random

import torch

from infer_bench.cpu.floor import BATCH_ROWS, PROMPT_ROWS, LinearFloor, load_packed
from infer_bench.cpu.preparation import PreparationTimer
from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import SHAPES, write_config
from infer_engine.build import CoreParts, build_core
from infer_engine.ipc.messages import Submit
from infer_engine.protocol import EngineConfig, EngineStats, SamplingParams
from infer_models import ModelConfig

DECODE_PROMPT = 128
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Milliseconds of one step, or of a prompt's steps together; the stages add up to the step.

    `floor_ms` is that of the dense layers, alone; `model_ms` what else the forward pass takes beyond staging and
    attention's inputs; `outputs_ms` what the step takes beside all that.
    """

    schedule_ms: float
    staging_ms: float
    inputs_ms: float
    floor_ms: float
    model_ms: float
    choose_ms: float
    outputs_ms: float

    @property
    def step_ms(self) -> float:
        """All of it."""
        return sum(asdict(self).values(), 0.0)

    @property
    def floor_share(self) -> float:
        """The share of the time that is nothing but matrices."""
        return self.floor_ms / self.step_ms

    @classmethod
    def combined(cls, steps: Sequence["StageTimes"], by: Callable[[list[float]], float]) -> "StageTimes":
        """Return every stage's times taken together by `by`."""
        return cls(**{name: by([getattr(step, name) for step in steps]) for name in STAGES})


STAGES = {
    "schedule_ms": "schedule",
    "staging_ms": "staging",
    "inputs_ms": "attention's inputs",
    "floor_ms": "dense layers alone (the floor)",
    "model_ms": "rest of the model",
    "choose_ms": "choose tokens",
    "outputs_ms": "outputs and statistics",
}


class SteppedEngine:
    """An engine whose steps are split into stages."""

    def __init__(self, folder: Path) -> None:
        """Load the shape in `folder`, with random weights."""
        config = EngineConfig(model=str(folder), load_format="dummy", device="cpu", max_batch_size=BATCH_ROWS)
        self._model_config = ModelConfig.from_folder(folder)

        def with_timer(parts: CoreParts) -> CoreParts:
            self._runner = PreparationTimer(parts.runner, model_config=self._model_config, config=config)
            return replace(parts, runner=self._runner)

        self._core = build_core(config, wrap_parts=with_timer).core
        self._numbers = count()

    def decode(self, num_seqs: int, *, num_steps: int, floor_ms: float) -> list[StageTimes]:
        """Return the stages of decode steps of `num_seqs` sequences, just begun; none of them is their first."""
        self._submit(num_seqs, DECODE_PROMPT, max_tokens=num_steps + 2)
        began = self._core.stats.num_generated_tokens
        while self._core.stats.num_generated_tokens < began + 2 * num_seqs:  # the first decode lays out what stays
            self._core.step()
        steps = [self._step(floor_ms) for _ in range(num_steps)]
        self._finish()
        return steps

    def prefill(self, num_tokens: int, *, floor_ms: float) -> StageTimes:
        """Return the stages of a prompt's steps together, up to its first token."""
        self._submit(1, num_tokens, max_tokens=1)
        parts = []
        while self._core.has_work:
            parts.append(self._step(0.0))
        self._finish()
        whole = StageTimes.combined(parts, sum)
        return replace(whole, floor_ms=floor_ms, model_ms=whole.model_ms - floor_ms)

    def _step(self, floor_ms: float) -> StageTimes:
        before = self._core.stats.busy_s
        stats = self._core.step().stats
        return stages_of(stats, busy_s=stats.busy_s - before, floor_ms=floor_ms, beside=self._runner.take_seconds())

    def _submit(self, num_seqs: int, num_tokens: int, *, max_tokens: int) -> None:
        for number, _ in zip(self._numbers, range(num_seqs), strict=False):
            draw = Random(number)  # noqa: S311 - a workload, not a secret
            prompt = [draw.randrange(3, self._model_config.vocab_size) for _ in range(num_tokens)]
            self._core.handle(
                Submit(request_id=f"{number}", prompt_token_ids=prompt, max_tokens=max_tokens, seed=0, params=GREEDY)
            )

    def _finish(self) -> None:
        while self._core.has_work:
            self._core.step()
        self._runner.take_seconds()


def stages_of(stats: EngineStats, *, busy_s: float, floor_ms: float, beside: tuple[float, float]) -> StageTimes:
    """Return the stages of the latest step.

    Args:
        stats: after it.
        busy_s: seconds of the whole of it.
        floor_ms: of the dense layers at its rows.
        beside: seconds of staging and of attention's inputs, done once more: they are in `busy_s` and in the forward
            pass twice.
    """
    staging_s, inputs_s = beside
    forward_s = stats.execute_s - sum(beside)
    known_s = stats.schedule_s + stats.execute_s + stats.sample_s
    return StageTimes(
        schedule_ms=stats.schedule_s * 1e3,
        staging_ms=staging_s * 1e3,
        inputs_ms=inputs_s * 1e3,
        floor_ms=floor_ms,
        model_ms=(forward_s - staging_s - inputs_s) * 1e3 - floor_ms,
        choose_ms=stats.sample_s * 1e3,
        outputs_ms=(busy_s - known_s) * 1e3,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and save it; return 1 where a floor's share is less than it must be."""
    args = read_arguments(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    found = measure(args)
    print(f"\n{args.shape}, random weights, {torch.get_num_threads()} threads; medians of {args.rounds} rounds\n")
    print(stage_table(found))
    if not args.quick:
        result = {"shape": args.shape, "stages": {name: asdict(times) for name, times in found.items()}}
        save(f"cpu-steps-{args.shape}", result, args.out)
    name, worst = min(found.items(), key=lambda each: each[1].floor_share)
    if args.least_share is not None and worst.floor_share < args.least_share:
        found_share = f"{name}: dense layers are {worst.floor_share:.0%} of the time"
        print(f"\n{found_share}, `--least-share` is {args.least_share:.0%}", file=sys.stderr)
        return 1
    return 0


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked."""
    parser = argument_parser(__doc__, quick="a small shape, few rounds")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="left out: smollm-135m, or llama-30m with `--quick`")
    parser.add_argument("--rounds", type=int, help="left out: 5, or 2 with `--quick`")
    parser.add_argument("--steps", type=int, default=16, help="decode steps of each kind in a round")
    parser.add_argument("--threads", type=int, help="left out: torch's own choice")
    parser.add_argument("--least-share", type=float, help="fail where dense layers are a smaller share, from 0 to 1")
    args = parser.parse_args(arguments)
    args.shape = args.shape or ("llama-30m" if args.quick else "smollm-135m")
    args.rounds = (2 if args.quick else 5) if args.rounds is None else args.rounds
    for name, least in (("rounds", 1), ("steps", 1)):
        if getattr(args, name) < least:
            parser.error(f"`--{name}` is {getattr(args, name)}; it must be at least {least}")
    if args.least_share is not None and not 0 <= args.least_share <= 1:
        parser.error(f"`--least-share` is {args.least_share:g}; it must be from 0 to 1")
    return args


def measure(args: argparse.Namespace) -> dict[str, StageTimes]:
    """Return the stages by what was computed."""
    with tempfile.TemporaryDirectory() as made:
        folder = write_config(args.shape, Path(made))
        engine = SteppedEngine(folder)
        floor = LinearFloor(load_packed(folder, is_dummy=True))
        found: dict[str, list[StageTimes]] = {}
        for number in range(1 + args.rounds):
            turn = take_turn(engine, floor, num_steps=args.steps)
            for name, steps in turn.items() if number else ():  # the first round warms up
                found.setdefault(name, []).extend(steps)
    return {name: StageTimes.combined(steps, statistics.median) for name, steps in found.items()}


def take_turn(engine: SteppedEngine, floor: LinearFloor, *, num_steps: int) -> dict[str, list[StageTimes]]:
    """Return one round's stages, each beside a floor that was measured just before."""
    row_ms = floor.row_ms()
    alone = engine.decode(1, num_steps=num_steps, floor_ms=row_ms)
    batch_ms = floor.batch_ms()
    together = engine.decode(BATCH_ROWS, num_steps=num_steps, floor_ms=batch_ms)
    prompt_ms = floor.prompt_ms()
    prompt = engine.prefill(PROMPT_ROWS, floor_ms=prompt_ms)
    return {
        "decode, 1 sequence": alone,
        f"decode, {BATCH_ROWS} sequences": together,
        f"prompt of {PROMPT_ROWS}": [prompt],
    }


def stage_table(found: dict[str, StageTimes]) -> str:
    """Return a table of every stage's milliseconds and share."""
    rows: list[list[str]] = [
        [label, *(_cell(getattr(times, name), times.step_ms) for times in found.values())]
        for name, label in STAGES.items()
    ]
    rows.append(["**step**", *(f"**{times.step_ms:.2f} ms**" for times in found.values())])
    return table(["stage", *found], rows)


def _cell(milliseconds: float, step_ms: float) -> str:
    return f"{milliseconds:.2f} ms, {milliseconds / step_ms:.1%}"

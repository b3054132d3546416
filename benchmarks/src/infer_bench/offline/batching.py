"""The same arrivals in static and in continuous batching, step by step: numbers, and a picture. Computes no model.

Schedulers, KV cache and core are those that serve; a runner without a model notes which request is computed in which
row of the batch at which step. Time is counted in steps, one of them also where nobody is computed. What a step costs
is not in it: a bar says that a row had work, not how long that took. A commit always gives the same result.

    uv run infer-bench batching
"""

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from infer_bench.results import argument_parser, columns_table, save
from infer_bench.serving.plots import INK, STYLE, save_figure
from infer_engine.assembly.core import build_kv_cache_manager, build_scheduler, choose_sharing
from infer_engine.core.engine_core import EngineCore
from infer_engine.messages import Submit
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_engine.request import StepRow
from infer_engine.scheduling import Schedule, SchedulerLimits
from infer_engine.step_runner import ComputedPass, SampledTokens

ROWS = 8
BLOCK_SIZE = 64
CHUNK_SIZE, TOKENS_PER_STEP = 128, 512
MAX_SEQ_LEN = 512
NUM_REQUESTS = 40
MEAN_GAP_STEPS = 3.4
"""Between two arrivals."""
FORMING_STEPS = 4.0
"""How long a static batch waits to fill."""
MAX_STEPS = 10_000
MODES = {
    "Static batching": EngineConfig(batching_mode="static", batch_wait_timeout_s=FORMING_STEPS),
    "Continuous batching": EngineConfig(),
}

PREFILL, DECODE, HELD, IDLE, QUEUE = "#173f6b", "#8fbbe2", "#d3e3f3", "#efece6", "#b9b4aa"
KINDS = {PREFILL: "prefill", DECODE: "decode", HELD: "admitted, not computed", IDLE: "empty row"}
COLUMNS = {
    "": "{name}",
    "steps": "{steps}",
    "rows at work": "{rows_computing:.0%}",
    "steps to the first token, median": "{median_steps_to_first_token}",
    "longest": "{longest_steps_to_first_token}",
}

Spans = list[tuple[int, int]]
"""Runs of consecutive steps, each as its first and how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request, and the step at which it comes."""

    step: int
    num_prompt_tokens: int
    num_new_tokens: int


@dataclass(slots=True, kw_only=True)
class Bar:
    """The course of a request: its row of the batch, and the steps that computed it there."""

    arrival_step: int
    row: int = -1
    admitted_step: int = -1
    prefill_steps: list[int] = field(default_factory=list)
    decode_steps: list[int] = field(default_factory=list)

    @property
    def steps_to_first_token(self) -> int:
        """Steps from its arrival to the end of the one that made its first token."""
        return self.prefill_steps[-1] + 1 - self.arrival_step

    def as_json(self) -> dict[str, Any]:
        """The saved result, which is drawn too."""
        return {
            "arrival": self.arrival_step,
            "row": self.row,
            "admitted": self.admitted_step,
            "prefill": spans_of(self.prefill_steps),
            "decode": spans_of(self.decode_steps),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One mode's run: a bar for each request, and how many waited after each step."""

    bars: tuple[Bar, ...]
    num_waiting: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """The saved result: the numbers that the picture shows, and the picture's bars."""
        num_steps = len(self.num_waiting)
        num_computed = sum(len(bar.prefill_steps) + len(bar.decode_steps) for bar in self.bars)
        waits = [bar.steps_to_first_token for bar in self.bars]
        return {
            "steps": num_steps,
            "rows_computing": num_computed / (ROWS * num_steps),
            "median_steps_to_first_token": statistics.median_high(waits),
            "longest_steps_to_first_token": max(waits),
            "num_waiting": self.num_waiting,
            "bars": [bar.as_json() for bar in self.bars],
        }


class NotingRunner:
    """Computes nothing and notes who would have been computed, and where. Implements `StepRunner`."""

    def __init__(self, bars: Sequence[Bar]) -> None:
        """Write into `bars`; a request's id is the index of its bar."""
        self._bars = bars
        self.step = 0

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Note the rows of a pass.

        Raises:
            RuntimeError: a request lost its memory; a bar has one row.
        """
        if schedule.preempted:
            raise RuntimeError(
                f"{len(schedule.preempted)} requests were preempted; raise `MAX_SEQ_LEN`, the room of a row"
            )
        for request, _ in schedule.items:
            bar = self._bars[int(request.request_id)]
            bar.row = request.row
            is_prompt = request.num_computed_tokens < request.num_prompt_tokens
            (bar.prefill_steps if is_prompt else bar.decode_steps).append(self.step)
        return ComputedPass(logits=lambda: None)

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        """Give everybody the same token."""
        del computed
        return SampledTokens.known([1] * len(rows))

    def probe(self) -> None:
        """Be alive."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Let the arrivals be served in each mode, print a table and save the result."""
    parser = argument_parser(__doc__, quick="four requests")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    args = parser.parse_args(arguments)
    arrivals = make_arrivals(4 if args.quick else NUM_REQUESTS, seed=args.seed)
    modes = {name: play(config, arrivals).as_json() for name, config in MODES.items()}
    print(f"\n{mode_table(modes)}")
    if not args.quick:
        save("batching", {"seed": args.seed, "rows": ROWS, "modes": modes}, args.out)


def mode_table(modes: dict[str, dict[str, Any]]) -> str:
    """Return a row for each mode."""
    return columns_table(COLUMNS, [{"name": name, **mode} for name, mode in modes.items()])


def make_arrivals(num_requests: int, *, seed: int) -> list[Arrival]:
    """Return requests of mixed lengths that come at random, always the same for a seed."""
    draw = random.Random(seed)  # noqa: S311 - a workload, not a secret
    arrivals, now = [], 0.0
    for _ in range(num_requests):
        num_new = min(56, 6 + int(draw.expovariate(1 / 20)))
        arrivals.append(Arrival(step=int(now), num_prompt_tokens=draw.randint(32, 384), num_new_tokens=num_new))
        now += draw.expovariate(1 / MEAN_GAP_STEPS)
    return arrivals


def play(config: EngineConfig, arrivals: Sequence[Arrival]) -> History:
    """Let the core of `config` serve `arrivals`; return what it did at each step.

    Raises:
        RuntimeError: requests are left after `MAX_STEPS`.
    """
    bars = [Bar(arrival_step=arrival.step) for arrival in arrivals]
    runner = NotingRunner(bars)
    core = build_core(config, runner)
    num_waiting: list[int] = []
    num_arrived = 0
    while num_arrived < len(arrivals) or core.has_work:
        if runner.step >= MAX_STEPS:
            raise RuntimeError(f"{len(arrivals) - num_arrived} requests are still to come after {MAX_STEPS} steps")
        while num_arrived < len(arrivals) and arrivals[num_arrived].step <= runner.step:
            core.handle(submission(num_arrived, arrivals[num_arrived]))
            num_arrived += 1
        result = core.step()
        for request_id in result.admitted:
            bars[int(request_id)].admitted_step = runner.step
        num_waiting.append(result.stats.num_waiting)
        runner.step += 1
    return History(bars=tuple(bars), num_waiting=tuple(num_waiting))


def submission(index: int, arrival: Arrival) -> Submit:
    """Return the message that submits a request, whose prompt shares no prefix with another."""
    return Submit(
        request_id=str(index),
        prompt_token_ids=[index * MAX_SEQ_LEN + i for i in range(arrival.num_prompt_tokens)],
        max_tokens=arrival.num_new_tokens,
        seed=0,
        params=SamplingParams(temperature=0, ignore_eos=True),
    )


def build_core(config: EngineConfig, runner: NotingRunner) -> EngineCore:
    """Return the core of `config` with `ROWS` rows, whose clock counts the runner's steps."""
    limits = SchedulerLimits(
        max_batch_size=ROWS,
        max_num_batched_tokens=TOKENS_PER_STEP,
        prefill_chunk_size=CHUNK_SIZE if config.chunks_prefill else None,
    )
    manager = build_kv_cache_manager(
        config, limits, num_blocks=(ROWS * MAX_SEQ_LEN // BLOCK_SIZE,), windows=(None,), block_size=BLOCK_SIZE
    )
    return EngineCore(
        runner,
        build_scheduler(config, manager, limits, clock=lambda: float(runner.step)),
        manager,
        eos_token_ids=frozenset(),
        share_prefix=choose_sharing(config),
    )


def spans_of(steps: Iterable[int]) -> Spans:
    """Return the runs of consecutive steps."""
    spans: Spans = []
    for step in steps:
        if spans and sum(spans[-1]) == step:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((step, 1))
    return spans


def plot_batching(result: Mapping[str, Any], path: Path) -> None:
    """Draw a panel of bars and one of the queue for each mode, all over the same steps."""
    modes: dict[str, dict[str, Any]] = result["modes"]
    num_steps = max(mode["steps"] for mode in modes.values())
    most_waiting = max(max(mode["num_waiting"]) for mode in modes.values())
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure, panels = plt.subplots(
            2 * len(modes), 1, figsize=(11, 8), layout="constrained", height_ratios=[5, 1] * len(modes)
        )
        for index, (name, mode) in enumerate(modes.items()):
            batch, queue = panels[2 * index : 2 * index + 2]
            _draw_batch(batch, name, mode, num_rows=result["rows"])
            batch.set(xlim=(0, num_steps), xticks=[])
            _draw_queue(queue, mode["num_waiting"], most_waiting)
            queue.set_xlim(0, num_steps)
        panels[-1].set_xlabel("engine step")
        figure.align_ylabels()
        patches = [Patch(facecolor=color, edgecolor="#c9c5bd", label=label) for color, label in KINDS.items()]
        figure.legend(handles=patches, loc="outside upper center", ncols=len(KINDS))
        save_figure(figure, path)


def _draw_batch(axes: Axes, name: str, mode: dict[str, Any], *, num_rows: int) -> None:
    for row in range(num_rows):
        axes.broken_barh([(0, mode["steps"])], (row + 0.1, 0.8), facecolors=IDLE)
    for number, bar in enumerate(mode["bars"], start=1):
        begin, (last, length) = bar["admitted"], (bar["decode"] or bar["prefill"])[-1]
        place = (bar["row"] + 0.1, 0.8)
        axes.broken_barh([(begin, last + length - begin)], place, facecolors=HELD, edgecolor="white", linewidth=0.8)
        axes.broken_barh(bar["decode"], place, facecolors=DECODE)
        axes.broken_barh(bar["prefill"], place, facecolors=PREFILL)
        axes.plot([last + length] * 2, [place[0], sum(place)], color="white", linewidth=1.2)
        prefilled = sum(bar["prefill"][-1])
        axes.text(prefilled + 0.5, bar["row"] + 0.5, str(number), va="center", fontsize=8, color=INK)
    axes.set_title(
        f"{name}: {mode['steps']} steps, {mode['rows_computing']:.0%} of the rows at work, "
        f"{mode['median_steps_to_first_token']} steps to the first token (median)",
        fontweight="bold",
    )
    axes.set_ylim(num_rows, 0)
    axes.set_yticks([row + 0.5 for row in range(num_rows)], [str(row + 1) for row in range(num_rows)])
    axes.set_ylabel("row of the batch")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_queue(axes: Axes, num_waiting: list[int], most_waiting: int) -> None:
    axes.fill_between(range(len(num_waiting) + 1), [*num_waiting, 0], step="post", color=QUEUE, linewidth=0)
    axes.set_ylim(0, most_waiting or 1)
    axes.set_yticks([0, most_waiting or 1])
    axes.set_ylabel("waiting")

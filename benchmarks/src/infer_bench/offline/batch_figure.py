"""The same arrivals through static and through continuous batching, step by step, as a picture.

The schedulers and the core are those that serve; a runner without a model notes which request is computed in which row
at which step. A tick of the clock is a step. What a step costs is not in the picture: a row's bar says that it had
work, not how long that took.

    uv run infer-bench batch-figure
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from infer_bench.results import IMAGES, argument_parser, save
from infer_engine.build import build_kv_cache_manager, build_scheduler, choose_sharing
from infer_engine.core.engine_core import EngineCore
from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass
from infer_engine.ipc.messages import Submit
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule, SchedulerLimits

ROWS = 8
BLOCK_SIZE = 64
CHUNK_SIZE = 128
TOKENS_PER_STEP = 512
MAX_SEQ_LEN = 512
FORMING_TICKS = 4.0
"""How long a static batch waits to fill."""
NUM_REQUESTS = 40
MEAN_GAP = 3.4
"""Ticks between two arrivals, on average."""
SEED = 0
MAX_TICKS = 10_000

PREFILL, DECODE, HELD, IDLE, INK, QUIET = "#173f6b", "#8fbbe2", "#d3e3f3", "#efece6", "#222222", "#6b6b6b"
CONFIGS = {
    "Static batching": EngineConfig(batching_mode="static", batch_wait_timeout_s=FORMING_TICKS),
    "Continuous batching": EngineConfig(),
}


class Arrival(NamedTuple):
    """A request and the tick at which it comes."""

    tick: int
    num_prompt_tokens: int
    num_new_tokens: int


@dataclass(slots=True, kw_only=True)
class Bar:
    """What became of a request: its row of the batch, and the ticks at which it was computed there."""

    number: int
    arrival_tick: int
    row: int = -1
    admitted_tick: int = -1
    prefill_ticks: list[int] = field(default_factory=list)
    decode_ticks: list[int] = field(default_factory=list)

    @property
    def end_tick(self) -> int:
        """The tick after its last."""
        return max(self.prefill_ticks + self.decode_ticks) + 1

    @property
    def first_token_wait(self) -> int:
        """Ticks from its arrival to the end of the step that made its first token."""
        return self.prefill_ticks[-1] + 1 - self.arrival_tick


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One mode's run: a bar for each request, and how many waited in the queue after each tick."""

    bars: tuple[Bar, ...]
    num_waiting: tuple[int, ...]

    def facts(self) -> dict[str, Any]:
        """Return what the picture shows, in numbers."""
        num_ticks = len(self.num_waiting)
        num_computed = sum(len(bar.prefill_ticks) + len(bar.decode_ticks) for bar in self.bars)
        waits = sorted(bar.first_token_wait for bar in self.bars)
        return {
            "ticks": num_ticks,
            "rows_computing": num_computed / (ROWS * num_ticks),
            "median_ticks_to_first_token": statistics.median_high(waits),
            "longest_ticks_to_first_token": waits[-1],
        }


class RecordingRunner:
    """Computes nothing and records which requests it was given in which rows. Implements `StepRunner`."""

    def __init__(self, bars: Sequence[Bar]) -> None:
        """Write into `bars`; a request's name is its bar's index."""
        self._bars = bars
        self.tick = 0

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Record the rows of a pass."""
        if schedule.preempted:
            raise RuntimeError("a bar has one row: make the pool large enough for no preemption")
        for request, _ in schedule.items:
            bar = self._bars[int(request.request_id)]
            bar.row = request.row
            is_prompt = request.num_computed_tokens < request.num_prompt_tokens
            (bar.prefill_ticks if is_prompt else bar.decode_ticks).append(self.tick)
        return ComputedPass(logits=None)

    def sample(self, logits: None, requests: list[Request]) -> SamplerOutput:  # noqa: ARG002 - the protocol's arguments
        """Give every request the same token."""
        return SamplerOutput(token_ids=[1] * len(requests))

    def probe(self) -> None:
        """Be alive."""


def make_arrivals(num_requests: int = NUM_REQUESTS, *, seed: int = SEED) -> list[Arrival]:
    """Return requests of mixed lengths that come at random, always the same for a seed."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    arrivals, now = [], 0.0
    for _ in range(num_requests):
        num_prompt_tokens = generator.randint(32, 384)
        num_new_tokens = min(56, 6 + int(generator.expovariate(1 / 20)))
        arrivals.append(Arrival(int(now), num_prompt_tokens, num_new_tokens))
        now += generator.expovariate(1 / MEAN_GAP)
    return arrivals


def play(config: EngineConfig, arrivals: Sequence[Arrival]) -> History:
    """Let the core of `config` serve `arrivals` and return what it did at each tick."""
    bars = [Bar(number=index, arrival_tick=arrival.tick) for index, arrival in enumerate(arrivals)]
    runner = RecordingRunner(bars)
    core = _build_core(config, runner)
    num_waiting: list[int] = []
    coming = list(enumerate(arrivals))
    while coming or core.has_work:
        if runner.tick >= MAX_TICKS:
            raise RuntimeError(f"{len(coming)} requests are still to come after {MAX_TICKS} ticks")
        while coming and coming[0][1].tick <= runner.tick:
            index, arrival = coming.pop(0)
            core.handle(
                Submit(
                    request_id=str(index),
                    prompt_token_ids=[index * MAX_SEQ_LEN + i for i in range(arrival.num_prompt_tokens)],
                    max_tokens=arrival.num_new_tokens,
                    seed=0,
                    params=SamplingParams(temperature=0),
                )
            )
        result = core.step()
        for request_id in result.admitted:
            bars[int(request_id)].admitted_tick = runner.tick
        num_waiting.append(result.stats.num_waiting)
        runner.tick += 1
    return History(bars=tuple(bars), num_waiting=tuple(num_waiting))


def _build_core(config: EngineConfig, runner: RecordingRunner) -> EngineCore:
    limits = SchedulerLimits(
        max_batch_size=ROWS,
        max_num_batched_tokens=TOKENS_PER_STEP,
        prefill_chunk_size=CHUNK_SIZE if config.chunks_prefill else None,
    )
    num_blocks = ROWS * MAX_SEQ_LEN // BLOCK_SIZE
    manager = build_kv_cache_manager(config, limits, num_blocks=(num_blocks,), windows=(None,), block_size=BLOCK_SIZE)
    return EngineCore(
        runner,
        build_scheduler(config, manager, limits, clock=lambda: float(runner.tick)),
        manager,
        eos_token_ids=frozenset(),
        share_prefix=choose_sharing(config),
    )


def draw(histories: dict[str, History], path: Path) -> None:
    """Save one panel of bars and one of the queue for each mode, all over the same ticks."""
    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 10, "text.color": INK, "axes.edgecolor": QUIET, "axes.labelcolor": INK})
    num_ticks = max(len(history.num_waiting) for history in histories.values())
    most_waiting = max(max(history.num_waiting) for history in histories.values())
    figure = plt.figure(figsize=(9, 6.4))
    grid = figure.add_gridspec(len(histories), 1, left=0.075, right=0.985, top=0.89, bottom=0.08, hspace=0.22)
    for index, (title, history) in enumerate(histories.items()):
        panel = grid[index].subgridspec(2, 1, height_ratios=[5, 1], hspace=0.08)
        batch, queue = figure.add_subplot(panel[0]), figure.add_subplot(panel[1])
        _draw_batch(batch, title, history)
        _draw_queue(queue, history, most_waiting)
        batch.set(xlim=(0, num_ticks), xticks=[])
        queue.set(xlim=(0, num_ticks))
    queue.set_xlabel("engine step")
    figure.align_ylabels()
    kinds = {PREFILL: "prefill", DECODE: "decode", HELD: "admitted, not computed", IDLE: "empty row"}
    figure.legend(
        handles=[Patch(facecolor=color, edgecolor="#c9c5bd", label=label) for color, label in kinds.items()],
        loc="upper center",
        ncols=len(kinds),
        frameon=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=180, facecolor="white")
    plt.close(figure)


def _draw_batch(axes: Axes, title: str, history: History) -> None:
    facts = history.facts()
    for row in range(ROWS):
        axes.broken_barh([(0, facts["ticks"])], (row + 0.1, 0.8), facecolors=IDLE)
    for bar in history.bars:
        spans = ((bar.admitted_tick, bar.end_tick - bar.admitted_tick),)
        axes.broken_barh(spans, (bar.row + 0.1, 0.8), facecolors=HELD, edgecolor="white", linewidth=0.8)
        for ticks, color in ((bar.decode_ticks, DECODE), (bar.prefill_ticks, PREFILL)):
            axes.broken_barh(_spans(ticks), (bar.row + 0.1, 0.8), facecolors=color)
        axes.plot([bar.end_tick] * 2, [bar.row + 0.1, bar.row + 0.9], color="white", linewidth=1.2)
        axes.text(bar.prefill_ticks[-1] + 1.5, bar.row + 0.5, str(bar.number + 1), va="center", fontsize=7, color=INK)
    axes.set_title(
        f"{title}: {facts['ticks']} steps, {facts['rows_computing']:.0%} of the rows at work, "
        f"{facts['median_ticks_to_first_token']} steps to the first token (median)",
        loc="left",
        fontsize=10.5,
        fontweight="bold",
    )
    axes.set_ylim(ROWS, 0)
    axes.set_yticks([row + 0.5 for row in range(ROWS)], [str(row + 1) for row in range(ROWS)])
    axes.set_ylabel("row of the batch")
    axes.tick_params(length=0, labelcolor=QUIET)
    axes.spines[:].set_visible(False)


def _draw_queue(axes: Axes, history: History, most_waiting: int) -> None:
    ticks = range(len(history.num_waiting) + 1)
    axes.fill_between(ticks, (*history.num_waiting, 0), step="post", color="#b9b4aa", linewidth=0)
    axes.set_ylim(0, most_waiting)
    axes.set_yticks([0, most_waiting])
    axes.set_ylabel("waiting")
    axes.tick_params(length=2, color=QUIET, labelcolor=QUIET)
    axes.spines[["top", "right"]].set_visible(False)


def _spans(ticks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive ticks, each as (first, how many)."""
    runs = groupby(enumerate(ticks), key=lambda each: each[1] - each[0])
    return [(first[1], 1 + len(list(rest))) for _, (first, *rest) in runs]


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the arrivals in each mode, draw them and save the numbers."""
    parser = argument_parser(__doc__)
    parser.add_argument("--picture", type=Path, default=IMAGES / "batching.png")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args(arguments)
    arrivals = make_arrivals(seed=args.seed)
    histories = {title: play(config, arrivals) for title, config in CONFIGS.items()}
    draw(histories, args.picture)
    print("drew", args.picture)
    facts = {title: history.facts() for title, history in histories.items()}
    for title, numbers in facts.items():
        print(f"{title}: {numbers}")
    save("batching", {"seed": args.seed, "modes": facts}, args.out)

"""The engine's own cost per step, without a model: scheduling, batch building, choosing tokens, output handling.

A null model takes every step's inputs and gives logits that are ready-made; everything else is the engine that serves.
The limit is 2 ms a step at 256 running requests; where it is missed, the exit code is 1. The cost must not grow with
the tokens generated so far. Choosing is measured apart and does not count, as drawing is arithmetic on the logits, here
of a vocabulary of 1024; so is the output processor.

    uv run infer-bench engine
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, paragraph, save, seconds_of, sections, table
from infer_cache import PagedKVCacheManager
from infer_engine import SamplingParams
from infer_engine.core.engine_core import EngineCore
from infer_engine.core.prefix_sharing import share_with_all
from infer_engine.frontend.output_processor import OutputProcessor
from infer_engine.messages import Submit, TokenOutput
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.request import StepRow
from infer_engine.sampling.sampler import Sampler
from infer_engine.scheduling import POLICIES, ContinuousScheduler, Schedule, SchedulerLimits
from infer_engine.step_runner import ComputedPass
from infer_kernels import plan_attention
from infer_models.text import IncrementalDetokenizer, StopStringMatcher, dummy_tokenizer

RUNNING = (8, 64, 256)
VOCAB_SIZE, BLOCK_SIZE, PROMPT_TOKENS, STEP_TOKENS = 1024, 64, 128, 8192
LIMIT_MS = 2.0
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=1, ignore_eos=True)


class NullRunner:
    """Builds every batch and chooses every token as the engine does, from logits that no model computed."""

    def __init__(self, *, max_seqs: int, max_seq_len: int) -> None:
        """Room for `max_seqs` sequences of `max_seq_len` tokens."""
        cpu = torch.device("cpu")
        self._input_buffers = InputBuffers(
            max_tokens=STEP_TOKENS + max_seqs,
            max_seqs=max_seqs,
            max_seq_len=max_seq_len,
            block_size=BLOCK_SIZE,
            num_groups=1,
            device=cpu,
        )
        self._sampler = Sampler(vocab_size=VOCAB_SIZE, max_rows=max_seqs, eos_token_ids=frozenset({0}), device=cpu)
        self._logits = torch.randn(max_seqs, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
        self._logits[:, 0] = -100.0

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Build the batch; give the logits."""
        inputs = self._input_buffers.build(schedule.items, schedule.table_edits)
        for block_table in inputs.gather_block_tables():
            plan_attention(
                query_start=inputs.query_start,
                seq_lens=inputs.seq_lens,
                is_prefill=inputs.is_prefill,
                block_table=block_table,
                block_size=BLOCK_SIZE,
                device="cpu",
            )
        return ComputedPass(logits=lambda: self._logits[: len(inputs.logits_indices)])

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> Any:
        """Choose as the engine does."""
        return self._sampler.launch(computed.logits(), rows)

    def probe(self) -> None:
        """Be alive."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables and save the result; return 1 if a step takes longer than it may."""
    parser = argument_parser(__doc__, quick="few steps")
    parser.add_argument("--steps", type=int, default=2000, help="decode steps for each number of running requests")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    steps = 200 if args.quick else args.steps
    rows = [per_step(num, steps, params) for params in (GREEDY, DRAWN) for num in RUNNING]
    result = {"per_step": rows, "text_us_per_token": text_cost(), "steps": steps}
    print(f"\n{steps_table(result)}")
    save("engine", result, args)
    return judge(limits(rows))


def per_step(num_running: int, steps: int, params: SamplingParams) -> dict[str, Any]:
    """Return the milliseconds of a decode step of `num_running` requests, split, and late against early ones."""
    max_seq_len = PROMPT_TOKENS + steps + BLOCK_SIZE
    limits = SchedulerLimits(max_batch_size=num_running, max_num_batched_tokens=STEP_TOKENS)
    num_blocks = num_running * (max_seq_len // BLOCK_SIZE + 2)
    tables = PagedKVCacheManager([num_blocks], BLOCK_SIZE, max_chunk=512, keeps_prefixes=True)
    core = EngineCore(
        NullRunner(max_seqs=num_running, max_seq_len=max_seq_len),
        ContinuousScheduler(tables, limits, POLICIES["fcfs"]),
        tables,
        eos_token_ids=frozenset({0}),
        share_prefix=share_with_all,
    )
    for index in range(num_running):
        prompt = [1 + (index * 7 + position) % (VOCAB_SIZE - 1) for position in range(PROMPT_TOKENS)]
        core.handle(
            Submit(request_id=f"r{index}", prompt_token_ids=prompt, max_tokens=steps, seed=index, params=params)
        )
    while core.stats.num_generated_tokens < num_running:
        core.step()
    times_ms: dict[str, list[float]] = {"total": [], "schedule": [], "build": [], "choose": []}
    for _ in range(steps - 2 - PROMPT_TOKENS * num_running // STEP_TOKENS):
        started_s = time.perf_counter()
        stats = core.step().stats
        total_s = time.perf_counter() - started_s
        parts_s = (total_s, stats.schedule_s, stats.execute_s, stats.sample_s)
        for times, part_s in zip(times_ms.values(), parts_s, strict=True):
            times.append(1e3 * part_s)
    total = times_ms["total"]
    fifth = len(total) // 5
    return {
        "running": num_running,
        "params": "greedy" if params.is_greedy else "drawn",
        **{f"{name}_ms": statistics.median(times) for name, times in times_ms.items()},
        "p99_ms": sorted(total)[int(len(total) * 0.99)],
        "late_over_early": statistics.median(total[-fifth:]) / statistics.median(total[:fifth]),
    }


def limits(rows: Sequence[dict[str, Any]]) -> list[Limit]:
    """Return the limit of each row's step, without choosing tokens, which is arithmetic on logits."""
    return [
        Limit(
            what=f"a step of {row['running']} running requests, tokens {row['params']}, without choosing them",
            value=row["total_ms"] - row["choose_ms"],
            unit="ms",
            most=LIMIT_MS,
        )
        for row in rows
    ]


def steps_table(result: Mapping[str, Any]) -> str:
    """Return the costs of steps in milliseconds, and of the text of a token."""
    parts = ("schedule", "build", "choose")
    head = ["running", "tokens", "step, ms", *parts, "outputs", "p99", f"last fifth of {result.get('steps', 2000)}"]
    cells = []
    for row in result["per_step"]:
        found = [row[f"{name}_ms"] for name in parts]
        times = [row["total_ms"], *found, row["total_ms"] - sum(found), row["p99_ms"]]
        late = f"{row['late_over_early']:.2f} times the first"
        cells.append([row["running"], row["params"], *(f"{time_ms:.3f}" for time_ms in times), late])
    text_us = result["text_us_per_token"]
    words = f"The output processor makes text beside the steps: {text_us:.1f} us a token with a stop string watched."
    return sections(table(head, cells), paragraph(words))


def text_cost() -> float:
    """Return the microseconds that the text of one token takes in its output processor."""
    text = OutputProcessor(
        IncrementalDetokenizer(dummy_tokenizer(VOCAB_SIZE), [65]), StopStringMatcher(("never found",))
    )
    outputs = [
        TokenOutput(request_id="r", token_ids=[65 + i % 26], num_prompt_tokens=1, num_completion_tokens=i)
        for i in range(5000)
    ]
    return 1e6 * seconds_of(lambda: [text.process(output) for output in outputs]) / len(outputs)

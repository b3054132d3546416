"""What the engine itself costs per step, without a model: scheduling, batch building, choosing tokens, output handling.

A null model takes every step's inputs and gives logits that are ready-made; everything else is the engine that serves.
The bound is 2 ms a step at 256 running requests, and the cost must not grow with the tokens generated so far. Choosing
is measured apart, as drawing is arithmetic on the logits, here of a vocabulary of 1024; so is the output processor.
Then, with a small real model: what prefix hits save, what preemption and invariance cost.

    uv run infer-bench engine
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from infer_bench.offline.random_llm import load_random
from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import SHAPES
from infer_cache import PagedKVCacheManager
from infer_engine import SamplingParams
from infer_engine.core.engine_core import EngineCore
from infer_engine.core.prefix_sharing import share_with_all
from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass
from infer_engine.frontend.output_processor import OutputProcessor
from infer_engine.ipc.messages import Submit, TokenOutput
from infer_engine.model_runner.input_buffers import InputBuffers
from infer_engine.sampling.sampler import Sampler
from infer_engine.scheduling import POLICIES, ContinuousScheduler, Schedule, SchedulerLimits
from infer_kernels import plan_attention
from infer_models.text import IncrementalDetokenizer, StopStringMatcher, dummy_tokenizer

RUNNING = (8, 64, 256)
VOCAB_SIZE = 1024
BLOCK_SIZE = 64
PROMPT_TOKENS = 128
LIMIT_MS = 2.0
SHAPE = "smollm-135m"
"""Of the measurements with a model."""


class NullRunner:
    """Builds every batch and chooses every token as the engine does, from logits that no model computed."""

    def __init__(self, *, max_seqs: int, max_seq_len: int) -> None:
        """Room for `max_seqs` sequences of `max_seq_len` tokens."""
        cpu = torch.device("cpu")
        self._input_buffers = InputBuffers(
            max_tokens=8192 + max_seqs,
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
        for block_table in inputs.block_tables:
            plan_attention(
                query_start=inputs.query_start,
                seq_lens=inputs.seq_lens,
                is_prefill=inputs.is_prefill,
                block_table=block_table,
                block_size=BLOCK_SIZE,
                device="cpu",
            )
        return ComputedPass(logits=self._logits[: len(inputs.logits_indices)])

    def sample(self, logits: Tensor, requests: list[Request]) -> Any:
        """Choose as the engine does."""
        return self._sampler.sample(logits, requests)

    def probe(self) -> None:
        """Be alive."""


GREEDY = SamplingParams(temperature=0, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=1, ignore_eos=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and save the result."""
    parser = argument_parser(__doc__, quick="few steps, no model")
    parser.add_argument("--steps", type=int, default=2000, help="decode steps for each number of running requests")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    steps = 200 if args.quick else args.steps

    result: dict[str, Any] = {
        "per_step": [per_step(num, steps, params) for params in (GREEDY, DRAWN) for num in RUNNING],
        "text_us_per_token": text_cost(),
    }
    print_steps(result["per_step"], steps)
    print(f"\ntext of one token, stop string watched: {result['text_us_per_token']:.1f} us")
    if args.quick:
        return
    with_a_model = {"prefix_hit": prefix_hit(), "preemption": preemption(), "invariance": invariance()}
    print(json.dumps(with_a_model, indent=2))
    save("engine", result | with_a_model, args.out)


def per_step(num_running: int, steps: int, params: SamplingParams) -> dict[str, Any]:
    """Return the milliseconds of a decode step of `num_running` requests, split, and late against early ones."""
    max_seq_len = PROMPT_TOKENS + steps + BLOCK_SIZE
    limits = SchedulerLimits(max_batch_size=num_running, max_num_batched_tokens=8192)
    tables = PagedKVCacheManager(
        [num_running * (max_seq_len // BLOCK_SIZE + 2)],
        BLOCK_SIZE,
        max_chunk=512,
        keeps_prefixes=True,
    )
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
    total, schedule, build, sample = [], [], [], []
    for _ in range(steps - 2 - PROMPT_TOKENS * num_running // 8192):
        started = time.perf_counter()
        stats = core.step().stats
        total.append((time.perf_counter() - started) * 1e3)
        schedule.append(stats.schedule_s * 1e3)
        build.append(stats.execute_s * 1e3)
        sample.append(stats.sample_s * 1e3)
    fifth = len(total) // 5
    return {
        "running": num_running,
        "params": "greedy" if params.is_greedy else "drawn",
        "total_ms": statistics.median(total),
        "p99_ms": sorted(total)[int(len(total) * 0.99)],
        "schedule_ms": statistics.median(schedule),
        "build_ms": statistics.median(build),
        "choose_ms": statistics.median(sample),
        "late_over_early": statistics.median(total[-fifth:]) / statistics.median(total[:fifth]),
    }


def print_steps(rows: Sequence[dict[str, Any]], steps: int) -> None:
    """Print the table of step costs."""
    columns = ("total_ms", "schedule_ms", "build_ms", "choose_ms", "outputs_ms", "p99_ms")
    head = ["running", "tokens", "step, ms", "schedule", "build", "choose", "outputs", "p99", f"last fifth of {steps}"]
    cells = []
    for row in rows:
        rest = row["total_ms"] - row["schedule_ms"] - row["build_ms"] - row["choose_ms"]
        times = [f"{(row | {'outputs_ms': rest})[name]:.3f}" for name in columns]
        cells.append([row["running"], row["params"], *times, f"{row['late_over_early']:.2f} times the first"])
    worst = max(row["total_ms"] - row["choose_ms"] for row in rows)
    print(f"\n{table(head, cells)}\n")
    print(f"slowest median without choosing, which is arithmetic on logits: {worst:.3f} ms; the limit is {LIMIT_MS} ms")


def text_cost() -> float:
    """Return the microseconds that the text of one token takes in its output processor."""
    tokenizer = dummy_tokenizer(VOCAB_SIZE)
    text = OutputProcessor(IncrementalDetokenizer(tokenizer, [65]), StopStringMatcher(("never found",)))
    outputs = [
        TokenOutput(request_id="r", token_ids=[65 + i % 26], num_prompt_tokens=1, num_completion_tokens=i)
        for i in range(5000)
    ]
    started = time.perf_counter()
    for output in outputs:
        text.process(output)
    return (time.perf_counter() - started) / len(outputs) * 1e6


def prefix_hit(repeats: int = 5) -> dict[str, float]:
    """Return the seconds to the first token of 1024 shared and 64 own tokens: found in the cache, and not."""
    one = SamplingParams(max_tokens=1, temperature=0)
    shared = random_prompt(1024, 0)
    seeds = count(100)
    llm = load_random(SHAPE, max_batch_size=4)
    llm.generate([shared + random_prompt(64, 1)], one, use_tqdm=False)
    return compare(
        repeats,
        hit=lambda: llm.generate([shared + random_prompt(64, next(seeds))], one, use_tqdm=False),
        miss=lambda: llm.generate([random_prompt(1088, next(seeds))], one, use_tqdm=False),
    )


def preemption(repeats: int = 3) -> dict[str, float]:
    """Return the seconds of four long answers with room for all, and with room for two and a half of them."""
    prompts = [random_prompt(256, seed) for seed in range(4)]
    params = SamplingParams(max_tokens=128, temperature=0, ignore_eos=True)
    roomy = load_random(SHAPE, max_batch_size=4, max_seq_len=512)
    tight = load_random(SHAPE, max_batch_size=4, max_seq_len=512, num_kv_blocks=15, kv_reserve=0.0)
    found = compare(
        repeats,
        roomy=lambda: roomy.generate(prompts, params, use_tqdm=False),
        tight=lambda: tight.generate(prompts, params, use_tqdm=False),
    )
    return found | {"preemptions_per_run": tight.stats.num_preemptions / repeats}


def invariance(repeats: int = 3) -> dict[str, float]:
    """Return the seconds of eight answers without `batch_invariant` and with it."""
    prompts = [random_prompt(128, seed) for seed in range(8)]
    params = SamplingParams(max_tokens=32, temperature=0, ignore_eos=True)
    plain = load_random(SHAPE, max_batch_size=8, use_prefix_caching=False)
    invariant = load_random(SHAPE, max_batch_size=8, use_prefix_caching=False, batch_invariant=True)
    return compare(
        repeats,
        plain=lambda: plain.generate(prompts, params, use_tqdm=False),
        invariant=lambda: invariant.generate(prompts, params, use_tqdm=False),
    )


def compare(repeats: int, **calls: Callable[[], object]) -> dict[str, float]:
    """Return the median seconds of two calls, made in turns, and the ratio of the second to the first."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - started)
    first_s, second_s = (statistics.median(each) for each in seconds.values())
    return dict(zip((f"{name}_s" for name in calls), (first_s, second_s), strict=True)) | {"ratio": second_s / first_s}


def random_prompt(num_tokens: int, seed: int) -> list[int]:
    """Return `num_tokens` token ids, always the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SHAPES[SHAPE]["vocab_size"], (num_tokens,), generator=generator).tolist()

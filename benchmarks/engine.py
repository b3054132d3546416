"""What the engine itself costs per step, without a model: scheduling, batch building, choosing tokens, output handling.

A null model takes every step's inputs and gives logits that are ready-made; everything else is the engine that serves.
The bound is 2 ms a step at 256 running requests, and the cost must not grow with the tokens generated so far. Choosing
is measured apart, as drawing is arithmetic on the logits, here of a vocabulary of 1024; so is the front's text.
Then, with a small real model: what prefix hits save, what preemption and invariance cost.

    uv run python benchmarks/engine.py
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infer_cache import GroupSpec, PagedKVCacheManager
from infer_engine import LLM, SamplingParams
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
from report import ROOT, save
from shapes import SHAPES, write_shape

RUNNING = (8, 64, 256)
VOCAB_SIZE = 1024
BLOCK_SIZE = 64
PROMPT_TOKENS = 128
LIMIT_MS = 2.0


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


def main() -> None:
    """Measure, print tables and save the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="decode steps for each number of running requests")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few steps, no model; result not saved")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    steps = 200 if args.quick else args.steps

    result: dict[str, Any] = {
        "per_step": [per_step(count, steps, params) for params in (GREEDY, DRAWN) for count in RUNNING],
        "text_us_per_token": text_cost(),
    }
    print_steps(result["per_step"], steps)
    print(f"\ntext of one token, stop string watched: {result['text_us_per_token']:.1f} us")
    if args.quick:
        return
    result |= {"prefix_hit": prefix_hit(), "preemption": preemption(), "invariance": invariance()}
    print(json.dumps({name: result[name] for name in ("prefix_hit", "preemption", "invariance")}, indent=2))
    print("saved", save("engine", result, args.out))


GREEDY = SamplingParams(temperature=0, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=1, ignore_eos=True)


def per_step(num_running: int, steps: int, params: SamplingParams) -> dict[str, Any]:
    """Return the milliseconds of a decode step of `num_running` requests, split, and late against early ones."""
    max_seq_len = PROMPT_TOKENS + steps + BLOCK_SIZE
    limits = SchedulerLimits(max_batch_size=num_running, max_num_batched_tokens=8192)
    kv_cache_manager = PagedKVCacheManager(
        [GroupSpec(num_blocks=num_running * (max_seq_len // BLOCK_SIZE + 2))],
        BLOCK_SIZE,
        max_chunk=512,
        keeps_prefixes=True,
    )
    core = EngineCore(
        NullRunner(max_seqs=num_running, max_seq_len=max_seq_len),
        ContinuousScheduler(kv_cache_manager, limits, POLICIES["fcfs"]),
        kv_cache_manager,
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
    print(f"\n| running | tokens | step | schedule | build | choose | outputs | p99 | last fifth of {steps} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        rest = row["total_ms"] - row["schedule_ms"] - row["build_ms"] - row["choose_ms"]
        print(
            f"| {row['running']} | {row['params']} | {row['total_ms']:.3f} ms | {row['schedule_ms']:.3f} "
            f"| {row['build_ms']:.3f} | {row['choose_ms']:.3f} | {rest:.3f} | {row['p99_ms']:.3f} "
            f"| {row['late_over_early']:.2f} times the first |"
        )
    worst = max(row["total_ms"] - row["choose_ms"] for row in rows)
    print(
        f"\nslowest median without choosing, which is arithmetic on logits: {worst:.3f} ms; the limit is {LIMIT_MS} ms"
    )


def text_cost() -> float:
    """Return the microseconds that the text of one token takes on the front's side."""
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


@contextmanager
def engine(**config: Any) -> Iterator[LLM]:
    """Yield a SmolLM-135M shape with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        yield LLM(str(write_shape("smollm-135m", Path(folder))), load_format="dummy", **config)


def seconds(call: Callable[[], object]) -> float:
    """Return how long `call` takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def random_prompt(num_tokens: int, seed: int) -> list[int]:
    """Return `num_tokens` token ids, always the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SHAPES["smollm-135m"]["vocab_size"], (num_tokens,), generator=generator).tolist()


def prefix_hit(repeats: int = 5) -> dict[str, float]:
    """Return the seconds to the first token of 1024 shared and 64 own tokens: found in the cache, and not."""
    one = SamplingParams(max_tokens=1, temperature=0)
    shared = random_prompt(1024, 0)
    hits, misses = [], []
    with engine(max_batch_size=4) as llm:
        llm.generate([shared + random_prompt(64, 1)], one, use_tqdm=False)
        for repeat in range(repeats):
            hit = [shared + random_prompt(64, 100 + repeat)]
            miss = [random_prompt(1088, 200 + repeat)]
            hits.append(seconds(lambda prompts=hit: llm.generate(prompts, one, use_tqdm=False)))  # type: ignore[misc]
            misses.append(seconds(lambda prompts=miss: llm.generate(prompts, one, use_tqdm=False)))  # type: ignore[misc]
    hit_s, miss_s = statistics.median(hits), statistics.median(misses)
    return {"hit_s": hit_s, "miss_s": miss_s, "ratio": miss_s / hit_s}


def preemption(repeats: int = 3) -> dict[str, float]:
    """Return the seconds of four long answers with room for all, and with room for two and a half of them."""
    prompts = [random_prompt(256, seed) for seed in range(4)]
    params = SamplingParams(max_tokens=128, temperature=0, ignore_eos=True)
    roomy, tight, count = [], [], 0
    with (
        engine(max_batch_size=4, max_seq_len=512) as free,
        engine(max_batch_size=4, max_seq_len=512, num_kv_blocks=15, kv_reserve=0.0) as pressed,
    ):
        for _ in range(repeats):
            roomy.append(seconds(lambda: free.generate(prompts, params, use_tqdm=False)))
            tight.append(seconds(lambda: pressed.generate(prompts, params, use_tqdm=False)))
        count = pressed.stats.num_preemptions
    return {
        "roomy_s": statistics.median(roomy),
        "tight_s": statistics.median(tight),
        "ratio": statistics.median(tight) / statistics.median(roomy),
        "preemptions_per_run": count / repeats,
    }


def invariance(repeats: int = 3) -> dict[str, float]:
    """Return the tokens per second of eight answers with and without `batch_invariant`."""
    prompts = [random_prompt(128, seed) for seed in range(8)]
    params = SamplingParams(max_tokens=32, temperature=0, ignore_eos=True)
    plain, exact = [], []
    with (
        engine(max_batch_size=8, use_prefix_caching=False) as free,
        engine(max_batch_size=8, use_prefix_caching=False, batch_invariant=True) as invariant,
    ):
        for _ in range(repeats):
            plain.append(seconds(lambda: free.generate(prompts, params, use_tqdm=False)))
            exact.append(seconds(lambda: invariant.generate(prompts, params, use_tqdm=False)))
    return {
        "plain_s": statistics.median(plain),
        "invariant_s": statistics.median(exact),
        "ratio": statistics.median(exact) / statistics.median(plain),
    }


if __name__ == "__main__":
    main()

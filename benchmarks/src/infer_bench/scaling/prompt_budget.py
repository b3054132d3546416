"""What a budget of prompt tokens beside decodes would cost and give on an H100. Counted and simulated, not measured.

    uv run infer-bench prompt-budget
    uv run infer-bench prompt-budget --budget 256 480 8192 --rate-scale 1 4
    uv run infer-bench prompt-budget --workload mixed --num-requests 256 --rate-scale 1

The scheduler is the one that serves, with the limits that an engine on a GPU has. A step takes what
`infer_bench.kernels.mixed_steps` counts for it. Requests are those of the workload `chunked_prefill` at full lengths,
ten times as many, so that a percentile is of more than a few.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infer_bench.client.workloads import WORKLOADS, make_workload
from infer_bench.kernels.expectations import LLAMA_8B
from infer_bench.kernels.mixed_steps import Chunk, MixedSteps
from infer_bench.results import argument_parser, save, table
from infer_bench.scaling.prompt_cap import Numbers, play
from infer_bench.shapes import SHAPES, Shape
from infer_cache import PagedKVCacheManager
from infer_engine.core.engine_core import EngineCore
from infer_engine.core.prefix_sharing import share_with_all
from infer_engine.messages import StepResult
from infer_engine.model_runner.graphs.prompt_tokens import DECODES_BESIDE_PROMPTS
from infer_engine.outputs import SampledTokens
from infer_engine.protocol import EngineConfig
from infer_engine.request import Request, RequestState
from infer_engine.scheduling import POLICIES, ContinuousScheduler, Schedule
from infer_engine.sizing import size_step
from infer_engine.step_runner import ComputedPass

BLOCK_SIZE, NUM_BLOCKS = 64, 6000
"""384,000 tokens: what 50 GB hold of an 8B model's keys and values."""
NO_BUDGET = 8192
"""As many tokens as a step has."""
BUDGETS = (128, 256, 384, 480, 512, 768, 992, 1024, 1536, 2048, 2272, NO_BUDGET)
NUM_REQUESTS = 480


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A model, and factors on the rate of the workload's requests."""

    name: str
    shape: Shape
    rate_scales: tuple[float, ...]


LOADS = (
    Load(name="Llama-3.1-8B", shape=LLAMA_8B, rate_scales=(1, 3)),
    Load(name="Qwen3-0.6B", shape=SHAPES["qwen3-0.6b"], rate_scales=(1, 12)),
)


class CountedRunner:
    """Computes nothing, and says what each step would take."""

    def __init__(self, steps: MixedSteps) -> None:
        """Take the times of `steps`."""
        self._steps = steps
        self.last_s = 0.0

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Count a pass."""
        contexts: list[int] = []
        chunks: list[Chunk] = []
        for request, count in schedule.items:
            if request.state is RequestState.DECODE:
                contexts.append(request.num_computed_tokens + 1)
            else:
                chunks.append((request.num_computed_tokens, count))
        self.last_s = self._steps.seconds(contexts, chunks)
        return ComputedPass(logits=lambda: [0] * len(schedule.needs_sampling))

    def sample(self, computed: ComputedPass, requests: list[Request]) -> SampledTokens:
        """Return a token for each request."""
        del computed
        return SampledTokens.known([1] * len(requests))

    def probe(self) -> None:
        """Nothing can break."""


def simulate(
    shape: Shape,
    budget: int,
    *,
    workload: str = "chunked_prefill",
    rate_scale: float = 1.0,
    num_requests: int = NUM_REQUESTS,
) -> Numbers:
    """Return what the requests of a workload get with so many prompt tokens beside decodes."""
    config = EngineConfig(max_prefill_tokens_beside_decodes=budget)
    limits = size_step(config, device=torch.device("cuda"), model_max_seq_len=8192)
    runner = CountedRunner(
        MixedSteps(shape, max_batch_size=limits.max_batch_size, max_tokens=limits.max_step_tokens(8192))
    )
    manager = PagedKVCacheManager([NUM_BLOCKS], BLOCK_SIZE, max_chunk=limits.prefill_chunk_size, keeps_prefixes=True)
    core = EngineCore(
        runner,
        ContinuousScheduler(manager, limits, POLICIES["fcfs"]),
        manager,
        eos_token_ids=frozenset(),
        share_prefix=share_with_all,
        clock=lambda: 0.0,
    )

    def step(core: EngineCore) -> tuple[StepResult, float]:
        runner.last_s = 0.0
        return core.step(), runner.last_s

    made = make_workload(workload, rate_scale=rate_scale, vocab_size=100_000, num_requests=num_requests)
    return play(core, made, step=step)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate every budget under every load, print a table and save it."""
    parser = argument_parser(__doc__, quick="two budgets, 48 requests")
    parser.add_argument("--workload", choices=WORKLOADS, default="chunked_prefill")
    parser.add_argument("--num-requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--budget", type=int, nargs="+", default=BUDGETS, help=f"{NO_BUDGET} is none")
    parser.add_argument("--rate-scale", type=float, nargs="+", help="factors on the workload's rate")
    args = parser.parse_args(arguments)
    budgets, num_requests = ((480, NO_BUDGET), 48) if args.quick else (args.budget, args.num_requests)
    rows: list[dict[str, Any]] = []
    for load in LOADS:
        for rate_scale in args.rate_scale or load.rate_scales:
            for budget in budgets:
                found = simulate(
                    load.shape, budget, workload=args.workload, rate_scale=rate_scale, num_requests=num_requests
                )
                of_load = {"model": load.name, "rate": f"x{rate_scale:g}", "budget": budget}
                rows.append({**of_load, "step, times": lengthen(load.shape, budget), **found})
    print(table(list(rows[0]), [[_cell(key, value) for key, value in row.items()] for row in rows]))
    if not args.quick:
        plan = {"workload": args.workload, "num_requests": num_requests}
        save(
            "prompt-budget",
            {**plan, "chosen": {load.name: chosen(load.shape) for load in LOADS}, "rows": rows},
            args.out,
        )


def chosen(shape: Shape) -> int:
    """Return the budget of an engine on an H100 that is left to itself."""
    return MixedSteps(shape).max_captured_tokens - DECODES_BESIDE_PROMPTS


def lengthen(shape: Shape, budget: int) -> float:
    """Return how many times as long a step of 16 decodes of 1,000 tokens takes with a chunk that fills the budget."""
    steps, contexts = MixedSteps(shape), [1000] * 16
    return steps.seconds(contexts, [(0, min(budget, 2048))]) / steps.seconds(contexts, [])


def _cell(key: str, value: object) -> str:
    if key == "budget":
        return "none" if value == NO_BUDGET else f"{value:,}"
    if not isinstance(value, float):
        return f"{value}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

"""Where the time of a step goes on a CPU, and how far it is from its floors.

    uv run infer-bench cpu-steps
    uv run infer-bench cpu-steps --shape qwen3-0.6b-8k --least-share 0.5
    uv run infer-bench cpu-steps --shape qwen3-0.6b-8k --quantization none int8 int4

The engine is the one that serves, with random weights, in this process. Turn by turn: decode steps of one sequence of
128 tokens and of 16, a prompt of 1024, and two floors for each:

    read        all weights once, of experts the chosen ones, at the best rate at which this machine was seen to read
    products    the dense layers and the experts alone, one after another

Several `--quantization` are measured in turns in one process, each with an engine of its own, and compared with the
first. Weights are what one model holds after it was loaded, a copy of a tied LM head included.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from infer_bench.ceilings import CeilingProbe
from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import SHAPES, write_config
from infer_bench.weight_memory import bf16_bytes, weight_bytes
from infer_engine.assembly.core import build_core
from infer_engine.messages import Submit
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_models import CausalView, ModelConfig, load_model
from infer_models.layers import Experts, LinearBase, Router

if TYPE_CHECKING:
    from infer_kernels import Routing

PROMPT_TOKENS, DECODED_TOKENS, NUM_SEQS = 1024, 128, 16
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
STAGES = ("schedule", "forward pass", "choose tokens", "rest")
Times = dict[str, float]
"""Milliseconds of a step, or of a prompt's steps together, by stage; `read` and `products` are floors."""
Found = dict[str, Times]
"""Medians, by what was computed."""
PLAIN = "none"
"""The quantization of weights that stay as they are."""


class SteppedEngine:
    """An engine that is stepped by hand."""

    def __init__(self, folder: Path, *, quantization: str) -> None:
        """Load the shape in `folder`, with random weights."""
        config = EngineConfig(
            model=str(folder),
            load_format="dummy",
            device="cpu",
            max_batch_size=NUM_SEQS,
            **quantization_option(quantization),
        )
        built = build_core(config)
        self._core, self._vocab_size = built.core, built.info.vocab_size
        self._numbers = count()

    def decode(self, num_seqs: int, *, num_steps: int) -> list[Times]:
        """Return the stages of decode steps of `num_seqs` sequences."""
        self._submit(num_seqs, DECODED_TOKENS, max_tokens=num_steps + 2)
        began = self._core.stats.num_generated_tokens
        while self._core.stats.num_generated_tokens < began + num_seqs:
            self._core.step()
        steps = [self._step() for _ in range(num_steps)]
        while self._core.has_work:
            self._core.step()
        return steps

    def prefill(self, num_tokens: int) -> Times:
        """Return the stages of a prompt's steps together, up to its first token."""
        self._submit(1, num_tokens, max_tokens=1)
        parts = []
        while self._core.has_work:
            parts.append(self._step())
        return {stage: sum(part[stage] for part in parts) for stage in STAGES}

    def _submit(self, num_seqs: int, num_tokens: int, *, max_tokens: int) -> None:
        for number, _ in zip(self._numbers, range(num_seqs), strict=False):
            draw = Random(number)  # noqa: S311 - a workload, not a secret
            prompt = [draw.randrange(3, self._vocab_size) for _ in range(num_tokens)]
            self._core.handle(
                Submit(request_id=f"{number}", prompt_token_ids=prompt, max_tokens=max_tokens, seed=0, params=GREEDY)
            )

    def _step(self) -> Times:
        busy_s = self._core.stats.busy_s
        stats = self._core.step().stats
        seconds = (stats.schedule_s, stats.execute_s, stats.sample_s)
        rest_s = stats.busy_s - busy_s - sum(seconds)
        return {stage: 1e3 * each for stage, each in zip(STAGES, (*seconds, rest_s), strict=True)}


class Floors:
    """What a step takes at the least."""

    def __init__(self, folder: Path, *, quantization: str) -> None:
        """Load the shape in `folder` once more, as the engine does."""
        self._dtype = getattr(torch, ModelConfig.from_folder(folder).dtype)
        self._model = load_model(
            folder,
            device=torch.device("cpu"),
            dtype=self._dtype,
            load_format="dummy",
            **quantization_option(quantization),
        )
        layers = [each for each in self._model.modules() if isinstance(each, LinearBase)]
        self._widths = {each: in_features(each) for each in layers}
        self._model.prepack()
        self._num_bytes = sum(weight_bytes(each) for each in layers)
        self._expert_bytes = 0
        for each in self._model.modules():
            if isinstance(each, Experts):
                self._expert_bytes = weight_bytes(each) // each.num_experts
        self.weight_bytes = weight_bytes(self._model)
        self.bf16_bytes = bf16_bytes(self._model.num_parameters)
        self._probe = CeilingProbe(torch.device("cpu"), torch.bfloat16, matmul_sizes=[64])

    def measure(self, num_rows: int, *, num_logits: int) -> Times:
        """Return the floors of a step of `num_rows` rows, of which `num_logits` reach the LM head."""
        self._probe.measure()
        num_bytes = self._num_bytes + self._expert_bytes * self._num_chosen(num_rows)
        return {
            "read": 1e3 * num_bytes / self._probe.best.read_bytes_per_s,
            "products": min(self._products_ms(num_rows, num_logits) for _ in range(3)),
        }

    @torch.inference_mode()
    def _num_chosen(self, num_rows: int) -> int:
        """Return how many experts a step of random tokens chooses, of all layers together."""
        chosen: list[int] = []
        hooks = [
            each.register_forward_hook(lambda _, __, routing: chosen.append(len(routing.choice.expert_ids.unique())))
            for each in self._model.modules()
            if isinstance(each, Router)
        ]
        if hooks:
            ids = torch.randint(3, self._model.config.vocab_size, (num_rows,))
            self._model.hidden_states(ids, torch.zeros(num_rows, dtype=torch.int64), CausalView([1] * num_rows))
        for hook in hooks:
            hook.remove()
        return sum(chosen)

    @torch.inference_mode()
    def _products_ms(self, num_rows: int, num_logits: int) -> float:
        inputs = {width: torch.randn(num_rows, width).to(self._dtype) for width in self._widths.values()}
        routing: Routing | None = None
        began_s = time.perf_counter()
        for layer in self._model.modules():
            if isinstance(layer, Experts):
                assert routing is not None
                layer(routing)
            elif isinstance(layer, LinearBase):
                rows = inputs[self._widths[layer]]
                result = layer(rows[:num_logits] if layer is self._model.lm_head else rows)
                routing = result if isinstance(layer, Router) else routing
        return 1e3 * (time.perf_counter() - began_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured with one quantization.

    Attributes:
        milliseconds: of each stage and floor, by what was computed.
        weight_bytes: what the model's weights take.
        share_of_bf16: of what all its weights take in bf16, a tied LM head counted once.
    """

    milliseconds: Found
    weight_bytes: int
    share_of_bf16: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and save them; return 1 where a share of a floor is less than it must be."""
    args = read_arguments(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    measured = measure(args)
    print(f"\n{args.shape}, random weights, {torch.get_num_threads()} threads; medians of {args.rounds} rounds")
    for quantization, each in measured.items():
        print(f"\nquantization `{quantization}`:\n\n{stage_table(each.milliseconds)}")
    print(f"\n{quantization_table(measured)}")
    if not args.quick:
        name = f"cpu-steps-{args.shape}{'' if args.quantization == [PLAIN] else '-quantized'}"
        found = {quantization: asdict(each) for quantization, each in measured.items()}
        save(name, {"shape": args.shape, "measured": found, "speedups": speedups(measured)}, args.out)
    missed = [text for quantization, each in measured.items() for text in missed_shares(quantization, each, args)]
    for text in missed:
        print(f"\n{text}", file=sys.stderr)
    return 1 if missed else 0


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked."""
    parser = argument_parser(__doc__, quick="a small shape, few rounds")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="left out: smollm-135m, or llama-30m with `--quick`")
    parser.add_argument(
        "--quantization", nargs="+", default=[PLAIN], help="of the weights; several are compared with the first"
    )
    parser.add_argument("--rounds", type=int, help="left out: 5, or 2 with `--quick`")
    parser.add_argument("--steps", type=int, default=16, help="decode steps of each kind in a round")
    parser.add_argument("--threads", type=int, help="left out: torch's own choice")
    parser.add_argument("--least-share", type=float, help="fail where products are a smaller share, from 0 to 1")
    parser.add_argument("--least-read-share", type=float, help="fail where reading is a smaller share of decodes")
    args = parser.parse_args(arguments)
    args.shape = args.shape or ("llama-30m" if args.quick else "smollm-135m")
    args.quantization = list(dict.fromkeys(args.quantization))
    args.rounds = (2 if args.quick else 5) if args.rounds is None else args.rounds
    if args.rounds < 1 or args.steps < 1:
        parser.error(f"`--rounds` is {args.rounds} and `--steps` {args.steps}; both must be at least 1")
    return args


def measure(args: argparse.Namespace) -> dict[str, Measured]:
    """Return the medians by quantization."""
    with tempfile.TemporaryDirectory() as made:
        folder = write_config(args.shape, Path(made))
        sides = {
            each: (SteppedEngine(folder, quantization=each), Floors(folder, quantization=each))
            for each in args.quantization
        }
        turns: dict[str, dict[str, list[Times]]] = {quantization: {} for quantization in sides}
        for engine, floors in sides.values():  # warms up
            take_turn(engine, floors, num_steps=2)
        for number in range(args.rounds):
            for quantization in sides if number % 2 == 0 else reversed(sides):
                for name, steps in take_turn(*sides[quantization], num_steps=args.steps).items():
                    turns[quantization].setdefault(name, []).extend(steps)
    return {
        quantization: Measured(
            milliseconds={
                name: {stage: statistics.median(step[stage] for step in steps) for stage in steps[0]}
                for name, steps in turns[quantization].items()
            },
            weight_bytes=floors.weight_bytes,
            share_of_bf16=floors.weight_bytes / floors.bf16_bytes,
        )
        for quantization, (_, floors) in sides.items()
    }


def take_turn(engine: SteppedEngine, floors: Floors, *, num_steps: int) -> dict[str, list[Times]]:
    """Return one round's stages, each beside floors that were measured just before."""
    one = floors.measure(1, num_logits=1)
    alone = [one | step for step in engine.decode(1, num_steps=num_steps)]
    many = floors.measure(NUM_SEQS, num_logits=NUM_SEQS)
    together = [many | step for step in engine.decode(NUM_SEQS, num_steps=num_steps)]
    prompt = floors.measure(PROMPT_TOKENS, num_logits=1) | engine.prefill(PROMPT_TOKENS)
    return {"1 sequence": alone, f"{NUM_SEQS} sequences": together, f"prompt of {PROMPT_TOKENS}": [prompt]}


def quantization_option(quantization: str) -> dict[str, Any]:
    """Return the keyword that quantizes weights so; none where they stay as they are."""
    return {} if quantization == PLAIN else {"quantization": quantization}


def in_features(layer: LinearBase) -> int:
    """Return how many inputs a dense layer has, whatever its weight is."""
    weight = layer.weight
    return weight.shape[-1] if isinstance(weight, torch.Tensor) else weight.in_features


def missed_shares(quantization: str, measured: Measured, args: argparse.Namespace) -> list[str]:
    """Return which shares of floors are smaller than `args` want them, a sentence for each."""
    found = measured.milliseconds
    missed = []
    for floor, wanted, names in (
        ("products", args.least_share, list(found)),
        ("read", args.least_read_share, [name for name in found if "prompt" not in name]),
    ):
        share, name = min((share_of(found[name], floor), name) for name in names)
        if wanted is not None and share < wanted:
            missed.append(f"{quantization}, {name}: `{floor}` is {share:.0%} of the step, wanted {wanted:.0%}")
    return missed


def step_ms(times: Times) -> float:
    """Return what all stages take together."""
    return sum(times[stage] for stage in STAGES)


def speedups(measured: Mapping[str, Measured]) -> dict[str, dict[str, float]]:
    """Return how many times faster each quantization computes than the first one, by what is computed."""
    first = next(iter(measured.values())).milliseconds
    return {
        quantization: {name: step_ms(first[name]) / step_ms(times) for name, times in each.milliseconds.items()}
        for quantization, each in measured.items()
    }


def share_of(times: Times, floor: str) -> float:
    """Return how much of the step its floor is."""
    return times[floor] / step_ms(times)


def stage_table(found: Found) -> str:
    """Return a table of every stage's milliseconds, and of the floors."""
    rows = [[stage, *(f"{times[stage]:.2f} ms" for times in found.values())] for stage in STAGES]
    rows.append(["**step**", *(f"**{step_ms(times):.2f} ms**" for times in found.values())])
    rows += [
        [f"floor: {floor}", *(f"{times[floor]:.2f} ms, {share_of(times, floor):.0%}" for times in found.values())]
        for floor in ("read", "products")
    ]
    return table(["stage", *found], rows)


def quantization_table(measured: Mapping[str, Measured]) -> str:
    """Return a table of each quantization's weights, and of how many times faster it computes than the first one."""
    faster = speedups(measured)
    rows = [
        [
            quantization,
            f"{each.weight_bytes / 1e6:.1f} MB",
            f"{each.share_of_bf16:.3f}",
            *(f"{ratio:.2f}" for ratio in faster[quantization].values()),
        ]
        for quantization, each in measured.items()
    ]
    computed = next(iter(faster.values()))
    return table(["quantization", "weights", "of bf16", *(f"{name}, times faster" for name in computed)], rows)

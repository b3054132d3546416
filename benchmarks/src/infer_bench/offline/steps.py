"""The parts of a step's time on a CPU or a GPU, and its distance from its floors.

    uv run infer-bench cpu-steps
    uv run infer-bench cpu-steps --shape qwen3-0.6b-8k --least-share 0.5
    uv run infer-bench cpu-steps --shape qwen3-0.6b-8k --quantization none int8 int4
    uv run infer-bench steps --device cuda --shape llama-3.2-3b --sequences 1 64 256 --profile
    uv run infer-bench steps --device cuda --shape qwen3-0.6b --sequences 128 --beside 2272 --profile

The engine is the one that serves, with random weights, in this process. Turn by turn: decode steps of one sequence of
128 tokens and of 16, a prompt of 1024, and two floors for each:

    read        all weights once, of experts the chosen ones, at the best rate at which this machine was seen to read;
                on a GPU, where they count, also the keys and values before each token
    products    the dense layers and the experts alone, one after another

Several `--quantization` are measured in turns in one process, each with an engine of its own, and compared with the
first. Weights are what one model holds after it was loaded, a copy of a tied LM head included.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from infer_bench.limits import Limit, judge
from infer_bench.offline.floors import PLAIN, Floors, quantization_option
from infer_bench.results import Columns, argument_parser, in_turns, lines_table, medians, number, save, table
from infer_bench.shapes import NO_DRAFTS, SHAPES, write_config
from infer_engine.assembly.core import CoreParts, build_core
from infer_engine.messages import Submit
from infer_engine.model_runner.rank_model import RankModel
from infer_engine.model_runner.runner import ModelRunner
from infer_engine.protocol import EngineConfig, SamplingParams

PROMPT_TOKENS, DECODED_TOKENS = 1024, 128
PROMPTS_BESIDE = 8
"""Rows for prompts that are computed beside decodes."""
BATCHED_TOKENS = 2048
"""Tokens that every engine's step has room for; more prompts are given room, so that one step computes them all."""
STEP_WORDS = {
    "1 sequence": "a step of one sequence",
    "16 sequences": "a step of 16 sequences",
    "prompt of 1024": "a prompt of 1,024 tokens",
}
NUM_PROFILED_STEPS, NUM_LISTED_KERNELS = 8, 10
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
STAGES = ("schedule", "forward pass", "choose tokens", "rest")
GPU_OPTIONS = {"kv_cache_memory": "8GiB", "dtype": "bfloat16", "use_prefix_caching": False}
EAGER = {"use_cuda_graphs": False, "use_async_scheduling": False}
"""Every kernel is launched by the host, which waits for each step's tokens before it plans the next step."""
Times = dict[str, float]
"""Milliseconds of a step, or of a prompt's steps together, by stage; `read` and `products` are floors, and `tokens` are
those that it computed.
"""
Found = dict[str, Times]
"""Medians, by what was computed."""


class SteppedEngine:
    """An engine that is stepped by hand.

    Attributes:
        floors: floors of its steps, of its own weights.
    """

    def __init__(
        self, folder: Path, *, quantization: str, max_batch_size: int, beside: int, device: str, is_eager: bool
    ) -> None:
        """Load the shape in `folder`, with random weights; `beside` are tokens of prompts in a step with decodes."""
        options: dict[str, Any] = {} if device == "cpu" else GPU_OPTIONS | (EAGER if is_eager else {})
        if (num_tokens := max(max_batch_size * DECODED_TOKENS, max_batch_size + beside)) > BATCHED_TOKENS:
            options = options | {"max_num_batched_tokens": num_tokens}
        if beside:
            options = options | {"max_prefill_tokens_beside_decodes": beside}
        config = EngineConfig(
            model=str(folder),
            load_format="dummy",
            device=device,
            max_batch_size=max_batch_size + PROMPTS_BESIDE,
            **NO_DRAFTS,
            **options,
            **quantization_option(quantization),
        )
        rank = list[RankModel]()

        def take_model(parts: CoreParts) -> CoreParts:
            assert isinstance(parts.runner, ModelRunner)
            assert isinstance(parts.runner.model, RankModel)
            rank.append(parts.runner.model)
            return parts

        built = build_core(config, wrap_parts=take_model)
        self._core, self._vocab_size = built.core, built.info.vocab_size
        self.floors = Floors(rank[0].model, dtype=getattr(torch, built.info.dtype), device=rank[0].device)
        self._numbers = count()

    def decode(self, num_seqs: int, *, num_steps: int) -> list[Times]:
        """Return the stages of decode steps of `num_seqs` sequences."""
        self._begin(num_seqs, num_steps=num_steps)
        steps = [self._step() for _ in range(num_steps)]
        self._finish()
        return steps

    def mixed(self, num_seqs: int, num_tokens: int, *, num_steps: int) -> list[Times]:
        """Return the stages of steps of `num_seqs` decodes beside `num_tokens` tokens of prompts."""
        self._begin(num_seqs, num_steps=2 * num_steps)
        self._submit_prompts((num_steps + 2) * num_tokens)
        steps = [self._step() for _ in range(num_steps + 1)][1:]  # the first may be of decodes that were under way
        self._finish()
        return steps

    def profile(self, num_seqs: int, *, prompt_tokens: int, step_ms: float) -> dict[str, Any]:
        """Return the largest kernels of a step, microseconds of a step by name, and what they are of `step_ms`.

        A step has `num_seqs` decodes, and beside them, if they are not 0, `prompt_tokens` of prompts. On a CPU
        operators are taken for kernels. The profiler costs the host time and the device none, so that its time is
        compared with that of a step which was not profiled.
        """
        self._begin(num_seqs, num_steps=2 * NUM_PROFILED_STEPS)
        self._submit_prompts((NUM_PROFILED_STEPS + 2) * prompt_tokens)
        if prompt_tokens:
            self._step()  # as in `mixed`
        on_gpu = torch.cuda.is_available()
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
            for _ in range(NUM_PROFILED_STEPS):
                self._step()
        self._finish()
        attribute = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        kernels = {each.key: getattr(each, attribute) / NUM_PROFILED_STEPS for each in profiler.key_averages()}
        largest = sorted(kernels.items(), key=lambda kernel: -kernel[1])[:NUM_LISTED_KERNELS]
        return {"busy_share": sum(kernels.values()) / (1e3 * step_ms), "kernels_us": dict(largest)}

    def prefill(self, num_tokens: int) -> Times:
        """Return the stages of a prompt's steps together, up to its first token."""
        self._submit(1, num_tokens, max_tokens=1)
        parts = []
        while self._core.has_work:
            parts.append(self._step())
        return {each: sum(part[each] for part in parts) for each in (*STAGES, "tokens")}

    def _begin(self, num_seqs: int, *, num_steps: int) -> None:
        self._submit(num_seqs, DECODED_TOKENS, max_tokens=num_steps + 4)  # one step may be under way
        began = self._core.stats.num_generated_tokens
        while self._core.stats.num_generated_tokens < began + num_seqs:
            self._step()

    def _submit_prompts(self, num_tokens: int) -> None:
        """Submit prompts that have no fewer tokens in all, and end with their first one.

        Those of one step more than are taken are left, as a step takes no more than a chunk of each.
        """
        self._submit(-(-num_tokens // PROMPT_TOKENS), PROMPT_TOKENS, max_tokens=1)

    def _finish(self) -> None:
        while self._core.has_work:
            self._step()

    def _submit(self, num_seqs: int, num_tokens: int, *, max_tokens: int) -> None:
        for seed, _ in zip(self._numbers, range(num_seqs), strict=False):
            draw = Random(seed)  # noqa: S311 - a workload, not a secret
            prompt = [draw.randrange(3, self._vocab_size) for _ in range(num_tokens)]
            self._core.handle(
                Submit(request_id=f"{seed}", prompt_token_ids=prompt, max_tokens=max_tokens, seed=0, params=GREEDY)
            )

    def _step(self) -> Times:
        busy_s = self._core.stats.busy_s
        result = self._core.step()
        failed = [output.error.message for output in result.outputs if output.error is not None]
        if failed:  # the core goes on without such a request, and its steps would be of fewer
            raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
        stats = result.stats
        seconds = (stats.schedule_s, stats.execute_s, stats.sample_s)
        rest_s = stats.busy_s - busy_s - sum(seconds)
        times = {stage: 1e3 * each for stage, each in zip(STAGES, (*seconds, rest_s), strict=True)}
        return times | {"tokens": stats.num_step_tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements with one quantization.

    Attributes:
        milliseconds: duration of each stage and floor, by what was computed.
        weight_bytes: what the model's weights take.
        share_of_bf16: bytes of all its weights over those in bf16, a tied LM head counted once.
    """

    milliseconds: Found
    weight_bytes: int
    share_of_bf16: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and save them; return 1 where a limit is missed."""
    args = read_arguments(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    measured, profiles = measure(args)
    print(f"\n{args.shape}, random weights, {torch.get_num_threads()} threads; medians of {args.rounds} rounds")
    for quantization, each in measured.items():
        print(f"\nquantization `{quantization}`:\n\n{stage_table(each.milliseconds)}")
    for name, found in profiles.items():
        rows = [[kernel[:80], f"{us:.0f}"] for kernel, us in found["kernels_us"].items()]
        print(f"\n{name}: kernels take {found['busy_share']:.0%} of the step\n\n{table(['kernel', 'us'], rows)}")
    kind = "cpu-steps" if args.device == "cpu" else "steps-eager" if args.eager else "steps"
    result = {"shape": args.shape, "measured": {name: asdict(each) for name, each in measured.items()}}
    print(f"\n{quantization_table(result)}")
    name = f"{kind}-{args.shape}{'' if args.quantization == [PLAIN] else '-quantized'}"
    save(name, result | ({"profiles": profiles} if args.profile else {}), args)
    return judge([limit for name, each in measured.items() for limit in limits(name, each, profiles, args)])


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked."""
    parser = argument_parser(__doc__, quick="a small shape, few rounds")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="left out: smollm-135m, or llama-30m with `--quick`")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--eager", action="store_true", help="on a GPU: neither CUDA graphs nor asynchronous steps")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16], help="that decode together")
    parser.add_argument(
        "--beside", type=int, default=0, help="also measure steps with so many tokens of prompts beside the decodes"
    )
    parser.add_argument(
        "--quantization", nargs="+", default=[PLAIN], help="of the weights; several are compared with the first"
    )
    parser.add_argument("--rounds", type=int, help="left out: 5, or 2 with `--quick`")
    parser.add_argument("--steps", type=int, default=16, help="decode steps of each kind in a round")
    parser.add_argument("--threads", type=int, help="left out: torch's own choice")
    parser.add_argument("--profile", action="store_true", help="list the largest kernels of a step, too")
    parser.add_argument("--least-share", type=float, help="fail where products are a smaller share, from 0 to 1")
    parser.add_argument("--least-read-share", type=float, help="fail where reading is a smaller share of decodes")
    parser.add_argument("--most-idle", type=float, help="with `--profile`: fail where kernels leave more of a step")
    args = parser.parse_args(arguments)
    args.shape = args.shape or ("llama-30m" if args.quick else "smollm-135m")
    args.quantization = list(dict.fromkeys(args.quantization))
    args.rounds = (2 if args.quick else 5) if args.rounds is None else args.rounds
    if args.rounds < 1 or args.steps < 1:
        parser.error(f"`--rounds` is {args.rounds} and `--steps` {args.steps}; both must be at least 1")
    return args


def measure(args: argparse.Namespace) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Return the medians by quantization, and profiles of the first one's decodes where they are asked for."""
    sizes = {"max_batch_size": max(args.sequences), "beside": args.beside}
    with tempfile.TemporaryDirectory() as made:
        folder = write_config(args.shape, Path(made))
        sides = {
            each: SteppedEngine(folder, quantization=each, device=args.device, is_eager=args.eager, **sizes)
            for each in args.quantization
        }

        def turn(quantization: str, number: int) -> dict[str, list[Times]]:
            return take_turn(sides[quantization], args, num_steps=2 if number < 0 else args.steps)

        turns = in_turns({each: partial(turn, each) for each in sides}, rounds=args.rounds)
    measured = {
        quantization: Measured(
            milliseconds={name: medians([step for turn in found for step in turn[name]]) for name in found[0]},
            weight_bytes=sides[quantization].floors.weight_bytes,
            share_of_bf16=sides[quantization].floors.weight_bytes / sides[quantization].floors.bf16_bytes,
        )
        for quantization, found in turns.items()
    }
    if not args.profile:
        return measured, {}
    engine, times = sides[args.quantization[0]], measured[args.quantization[0]].milliseconds
    return measured, {
        name: engine.profile(num_seqs, prompt_tokens=prompt_tokens, step_ms=step_ms(times[name]))
        for num_seqs in args.sequences
        for prompt_tokens in dict.fromkeys((0, args.beside))
        for name in (decodes_name(num_seqs, beside=prompt_tokens),)
    }


def take_turn(engine: SteppedEngine, args: argparse.Namespace, *, num_steps: int) -> dict[str, list[Times]]:
    """Return one round's stages, each beside floors that were measured just before."""
    floors, found = engine.floors, {}
    for num_seqs in args.sequences:
        least = floors.measure(num_seqs, num_logits=num_seqs, num_context=DECODED_TOKENS)
        found[decodes_name(num_seqs)] = [least | step for step in engine.decode(num_seqs, num_steps=num_steps)]
        if args.beside:
            least = floors.measure(num_seqs + args.beside, num_logits=num_seqs, num_context=0)
            steps = engine.mixed(num_seqs, args.beside, num_steps=num_steps)
            found[decodes_name(num_seqs, beside=args.beside)] = [least | step for step in steps]
    prompt = floors.measure(PROMPT_TOKENS, num_logits=1) | engine.prefill(PROMPT_TOKENS)
    return {**found, f"prompt of {PROMPT_TOKENS}": [prompt]}


def decodes_name(num_seqs: int, *, beside: int = 0) -> str:
    """Return what results call the decodes of so many sequences, and those beside tokens of prompts."""
    name = f"{num_seqs} sequence{'s' if num_seqs > 1 else ''}"
    return f"{name} beside {beside} prompt tokens" if beside else name


def limits(quantization: str, measured: Measured, profiles: Mapping[str, Any], args: argparse.Namespace) -> list[Limit]:
    """Return the limits that `args` set: of the smallest shares of floors, and of what kernels leave of a step."""
    found = measured.milliseconds
    wanted = []
    decodes = [name for name in found if "prompt" not in name]
    for floor, least, names in (("products", args.least_share, found), ("read", args.least_read_share, decodes)):
        if least is not None:
            share, name = min((share_of(found[name], floor), name) for name in names)
            what = f"{quantization}, {name}: share of `{floor}` in the step"
            wanted.append(Limit(what=what, value=share, least=least))
    if args.most_idle is not None:
        wanted += [
            Limit(what=f"{name}: share of the step without a kernel", value=1 - each["busy_share"], most=args.most_idle)
            for name, each in profiles.items()
        ]
    return wanted


def step_ms(times: Times) -> float:
    """Return what all stages take together."""
    return sum(times[stage] for stage in STAGES)


def share_of(times: Times, floor: str) -> float:
    """Return how much of the step its floor is."""
    return times[floor] / step_ms(times)


def stage_table(found: Found) -> str:
    """Return a table of every stage's milliseconds, and of the floors."""
    lines: Columns = {
        **{stage: f"{{{stage}:.2f}} ms" for stage in STAGES},
        "**step**": lambda times: f"**{step_ms(times):.2f} ms**",
        "floor: read": lambda times: f"{times['read']:.2f} ms, {share_of(times, 'read'):.0%}",
        "floor: products": lambda times: f"{times['products']:.2f} ms, {share_of(times, 'products'):.0%}",
    }
    return lines_table(lines, found.items(), corner="stage")


def quantization_table(result: Mapping[str, Any]) -> str:
    """Return the memory and the steps of each quantization, beside the first one's."""
    measured: dict[str, dict[str, Any]] = result["measured"]
    first = next(iter(measured))
    plain = measured[first]["milliseconds"]

    def weights(name: str) -> str:
        share = "" if name == first else f", {measured[name]['share_of_bf16']:.2f} of bf16"
        return f"{measured[name]['weight_bytes'] / 1e6:.1f} MB{share}"

    def cell(name: str, kind: str) -> str:
        times = measured[name]["milliseconds"][kind]
        floor = f", floor {number(times['read'])}" if kind == "1 sequence" else ""
        faster = "" if name == first else f": {step_ms(plain[kind]) / step_ms(times):.2f} times faster"
        return f"{number(step_ms(times))} ms{floor}{faster}"

    lines: Columns = {"weights": weights} | {
        STEP_WORDS.get(kind, kind): lambda name, kind=kind: cell(name, kind)  # type: ignore[misc]  # a default
        for kind in plain
    }
    return lines_table(lines, (("bf16" if name == PLAIN else name, name) for name in measured))

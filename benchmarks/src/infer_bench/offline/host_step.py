"""The host's time of one decode step as it is on a GPU, without a GPU and without the model's forward pass.

    uv run infer-bench host-step
    uv run infer-bench host-step --beside ../before     another checkout, round by round in turn, and the ratios

The core is assembled as the one that serves: scheduler, KV cache manager, input buffers, attention plans, sampler. The
model alone is replaced: its hidden states and logits are there before they are asked for, and a captured step's replay
does nothing. Ops take their path on a GPU over a driver that launches nothing, so a kernel costs what the host does for
it. Tensors are on the CPU: not in these times are pinned copies, events, and the wait for the device. Steps are
captured without the check that an engine makes at its start, as nothing is computed that it could compare. The result
says how many there are, and a round in which the timed steps do not replay them fails.

Of each batch, prompts end at different places in their blocks, so each step allocates its share of them. Each round is
a process of its own, with the packages of its checkout (`.venv`) and the benchmarks of this one.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import torch
from torch import Tensor

from infer_bench.results import ROOT, argument_parser, current_commit, in_turns, medians, save, table
from infer_bench.shapes import NO_DRAFTS, QWEN3_06B, Shape, write_config
from infer_engine.assembly.core import build_core
from infer_engine.core.engine_core import EngineCore
from infer_engine.messages import Abort, Submit
from infer_engine.model_runner.graphs import gpu_graphs
from infer_engine.model_runner.graphs.checks.graph_check import GraphChecker
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_models import CausalLM
from infer_proofs.kernels.compiled.ahead_of_time import compile_only

BATCHES, CONTEXTS = (1, 64, 256), (200, 4000)
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9, ignore_eos=True),
}
STAGES = {"schedule_s": "schedule", "execute_s": "build inputs, plan", "sample_s": "sample"}
"""Names of the stages that `EngineStats` counts; a stage that is not listed has the name that it has there."""
BLOCK_SIZE = 64
MAX_STEP_TOKENS = 8192
MAX_NEW_TOKENS = 512
"""More than a request decodes, while others are prefilled and then in the steps that are timed."""
MAX_READ_ELEMENTS = 1 << 16
"""Elements of the largest tensor that the host reads although no kernel has written it."""
NUM_WARM_STEPS = 8
NUM_THREADS = 1
VOCAB_SIZE = 256
"""Small, as the CPU reads the logits that a device would read."""
SHAPE: Shape = QWEN3_06B | {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OTHER_PYTHON = ".venv/bin/python"
"""The Python of another checkout, in its folder."""
ROUND = ("-P", str(Path(__file__).resolve()))
"""Runs a round. Its argument is a `Plan`, as JSON, and its last line the result.

`-P` keeps this folder out of the path, as one of its modules is called as a package is.
"""

Times = dict[str, float]
"""Microseconds of a step by stage, and `step`, which is all of it."""


@dataclass(slots=True)
class Captures:
    """The steps captured in a round, unchecked, and the replays of steps and of choices of tokens so far."""

    num_steps: int = 0
    num_replays: int = 0
    refusal: None = None
    """No check refuses any; an engine asks."""

    def __str__(self) -> str:
        """Return one line for `EngineInfo`."""
        return f"{self.num_steps} steps are captured, and not checked: nothing is computed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The measurements of a round: requests that decode together, tokens of each, and decode steps of each kind."""

    batches: Sequence[int] = BATCHES
    contexts: Sequence[int] = CONTEXTS
    num_steps: int = 100


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables and save the result."""
    args = read_arguments(arguments)
    torch.set_num_threads(NUM_THREADS)  # as each round does: the result says how many
    checkouts = {str(checkout): checkout for checkout in (ROOT, *args.beside)}
    plan = Plan(num_steps=args.steps)
    found = in_turns(
        {name: lambda _, checkout=checkout: run_apart(checkout, plan) for name, checkout in checkouts.items()},  # type: ignore[misc]  # a default
        rounds=args.rounds,
        warm_up=0,
    )
    own, *others = commits = [summarize(rounds) for rounds in found.values()]
    for each in commits:
        print(f"\n{each['commit']}: microseconds of a step, medians of {args.rounds} rounds, one thread")
        print(f"{each['captured_steps']} steps captured, and not checked\n\n{time_table(each['microseconds'])}")
    for other in others:
        found_ratios = ratios(own["rounds"], other["rounds"])
        print(f"\n{own['commit']} / {other['commit']}, median of the rounds' ratios\n")
        print(table(["decode", "ratio"], [[name, f"{ratio:.2f}"] for name, ratio in found_ratios.items()]))
    save(args.name, {"steps": args.steps, "commits": commits}, args)


def read_arguments(arguments: Sequence[str] | None) -> Namespace:
    """Return the command line's flags, checked."""
    parser = argument_parser(__doc__, quick="one round of few steps")
    parser.add_argument("--rounds", type=int, help="left out: 5, or 1 with `--quick`")
    parser.add_argument("--steps", type=int, help="decode steps of each kind in a round; left out: 100, or 10")
    parser.add_argument("--beside", type=Path, action="append", default=[], help="another checkout with its `.venv`")
    parser.add_argument("--name", default="host-step", help="of the result, without `.json`")
    args = parser.parse_args(arguments)
    args.rounds = (1 if args.quick else 5) if args.rounds is None else args.rounds
    args.steps = (10 if args.quick else 100) if args.steps is None else args.steps
    most = MAX_NEW_TOKENS // 2
    if args.rounds < 1 or not 1 <= args.steps <= most:
        parser.error(f"`--rounds` is {args.rounds} and `--steps` {args.steps}; set 1 or more, and 1 to {most}")
    args.beside = [checkout.resolve() for checkout in args.beside]
    for checkout in args.beside:
        if not (checkout / OTHER_PYTHON).exists():
            parser.error(f"`{checkout / OTHER_PYTHON}` is missing; run `uv sync --all-groups` in that checkout")
    return args


def run_apart(checkout: Path, plan: Plan) -> dict[str, Any]:
    """Return what `run_here` finds in the environment of `checkout`, and its commit.

    Raises:
        RuntimeError: the round failed.
    """
    print(f"a round in {checkout}", file=sys.stderr, flush=True)
    python = sys.executable if checkout == ROOT else str(checkout / OTHER_PYTHON)
    command = [python, *ROUND, json.dumps(asdict(plan))]
    own = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks" / "src")}  # of other packages it has its own
    ended = subprocess.run(command, cwd=checkout, env=own, check=False, capture_output=True, text=True)  # noqa: S603 - this program
    if ended.returncode:
        raise RuntimeError(f"a round in `{checkout}` ended with exit code {ended.returncode}:\n{ended.stderr}")
    return {"commit": current_commit(checkout), **json.loads(ended.stdout.splitlines()[-1])}


def run_here(plan: Plan) -> dict[str, Any]:
    """Return what this environment captures, and the medians of a round by what was computed."""
    torch.set_num_threads(NUM_THREADS)
    kinds = [*(("greedy", context) for context in plan.contexts), ("top-p", next(iter(plan.contexts)))]
    with tempfile.TemporaryDirectory() as made, on_a_path_to_no_device(plan) as captures:
        core, numbers = build(write_config(SHAPE, Path(made)), plan), count()
        found = {
            f"{num_seqs} x {context:,} tokens, {sampling}": medians(
                decode(core, numbers, num_seqs, context, SAMPLINGS[sampling], captures, num_steps=plan.num_steps)
            )
            for num_seqs in plan.batches
            for sampling, context in kinds
        }
    return {"captured_steps": captures.num_steps, "microseconds": found}


@contextmanager
def on_a_path_to_no_device(plan: Plan) -> Iterator[Captures]:
    """Let ops take their path on a GPU where kernels compute nothing, and let models answer at once.

    Yields what is captured.

    What a kernel should have written is read, as token ids for example, so memory begins with zeros.
    """
    num_rows = MAX_STEP_TOKENS + max(plan.batches)
    hidden = torch.zeros(num_rows, SHAPE["hidden_size"], dtype=torch.bfloat16)
    logits = torch.zeros(num_rows, VOCAB_SIZE, dtype=torch.bfloat16)
    logits[:, VOCAB_SIZE // 2] = 1.0

    def hidden_states(_: CausalLM, input_ids: Tensor, *_args: object, **_named: object) -> Tensor:
        return hidden[: len(input_ids)]

    def ready_logits(_: CausalLM, states: Tensor, logits_indices: Tensor | None = None) -> Tensor:
        return logits[: len(states if logits_indices is None else logits_indices)]

    with (
        compile_only(90),
        patch.multiple(CausalLM, hidden_states=hidden_states, logits=ready_logits),
        patch.multiple(torch, empty=small_zeros, empty_like=torch.zeros_like),
        patch.object(Tensor, "new_empty", Tensor.new_zeros),
        replays_that_do_nothing() as captures,
    ):
        yield captures


_empty = torch.empty


def small_zeros(*shape: Any, **named: Any) -> Tensor:
    """Return memory that begins with zeros, unless it is scratch, which would take as long as a step."""
    made = _empty(*shape, **named)
    return made.zero_() if made.numel() <= MAX_READ_ELEMENTS else made


class _Nothing:
    """Stands for a GPU's graphs: a capture computes nothing, and a replay counts itself."""

    captures = Captures()

    def __init__(self, device: torch.device) -> None:
        del device

    def capture(self, compute: Callable[[], None]) -> Callable[[], None]:
        del compute
        return self.replay

    def replay(self) -> None:
        self.captures.num_replays += 1

    def wait(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def free_bytes(self) -> int:
        return 0


@contextmanager
def replays_that_do_nothing() -> Iterator[Captures]:
    """Let an engine capture its steps without checking them; yields what it has captured and replayed."""
    captures = _Nothing.captures = Captures()

    def capture_all(checker: Any, shapes: Iterable[Any]) -> Captures:
        for shape in shapes:
            checker._graphs.capture(shape)  # noqa: SLF001 - what the check does first
            captures.num_steps += 1
        return captures

    with (
        patch.dict(gpu_graphs.GRAPH_CAPTURES, {"cpu": _Nothing}),
        patch.object(GraphChecker, "capture_all", capture_all),
    ):
        yield captures


def build(folder: Path, plan: Plan) -> EngineCore:
    """Return the core of the model in `folder`, with the limits that a GPU's has."""
    max_seq_len = max(plan.contexts) + MAX_NEW_TOKENS
    config = EngineConfig(
        model=str(folder),
        load_format="dummy",
        device="cpu",
        use_cpu_graphs=False,
        **NO_DRAFTS,
        max_seq_len=max_seq_len,
        max_batch_size=max(plan.batches),
        max_num_batched_tokens=MAX_STEP_TOKENS,
        prefill_chunk_size=2048,
        max_prefill_tokens_beside_decodes=MAX_STEP_TOKENS,
        kv_reserve=0.0,
        block_size=BLOCK_SIZE,
        num_kv_blocks=max(plan.batches) * (max_seq_len // BLOCK_SIZE + 2),
    )
    return build_core(config).core


def decode(
    core: EngineCore,
    numbers: Iterator[int],
    num_seqs: int,
    context: int,
    params: SamplingParams,
    captures: Captures,
    *,
    num_steps: int,
) -> list[Times]:
    """Return the times of decode steps of `num_seqs` requests of `context` tokens; `numbers` names the requests.

    Raises:
        RuntimeError: a step is captured and another one was computed, or its tokens were chosen by other kernels.
    """
    request_ids = [str(next(numbers)) for _ in range(num_seqs)]
    for index, request_id in enumerate(request_ids):
        draw = Random(request_id)  # noqa: S311 - a workload, not a secret
        prompt = draw.choices(range(3, VOCAB_SIZE), k=context - index % BLOCK_SIZE)
        core.handle(
            Submit(request_id=request_id, prompt_token_ids=prompt, max_tokens=MAX_NEW_TOKENS, seed=0, params=params)
        )
    waiting = set(request_ids)  # for their first tokens, while others decode
    while core.has_work and waiting:
        waiting -= {output.request_id for output in core.step().outputs}
    for _ in range(NUM_WARM_STEPS):
        core.step()
    gc.collect()
    gc.freeze()  # the prompts are no part of a step
    replays_before = captures.num_replays
    steps = [timed_step(core, num_seqs) for _ in range(num_steps)]
    num_replays = captures.num_replays - replays_before
    if num_replays != 2 * num_steps:
        raise RuntimeError(f"{num_steps} decode steps replayed {num_replays} captures, not a step and a choice each")
    for request_id in request_ids:
        core.handle(Abort(request_id=request_id))
    return steps


def timed_step(core: EngineCore, num_seqs: int) -> Times:
    """Compute a step and return its times; what no stage counts is `settle`: tokens appended, outputs, statistics.

    Raises:
        RuntimeError: some of the requests decode no token, or fail.
    """
    started = time.perf_counter()
    result = core.step()
    step_s = time.perf_counter() - started
    num_decoded = sum(output.error is None for output in result.outputs)
    if not num_decoded == result.stats.num_step_tokens == num_seqs:
        raise RuntimeError(f"{num_decoded} of {num_seqs} requests decoded in a step of {result.stats.num_step_tokens}")
    counts = msgspec.structs.asdict(result.stats)
    stages = {name: value for name, value in counts.items() if name.endswith("_s") and name != "busy_s"}
    seconds = {"step": step_s, **{STAGES.get(name, name): value for name, value in stages.items()}}
    return {name: 1e6 * value for name, value in seconds.items()} | {"settle": 1e6 * (step_s - sum(stages.values()))}


def summarize(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the commit, what it captures, all rounds and their medians, of what `run_apart` returned in each round."""
    rounds = [each["microseconds"] for each in found]
    own = {name: found[0][name] for name in ("commit", "captured_steps")}
    middle = {name: medians([each[name] for each in rounds]) for name in rounds[0]}
    return {**own, "microseconds": middle, "rounds": rounds}


def ratios(own: Sequence[dict[str, Times]], other: Sequence[dict[str, Times]]) -> dict[str, float]:
    """Return the median over the rounds of a step's time here as a multiple of what it is there."""
    return {
        name: statistics.median(a[name]["step"] / b[name]["step"] for a, b in zip(own, other, strict=True))
        for name in own[0]
    }


def time_table(found: dict[str, Times]) -> str:
    """Return a table of the stages' microseconds."""
    stages = list(next(iter(found.values())))
    return table(
        ["decode", *stages], [[name, *(f"{times[stage]:.0f}" for stage in stages)] for name, times in found.items()]
    )


if __name__ == "__main__":  # as `run_apart` starts it
    print(json.dumps(run_here(Plan(**json.loads(sys.argv[1])))))

"""Answers requests by an engine whose kernels are Triton's, interpreted, in a process of its own. Judges nothing.

    export TRITON_INTERPRET=1
    python -m infer_proofs.engine.interpreted.engine CHECKPOINT '{"dtype": "float32"}' [CHECKPOINT ...]

What a device's name decides is decided as on a GPU: kernels, attention's plans and work lists, the order and dtype of
keys, values and weights. Prints a line of JSON for each engine: each request's tokens, their log-probabilities, and
what was counted.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from infer_engine.executor import executor as leader
from infer_engine.executor.messages import ToWorker
from infer_engine.model_runner.graphs.gpu_graphs import GRAPH_CAPTURES
from infer_engine.protocol import SamplingParams
from infer_proofs.engine.models import ModelEngine, random_prompt, sound_tokens
from infer_proofs.engine.recorded_steps import RecordingCapture
from infer_proofs.kernels.interpreted.interpreter import interpret_kernels

PROMPTS = {"long": 21, "one": 1, "half": 9, "plain": 3, "drawn": 4}
"""Tokens of each prompt. The last request has `long`'s first tokens."""
SHARED = 17
ANSWER_TOKENS = 5
GREEDY = SamplingParams(temperature=0, ignore_eos=True, logprobs=1)
PLAIN = SamplingParams(temperature=0, ignore_eos=True)
PLAIN_DRAW = SamplingParams(temperature=0.9, top_p=0.9, ignore_eos=True)
DRAWN = SamplingParams(
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    logit_bias={7: 2.0},
    logprobs=2,
    ignore_eos=True,
)


def answer(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return each request's tokens, their log-probabilities, what was counted, and what other ranks were told."""
    told: Counter[str] = Counter()
    send = leader.Workers.send

    def count(self: leader.Workers, message: ToWorker) -> None:
        told[type(message).__name__] += 1
        send(self, message)

    with patch.object(leader.Workers, "send", count):
        return _answer(folder, config) | {"told": dict(told)}


def _answer(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    engine = ModelEngine(folder, **{"use_cpu_graphs": False, "use_cuda_graphs": False, "max_seq_len": 48, **config})
    prompts = {name: random_prompt(length) for name, length in PROMPTS.items()}
    engine.submit("long", prompts["long"], max_tokens=ANSWER_TOKENS, params=GREEDY)
    outputs = engine.run()
    engine.submit("one", prompts["one"], max_tokens=ANSWER_TOKENS, params=GREEDY)
    engine.submit("half", prompts["half"], max_tokens=ANSWER_TOKENS, params=DRAWN, seed=3)
    engine.submit("shared", [*prompts["long"][:SHARED], 5, 6], max_tokens=ANSWER_TOKENS, params=GREEDY)
    outputs |= engine.run()
    engine.submit("plain", prompts["plain"], max_tokens=ANSWER_TOKENS, params=PLAIN)
    outputs |= engine.run()
    engine.submit("drawn", prompts["drawn"], max_tokens=ANSWER_TOKENS, params=PLAIN_DRAW, seed=4)
    outputs |= engine.run()
    return {
        "tokens": sound_tokens(outputs),
        "logprobs": {
            name: [logprob.logprob for output in listed for logprob in output.logprobs or ()]
            for name, listed in outputs.items()
        },
        "num_cached_tokens": engine.core.stats.num_cached_tokens,
        "cuda_graphs": engine.info.cuda_graphs,
    }


def compute_as_a_gpu() -> None:
    """Let this process's engines take the path of CUDA tensors, for the rest of its life."""
    interpret_kernels()
    GRAPH_CAPTURES["cpu"] = RecordingCapture
    leader.WORKER = "infer_proofs.engine.interpreted.worker_process"


def run_interpreted(module: str, *arguments: str) -> list[dict[str, Any]]:
    """Return the lines of JSON that a program of `infer_proofs.engine.interpreted` prints.

    Raises:
        AssertionError: it failed.
    """
    completed = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", f"infer_proofs.engine.interpreted.{module}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    return [json.loads(line) for line in completed.stdout.splitlines()]


def main() -> None:
    """Answer and print."""
    torch.set_num_threads(1)
    compute_as_a_gpu()
    for folder, config in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        print(json.dumps(answer(Path(folder), json.loads(config))))


if __name__ == "__main__":
    main()

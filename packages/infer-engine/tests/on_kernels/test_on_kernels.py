"""The engine as on a GPU, with Triton's kernels interpreted, against the engine as on a CPU, which has none of them.

All that a GPU would add is the GPU: attention's work lists, the kernels' cache order, prefixes, chunks, penalties and
draws come from the code that runs there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infer_proofs.engine.interpreted.engine import ANSWER_TOKENS, answer

CASES: dict[str, dict[str, Any]] = {
    "paged": {"block_size": 16, "prefill_chunk_size": 8},
    "blocks of 5, decodes in turns": {
        "block_size": 5,
        "scheduler_policy": "decode_round_robin",
        "max_num_batched_tokens": 9,
    },
    "contiguous, static": {"batching_mode": "static", "max_batch_size": 3},
    "batch_invariant": {"batch_invariant": True, "block_size": 16, "prefill_chunk_size": 7},
}
Run = tuple[str, str, str]
QUICK: list[Run] = [("gemma3", "float32", "paged")]
OTHERS: list[Run] = [
    ("llama", "float32", "contiguous, static"),
    ("llama", "bfloat16", "batch_invariant"),
    ("qwen3", "bfloat16", "paged"),
    ("gemma3", "bfloat16", "blocks of 5, decodes in turns"),
    ("ministral3", "float32", "paged"),
    ("phi3", "float32", "blocks of 5, decodes in turns"),
    ("olmo3", "float32", "batch_invariant"),
    ("qwen3_moe", "float32", "paged"),
    ("gpt_oss", "float32", "batch_invariant"),
    ("gpt_oss", "bfloat16", "paged"),
    ("gemma4", "float32", "paged"),
    ("gemma4", "bfloat16", "batch_invariant"),
    ("gemma4_moe", "float32", "blocks of 5, decodes in turns"),
]
"""Every family, and every case. The full run has every case; what differs between families are ops, tested alone."""
FULL = ("llama", "gemma3", "gpt_oss", "gemma4")
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
"""Of a log-probability."""


def answer_interpreted(engines: list[tuple[Path, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what each engine answers, all in one process: to start it takes longer than to answer."""
    arguments = [argument for folder, config in engines for argument in (str(folder), json.dumps(config))]
    completed = subprocess.run(
        [sys.executable, "-m", "infer_proofs.engine.interpreted.engine", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    return [json.loads(line) for line in completed.stdout.splitlines()]


def assert_alike(found: list[int], right: list[int], got: list[float], wanted: list[float], tolerance: float) -> None:
    """Tokens have the same log-probabilities, up to rounding, for as long as they are the same."""
    assert len(found) == len(right) == ANSWER_TOKENS
    assert found[0] == right[0]
    for own, other, logprob, expected in zip(found, right, got, wanted, strict=True):
        if own != other:
            return
        assert logprob == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(QUICK, id="quick"),
        *(
            pytest.param(
                [run for run in OTHERS if run[0] == family],
                id=family,
                marks=pytest.mark.full
                if family in ("llama", "gemma3", "gpt_oss", "gemma4")
                else pytest.mark.exhaustive,
            )
            for family in dict.fromkeys(family for family, _, _ in OTHERS)
        ),
    ],
)
def test_requests_get_what_they_get_on_a_cpu(shallow_folder_of: Callable[[str], Path], runs: list[Run]) -> None:
    engines = [(shallow_folder_of(family), {"dtype": dtype, **CASES[case]}) for family, dtype, case in runs]
    for run, (folder, config), found in zip(runs, engines, answer_interpreted(engines), strict=True):
        expected = answer(folder, config)
        assert found["num_cached_tokens"] == expected["num_cached_tokens"], run
        if config["dtype"] == "float32":
            assert found["tokens"] == expected["tokens"], run
        for name, token_ids in expected["tokens"].items():
            logprobs = found["logprobs"][name], expected["logprobs"][name]
            if not logprobs[1]:  # not asked for, so that captured steps may choose
                continue
            assert_alike(found["tokens"][name], token_ids, *logprobs, tolerance=TOLERANCES[config["dtype"]])


def test_the_quick_run_finds_a_prefix(shallow_folder_of: Callable[[str], Path]) -> None:
    config = {"dtype": "float32", **CASES["paged"]}
    assert answer(shallow_folder_of("gemma3"), config)["num_cached_tokens"] == 16

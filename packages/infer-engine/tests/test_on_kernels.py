"""The engine as on a GPU, with Triton's kernels interpreted, against the engine as on a CPU, which has none of them.

All that a GPU would add is the GPU: attention's work lists, the kernels' cache order, prefixes, chunks, penalties and
draws come from the code that runs there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infer_engine.testing.interpreted import ANSWER_TOKENS, answer
from infer_engine.testing.models import save_servable

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
RUNS = [
    ("llama", "float32", "paged"),
    ("llama", "float32", "contiguous, static"),
    ("llama", "bfloat16", "batch_invariant"),
    ("qwen3", "float32", "blocks of 5, decodes in turns"),
    ("qwen3", "bfloat16", "paged"),
    ("gemma3", "float32", "paged"),
    ("gemma3", "float32", "batch_invariant"),
    ("gemma3", "bfloat16", "blocks of 5, decodes in turns"),
]
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
"""Of a log-probability."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every family's checkpoint."""
    made = {family: tmp_path_factory.mktemp(family) for family in ("llama", "qwen3", "gemma3")}
    for family, folder in made.items():
        save_servable(family, folder)
    return made


def answer_interpreted(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    completed = subprocess.run(
        [sys.executable, "-m", "infer_engine.testing.interpreted", str(folder), json.dumps(config)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    answered: dict[str, Any] = json.loads(completed.stdout)
    return answered


def assert_alike(found: list[int], right: list[int], got: list[float], wanted: list[float], tolerance: float) -> None:
    """Tokens have the same log-probabilities, up to rounding, for as long as they are the same."""
    assert len(found) == len(right) == ANSWER_TOKENS
    assert found[0] == right[0]
    for own, other, logprob, expected in zip(found, right, got, wanted, strict=True):
        if own != other:
            return
        assert logprob == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(("family", "dtype", "case"), RUNS)
def test_requests_get_what_they_get_on_a_cpu(folders: dict[str, Path], family: str, dtype: str, case: str) -> None:
    config = {"dtype": dtype, **CASES[case]}
    found = answer_interpreted(folders[family], config)
    right = answer(folders[family], config)
    assert found["num_cached_tokens"] == right["num_cached_tokens"]
    if dtype == "float32":
        assert found["tokens"] == right["tokens"]
    for name, token_ids in right["tokens"].items():
        logprobs = found["logprobs"][name], right["logprobs"][name]
        assert_alike(found["tokens"][name], token_ids, *logprobs, tolerance=TOLERANCES[dtype])


def test_prefixes_are_found_in_what_kernels_stored(folders: dict[str, Path]) -> None:
    found = answer_interpreted(folders["llama"], {"dtype": "float32", **CASES["paged"]})
    assert found["num_cached_tokens"] == 16

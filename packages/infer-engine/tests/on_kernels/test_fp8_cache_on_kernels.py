"""An engine with an fp8 KV cache as on a GPU, with Triton's kernels interpreted."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from infer_proofs.engine.interpreted.engine import answer, run_interpreted
from infer_proofs.engine.models import save_servable

pytestmark = pytest.mark.full  # interpreted, a minute and more
TOLERANCE = 0.2
"""Of the log-probability of the first token; scales are 1, and codes have three bits of fraction."""
PAGED: Mapping[str, Any] = {"dtype": "float32", "kv_cache_dtype": "fp8_e4m3", "block_size": 16, "prefill_chunk_size": 8}
CASES: dict[str, dict[str, Any]] = {
    "paged": {**PAGED},
    "without prefixes": {**PAGED, "use_prefix_caching": False},
    "contiguous, static": {
        "dtype": "float32",
        "kv_cache_dtype": "fp8_e4m3",
        "batching_mode": "static",
        "max_batch_size": 3,
    },
    "captured": {**PAGED, "use_cuda_graphs": True, "max_batch_size": 2, "max_num_batched_tokens": 12},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    made = tmp_path_factory.mktemp("qwen3")
    save_servable("qwen3", made, num_hidden_layers=2)
    return made


@cache
def interpreted(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what each engine answers, all in one process: to start it takes longer than to answer."""
    arguments = [argument for config in CASES.values() for argument in (str(folder), json.dumps(config))]
    return dict(zip(CASES, run_interpreted("engine", *arguments), strict=True))


def test_log_probabilities_are_close_to_those_of_an_exact_cache(folder: Path) -> None:
    exact, found = answer(folder, {**PAGED, "kv_cache_dtype": "auto"}), interpreted(folder)["paged"]
    differences = []
    for name, logprobs in exact["logprobs"].items():
        if logprobs and exact["tokens"][name][0] == found["tokens"][name][0]:
            differences.append(abs(logprobs[0] - found["logprobs"][name][0]))
    assert len(differences) >= 2
    assert 0 < max(differences) < TOLERANCE


@pytest.mark.parametrize("case", [name for name in CASES if name != "paged"])
def test_tokens_do_not_depend_on_how_the_cache_is_managed(folder: Path, case: str) -> None:
    found = interpreted(folder)
    assert found[case]["tokens"] == found["paged"]["tokens"]


def test_prefixes_are_found_over_codes(folder: Path) -> None:
    found = interpreted(folder)
    assert found["paged"]["num_cached_tokens"] == 16
    assert found["without prefixes"]["num_cached_tokens"] == 0


def test_captured_steps_prove_themselves_over_codes(folder: Path) -> None:
    report = interpreted(folder)["captured"]["cuda_graphs"]
    assert report is not None
    assert "not used" not in report

"""An engine with quantized weights as on a GPU, with Triton's kernels interpreted."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from infer_proofs.engine.interpreted.engine import answer, run_interpreted
from infer_proofs.engine.models import VOCAB_SIZE
from infer_proofs.models import save_quantized, save_tiny_tokenizer

pytestmark = pytest.mark.full  # interpreted, a minute and more
CONFIG: dict[str, Any] = {"dtype": "float32", "block_size": 16, "prefill_chunk_size": 8}
KINDS = ("compressed_w4a16_asymmetric", "compressed_w8a8", "compressed_fp8_block", "gptq")
SMALL = {"max_batch_size": 2, "max_num_batched_tokens": 12}  # so that few steps are captured
GROUPS = [
    [*((kind, CONFIG) for kind in KINDS if kind != "gptq"), ("gptq", {**CONFIG, "batch_invariant": True})],
    [("gptq", {**CONFIG, "quantization": "fp8"}), ("gptq", {**CONFIG, "quantization": "int8"})],
    [("gptq", {**CONFIG, **SMALL, "use_cuda_graphs": True})],
]
"""Engines, in processes that may run side by side; the last one is for the long run."""
PLACES = [(group, index) for group in range(len(GROUPS)) for index in range(len(GROUPS[group]))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of each kind."""
    made = tmp_path_factory.mktemp("quantized")
    for kind in KINDS:
        save_quantized(made / kind, kind, vocab_size=VOCAB_SIZE)
        save_tiny_tokenizer(made / kind, vocab_size=VOCAB_SIZE)
    return made


@cache
def interpreted(folder: Path, group: int) -> list[dict[str, Any]]:
    """Return what each engine answers, all in one process: to start it takes longer than to answer."""
    return run_interpreted(
        "engine", *(argument for kind, config in GROUPS[group] for argument in (str(folder / kind), json.dumps(config)))
    )


def largest_difference(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return how far the log-probabilities of the first tokens that both chose are apart."""
    differences = [
        abs(found["logprobs"][name][0] - logprobs[0])
        for name, logprobs in expected["logprobs"].items()
        if logprobs and found["tokens"][name][0] == expected["tokens"][name][0]
    ]
    assert len(differences) >= 2
    return float(max(differences))


@pytest.mark.covers("quantization/gpu-kernels")
@pytest.mark.parametrize(
    ("group", "index"),
    [pytest.param(*each, marks=pytest.mark.exhaustive if each[0] == len(GROUPS) - 1 else ()) for each in PLACES],
)
def test_answers_are_those_of_the_dequantized_weights(folder: Path, group: int, index: int) -> None:
    kind, config = GROUPS[group][index]
    exact, found = answer(folder / kind, {**CONFIG, "quantization": "none"}), interpreted(folder, group)[index]
    is_rounded = "quantization" in config  # a second time, on the fly
    assert largest_difference(found, exact) <= (0.2 if is_rounded else 2e-3)
    assert (found["cuda_graphs"] is not None) == ("use_cuda_graphs" in config)
    if not is_rounded:
        assert found["tokens"] == exact["tokens"]

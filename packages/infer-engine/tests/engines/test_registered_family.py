"""A family of a package of its own, that of docs/new-family.md, in whole engines."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.doctor.kernels import examine_kernels
from infer_engine.doctor.model_ops import ops_of
from infer_models import ModelConfig
from infer_models.config.registry import PLUGINS, REGISTERED
from infer_proofs.engine.doctor import examined
from infer_proofs.engine.models import (
    VOCAB_SIZE,
    ModelEngine,
    Twin,
    greedy_tokens,
    random_prompt,
    sound_tokens,
)
from infer_proofs.models import YARN_SCALING, TinyFamily, save_tiny_tokenizer, save_tiny_twin

MODULE = Path(__file__).parents[3] / "infer-models" / "tests" / "new_family" / "infer_arcee.py"
LENGTHS = (1, 7, 8, 41)
NUM_TOKENS = 12
MODES: dict[str, dict[str, Any]] = {
    "whole prompts": {"use_chunked_prefill": False},
    "chunks": {"prefill_chunk_size": 8, "block_size": 4},
    "static": {"batching_mode": "static"},
    "contiguous": {"kv_cache_backend": "contiguous", "prefill_chunk_size": 5},
    "batch invariant": {"batch_invariant": True, "prefill_chunk_size": 3},
    "two ranks": {"tensor_parallel_size": 2, "prefill_chunk_size": 8},
}


@pytest.fixture(autouse=True, scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the module be imported, and its entry point be found, here and in processes that are started."""
    site = tmp_path_factory.mktemp("site")
    info = site / "infer_arcee-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: infer-arcee\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{PLUGINS}]\narcee = infer_arcee\n")
    (site / MODULE.name).write_text(MODULE.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", str(site), prepend=":")
        yield
    REGISTERED.pop("arcee", None)
    sys.modules.pop("infer_arcee", None)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    folder = tmp_path_factory.mktemp("arcee")
    model = save_tiny_twin(
        TinyFamily(config="ArceeConfig", model="ArceeForCausalLM"), folder, rope_parameters=YARN_SCALING
    )
    save_tiny_tokenizer(folder, vocab_size=VOCAB_SIZE)
    model.generation_config.eos_token_id = None
    return Twin(folder=folder, model=model)


@pytest.mark.covers("models/family-plug-ins")
@pytest.mark.parametrize("mode", MODES)
def test_its_tokens_are_those_of_transformers_in_every_mode(mode: str, twin: Twin) -> None:
    engine = ModelEngine(twin.folder, **MODES[mode])
    prompts = {f"of {length}": random_prompt(length) for length in LENGTHS}
    try:
        for request_id, prompt in prompts.items():
            engine.submit(request_id, prompt, max_tokens=NUM_TOKENS)
        tokens = sound_tokens(engine.run())
    finally:
        engine.close()
    assert tokens == {
        request_id: greedy_tokens(twin.model, prompt, NUM_TOKENS) for request_id, prompt in prompts.items()
    }


def test_a_prompt_in_chunks_has_the_logits_of_the_whole(twin: Twin) -> None:
    prompt = random_prompt(41)
    rows = []
    for mode in ("whole prompts", "chunks"):
        engine = ModelEngine(twin.folder, **MODES[mode])
        engine.submit("one", prompt, max_tokens=1)
        sound_tokens(engine.run())
        rows.append(engine.logits["one", len(prompt)])
    assert (rows[0] - rows[1]).abs().max() <= 1e-4


def test_the_doctor_checks_the_ops_that_it_calls(twin: Twin) -> None:
    ops = ops_of(ModelConfig.from_folder(twin.folder), dtype=torch.float32, block_size=16)
    assert (ops.norm, ops.activation) == ("llama", None)  # it squares with an operation of PyTorch
    found = examined(examine_kernels, model=str(twin.folder), dtype="float32")
    assert found.named("failed") == found.named("warning") == set()
    assert "agree with their references" in found.findings["ops"].found

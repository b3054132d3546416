"""Weights from files, and without any."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from infer_models import CausalLM, CausalView, load_model, save_model
from infer_proofs.models import save_tiny_gemma3, save_tiny_llama, save_tiny_nanogpt, save_tiny_qwen3

CPU = torch.device("cpu")
IDS = torch.arange(3, 23)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    return load_model(folder, device=CPU, dtype=dtype)


def logits_of(model: CausalLM) -> torch.Tensor:
    logits: torch.Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


@pytest.mark.covers("models/safetensors-and-shards", "models/parity-sharded")
def test_shards_load_like_one_file(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "one")
    save_tiny_llama(tmp_path / "many", max_shard_size="100KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    assert torch.equal(logits_of(load(tmp_path / "one")), logits_of(load(tmp_path / "many")))


@pytest.mark.covers("models/tied-heads")
def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, tie_word_embeddings=True)
    model = load(tmp_path)
    assert model.lm_head.weight is model.get_parameter("model.embed_tokens.weight")
    assert "lm_head.weight" not in model.stored_weights()


def test_parameters_are_counted_once(tmp_path: Path) -> None:
    tied = save_tiny_qwen3(tmp_path / "tied", tie_word_embeddings=True)
    untied = save_tiny_qwen3(tmp_path / "untied")
    assert load(tmp_path / "tied").num_parameters == tied.num_parameters()
    assert load(tmp_path / "untied").num_parameters == untied.num_parameters() == tied.num_parameters() + 320 * 64


@pytest.mark.covers("models/weights-to-dtype")
def test_weights_are_converted_to_the_dtype_asked_for(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, dtype=torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weights = {name: each.stored() for name, each in load(tmp_path, dtype).stored_weights().items()}
        assert weights.keys() == stored.keys()
        assert all(torch.equal(weights[name], stored[name].to(dtype)) for name in stored)


@pytest.mark.covers("models/spare-tensors")
@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_what_checkpoints_carry_needlessly_is_ignored(tmp_path: Path, name: str) -> None:
    save_tiny_llama(tmp_path, tie_word_embeddings=True)
    expected = logits_of(load(tmp_path))
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    save_file(stored | {name: stored["model.embed_tokens.weight"].clone()}, path)
    assert torch.equal(logits_of(load(tmp_path)), expected)


@pytest.mark.covers("models/gemma3")
def test_each_layer_says_how_it_attends(tmp_path: Path) -> None:
    save_tiny_gemma3(tmp_path, attn_logit_softcapping=30.0)
    model = load(tmp_path)
    assert [spec.window for spec in model.attention_specs] == [8, 8, None, 8]
    for spec in model.attention_specs:
        assert (spec.q_heads, spec.kv_heads, spec.head_dim) == (4, 2, 32)
        assert spec.scale == pytest.approx(24**-0.5)
        assert spec.soft_cap == 30.0


@pytest.mark.parametrize("save", [save_tiny_llama, save_tiny_qwen3, save_tiny_gemma3])
def test_transformers_reads_what_is_saved(tmp_path: Path, save: object) -> None:
    assert callable(save)
    save(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    save_model(model, tmp_path / "ours")
    shutil.copy(tmp_path / "theirs" / "config.json", tmp_path / "ours")
    twin: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        torch.testing.assert_close(logits_of(model), twin(IDS[None]).logits[0], rtol=0, atol=1e-4)


def test_saving_can_change_the_dtype(tmp_path: Path) -> None:
    save_tiny_nanogpt(tmp_path)
    model = load(tmp_path)
    save_model(model, tmp_path, dtype=torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert torch.equal(logits_of(load(tmp_path, torch.bfloat16)), logits_of(model.to(torch.bfloat16)))


@pytest.mark.parametrize("save", [save_tiny_qwen3, save_tiny_gemma3])
def test_a_moved_model_uses_its_moved_weights(tmp_path: Path, save: object) -> None:
    assert callable(save)
    save(tmp_path)
    model = load(tmp_path, torch.bfloat16).to(torch.float32)
    save_model(model, tmp_path)
    assert torch.equal(logits_of(model), logits_of(load(tmp_path)))


@pytest.mark.covers("models/dummy-weights")
@pytest.mark.parametrize("save", [save_tiny_llama, save_tiny_qwen3, save_tiny_gemma3, save_tiny_nanogpt])
def test_dummy_weights_need_a_config_alone(tmp_path: Path, save: object) -> None:
    assert callable(save)
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first, second = (load_model(tmp_path, device=CPU, dtype=torch.float32, load_format="dummy") for _ in range(2))
    logits = logits_of(first)
    assert torch.isfinite(logits).all()
    assert logits.std() > 0
    assert torch.equal(logits, logits_of(second))


@pytest.mark.covers("configuration/load-format")
def test_an_unknown_load_format_is_refused(tmp_path: Path) -> None:
    save_tiny_nanogpt(tmp_path)
    with pytest.raises(ValueError, match="`load_format` is 'pickle'; it must be `auto` or `dummy`"):
        load_model(tmp_path, device=CPU, dtype=torch.float32, load_format="pickle")  # type: ignore[arg-type]  # the point


MEASURE = """
import resource, sys
from pathlib import Path
from typing import Any
import torch
from infer_models import CausalView, load_model

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

folder = Path(sys.argv[1])
torch.zeros(8, 8) @ torch.zeros(8, 8)
load_model(Path(sys.argv[2]), device=torch.device("cpu"), dtype=torch.float32)
before = peak_bytes()
model = load_model(folder, device=torch.device("cpu"), dtype=torch.bfloat16)
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print(peak_bytes() - before - weights, weights)
"""


def enlarge_vocabulary(folder: Path, vocab_size: int) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in ("model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"):
        tensors[name] = torch.zeros(vocab_size, *tensors[name].shape[1:], dtype=tensors[name].dtype)
    save_file(tensors, path)
    fields = json.loads((folder / "config.json").read_text()) | {"vocab_size": vocab_size}
    (folder / "config.json").write_text(json.dumps(fields))


@pytest.mark.covers("models/loading-memory")
def test_loading_takes_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    save_tiny_nanogpt(small)
    save_tiny_nanogpt(large, num_hidden_layers=1, dtype=torch.bfloat16)
    enlarge_vocabulary(large, 550_000)  # two whole pieces of 32 MiB and a part of one
    run = [sys.executable, "-c", MEASURE, str(large), str(small)]
    output = subprocess.run(run, check=True, timeout=120, capture_output=True, text=True).stdout
    extra, weights = map(int, output.split())
    assert weights > 2**27
    assert extra < 2**26

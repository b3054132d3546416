"""Tiny quantized checkpoints of every kind: our logits are those of `transformers` on the dequantized weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import has_quantized_kernel
from infer_kernels.quantization.quantized_rows import quantize_rows_reference
from infer_models import CausalLM, CausalView, ModelConfig, load_model
from infer_models.quantization import read_quantization
from infer_models.weight_allocation import Quantization
from infer_proofs.models import QUANTIZED_CHECKPOINTS, TINY_FAMILIES, QuantizedTwin, save_quantized
from infer_proofs.models.ranks import run_ranks

CPU = torch.device("cpu")
IDS = torch.tensor([5, 9, 200, 17, 3, 3, 42, 311, 8, 77, 1, 60])
KINDS_OF_FAMILIES = ("gptq", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("fp8_block", "compressed_w8a8")))

# sgl-project/sglang#10852, #19045: a rank's part of FP8 blocks, or of the few rows of decays, was less than a block
WITH_STATES = [
    ("qwen3_next", "fp8_block"),
    pytest.param("qwen3_next", "gptq", marks=pytest.mark.full),
    *(("granitemoehybrid", kind) for kind in ("awq", "compressed_w8a8")),
    ("lfm2", "compressed_w4a16"),
]


def load(folder: Path, quantization: Quantization, **how: Any) -> CausalLM:
    model = load_model(folder, device=CPU, dtype=torch.float32, quantization=quantization, **how)
    if quantization != "none":
        model.prepack()
    return model


@torch.no_grad()
def logits_of(model: CausalLM) -> Tensor:
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


@torch.no_grad()
def logits_of_twin(twin: QuantizedTwin) -> Tensor:
    logits: Tensor = twin.model(IDS[None]).logits[0]
    return logits


def round_inputs(twin: QuantizedTwin) -> None:
    """Let the twin's quantized layers round their inputs to eight bits, as kernels of CPUs do."""

    def round_rows(_: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        codes, scales = quantize_rows_reference(inputs[0])
        return codes * scales

    for name in twin.quantized:
        twin.model.get_submodule(name).register_forward_pre_hook(round_rows)


def is_kept(folder: Path) -> bool:
    """Whether a kernel of this machine multiplies the weights as they are."""
    scheme = read_quantization(ModelConfig.from_folder(folder).quantization)
    assert scheme is not None
    stored = scheme.format_of("model.layers.0.self_attn.q_proj")
    assert stored is not None
    storage = stored.storage
    return storage is not None and has_quantized_kernel(
        storage.encoding, group_size=storage.group_size, in_features=64, device=CPU
    )


@pytest.mark.covers("quantization/compressed-tensors", "quantization/fp8-blocks", "quantization/gptq-and-awq")
@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
def test_dequantized_weights_are_worth_the_twins(tmp_path: Path, kind: str) -> None:
    twin = save_quantized(tmp_path, kind)
    assert len(twin.quantized) == 20
    torch.testing.assert_close(logits_of(load(tmp_path, "none")), logits_of_twin(twin), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
def test_kernels_compute_with_the_weights_as_they_are(tmp_path: Path, kind: str) -> None:
    """An input that lies between two codes may be rounded to either, and then all that follows is rounded otherwise."""
    twin = save_quantized(tmp_path, kind)
    logits, exact = logits_of(load(tmp_path, "auto")), logits_of_twin(twin)
    assert (logits - exact).square().mean().sqrt() <= 3e-2 * exact.abs().max()
    if is_kept(tmp_path):
        round_inputs(twin)
        rounded = logits_of_twin(twin)
        assert (logits - rounded).norm() <= 0.5 * (rounded - exact).norm()
    else:
        torch.testing.assert_close(logits, exact, rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", KINDS_OF_FAMILIES)
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_every_family_is_read_from_shards(tmp_path: Path, family: str, kind: str) -> None:
    twin = save_quantized(tmp_path, kind, family=family, is_sharded=True)
    torch.testing.assert_close(logits_of(load(tmp_path, "none")), logits_of_twin(twin), rtol=0, atol=1e-4)


@pytest.mark.covers("quantization/ranks")
@pytest.mark.parametrize("quantization", ["auto", "none"])
@pytest.mark.parametrize(
    ("family", "kind"),
    [*(("llama", kind) for kind in QUANTIZED_CHECKPOINTS), *WITH_STATES],
)
def test_two_ranks_compute_what_one_does(tmp_path: Path, family: str, kind: str, quantization: Quantization) -> None:
    save_quantized(tmp_path, kind, family=family)
    whole = logits_of(load(tmp_path, "none"))
    of_ranks = run_ranks(2, lambda shard: logits_of(load(tmp_path, quantization, shard=shard)))
    bound = 1e-4 if quantization == "none" else 3e-2 * float(whole.abs().max())
    assert (of_ranks[0] - whole).square().mean().sqrt() <= bound


@pytest.mark.parametrize("kind", ["compressed_w4a16", "gptq", "awq", "fp8_block"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_tied_heads_are_the_plain_embedding(tmp_path: Path, family: str, kind: str) -> None:
    twin = save_quantized(tmp_path, kind, family=family, tie_word_embeddings=True)
    torch.testing.assert_close(logits_of(load(tmp_path, "none")), logits_of_twin(twin), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["compressed_w4a16", "gptq"])
def test_parts_of_a_packed_layer_may_be_plain(tmp_path: Path, kind: str) -> None:
    plain = ("lm_head", "model.layers.0.self_attn.k_proj", "model.layers.2.mlp.up_proj")
    twin = save_quantized(tmp_path, kind, plain_layers=plain)
    for quantization in ("none", "auto"):
        logits = logits_of(load(tmp_path, quantization))
        assert (logits - logits_of_twin(twin)).square().mean().sqrt() <= 3e-2 * logits.abs().max()


def test_a_checkpoint_that_the_library_saves_whole_is_read(tmp_path: Path) -> None:
    from compressed_tensors.compressors import ModelCompressor  # noqa: PLC0415 - it takes seconds to import
    from compressed_tensors.quantization import (  # noqa: PLC0415 - as above
        QuantizationConfig,
        apply_quantization_config,
    )

    twin = save_quantized(tmp_path / "ours", "compressed_w4a16")
    config = QUANTIZED_CHECKPOINTS["compressed_w4a16"].config() | {
        "ignore": ["lm_head", "model.layers.1.mlp.down_proj"],
        "quantization_status": "initialized",
    }
    model = twin.model
    apply_quantization_config(model, QuantizationConfig(**config))
    for name in twin.quantized:
        layer = model.get_submodule(name)
        layer.weight_scale.data.copy_(layer.weight.unflatten(1, (-1, 32)).abs().amax(-1) / 7)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path / "theirs")
    compressor.update_config(str(tmp_path / "theirs"))
    compressor.decompress_model(model)
    logits = logits_of(load(tmp_path / "theirs", "none"))
    torch.testing.assert_close(logits, logits_of_twin(twin), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed_w4a16", "fp8_block"])
@pytest.mark.parametrize("listed", [[], ["lm_head", "q_proj", "model.layers.0", "re:.*mlp.*"]])
def test_the_file_says_which_layers_are_quantized(tmp_path: Path, kind: str, listed: list[str]) -> None:
    twin = save_quantized(tmp_path, kind)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"][QUANTIZED_CHECKPOINTS[kind].plain_key] = listed
    path.write_text(json.dumps(config))
    torch.testing.assert_close(logits_of(load(tmp_path, "none")), logits_of_twin(twin), rtol=0, atol=1e-4)

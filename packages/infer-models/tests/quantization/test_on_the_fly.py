"""Weights that are quantized while they are read: what of a model is, what it computes, and what memory that takes."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import quantize_int4, quantize_int8
from infer_kernels.cpu import PackedQuantizedExperts, PackedQuantizedWeight
from infer_kernels.linear.quantized import multiply
from infer_models import CausalLM, CausalView, CheckpointError, load_model, save_model
from infer_models.tensor_parallel import Shard
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import TINY_FAMILIES, save_quantized, save_tiny
from infer_proofs.models.ranks import run_ranks

CPU = torch.device("cpu")
IDS = torch.randint(3, 60, (24,), generator=torch.Generator().manual_seed(1))


def load(folder: Path, quantization: Any, **how: Any) -> CausalLM:
    return load_model(folder, device=CPU, quantization=quantization, **({"dtype": torch.float32} | how))


@torch.no_grad()
def logits_of(model: CausalLM) -> Tensor:
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


def weight_of(model: CausalLM, name: str) -> Any:
    return model.get_submodule(name).weight


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@needs_cpu_kernels
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_every_family_computes_nearly_the_same(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    plain = load(tmp_path, "none")
    for quantization, most in (("int8", 0.05), ("int4", 0.5)):
        model = load(tmp_path, quantization)
        model.prepack()
        # Tiny random models magnify every error, and choose other experts; a wrong product is off by more than logits.
        allowed = most if plain.config.moe is None else 0.65
        if TINY_FAMILIES[family].has_states:  # whose norms divide by outputs that may be close to zero
            allowed = max(0.2, allowed) if plain.config.moe is None else 0.8
        elif plain.config.per_layer_input_size:  # gates of a layer's own inputs multiply its output
            allowed = max(0.1, allowed)
        assert relative_error(logits_of(model), logits_of(plain)) < allowed, quantization


@needs_cpu_kernels
def test_products_are_quantized_and_vectors_and_routers_are_not(tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path)
    model = load(tmp_path, "int4")
    assert weight_of(model, "model.layers.0.self_attn.qkv_proj").encoding == "int8"
    assert weight_of(model, "model.layers.0.self_attn.o_proj").encoding == "int4"
    assert weight_of(model, "model.embed_tokens").encoding == "int8"
    assert weight_of(model, "lm_head").encoding == "int8"
    experts: Any = model.get_submodule("model.layers.1.mlp.experts")
    assert (experts.gate_up_proj.encoding, experts.down_proj.encoding) == ("int4", "int4")
    assert isinstance(weight_of(model, "model.layers.1.mlp.gate"), torch.nn.Parameter)
    assert isinstance(weight_of(model, "model.norm"), torch.nn.Parameter)
    model.prepack()
    assert isinstance(weight_of(model, "model.layers.0.self_attn.o_proj"), PackedQuantizedWeight)
    assert isinstance(experts.gate_up_proj, PackedQuantizedExperts)


@needs_cpu_kernels
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_int4_keeps_eight_bits_where_errors_cost_most(tmp_path: Path, family: str) -> None:
    """Queries, keys and values of every layer, or what has their place; what the first and the last MLP write."""
    save_tiny(family, tmp_path)
    model = load(tmp_path, "int4")
    last = model.config.num_layers - 1
    for layer in range(last + 1):
        attention: Any = model.get_submodule(f"model.layers.{layer}")
        attention = attention.get_submodule(getattr(attention, "attention_name", "self_attn"))
        first, last_one = ("qkv_proj", "o_proj") if model.config.attends(layer) else ("in_proj", "out_proj")
        if not model.config.attends(layer) or model.config.has_cache(layer):
            assert attention.get_submodule(first).weight.encoding == "int8"
        assert attention.get_submodule(last_one).weight.encoding == "int4"
        if hasattr(model.get_submodule(f"model.layers.{layer}.mlp"), "down_proj"):
            expected = "int8" if layer in (0, last) else "int4"
            assert weight_of(model, f"model.layers.{layer}.mlp.down_proj").encoding == expected


@needs_cpu_kernels
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_named(tmp_path: Path, quantization: str, bad: float) -> None:
    twin = save_tiny("llama", tmp_path)
    tensors = dict(twin.state_dict())
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = bad
    twin.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"tensor `model.layers.1.mlp.up_proj.weight` holds NaN or infinite"):
        load(tmp_path, quantization)


@needs_cpu_kernels
def test_the_numbers_are_those_of_quantizing_the_whole(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    plain, int8, int4 = (load(tmp_path, quantization) for quantization in ("none", "int8", "int4"))
    name = "model.layers.0.mlp.gate_up_proj"
    whole = weight_of(plain, name).detach()
    assert torch.equal(weight_of(int8, name).dequantize(), quantize_int8(whole).dequantize())
    assert torch.equal(weight_of(int4, name).dequantize(), quantize_int4(whole, group_size=64).dequantize())


@needs_cpu_kernels
def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, tie_word_embeddings=True)
    model = load(tmp_path, "int8")
    assert weight_of(model, "model.embed_tokens") is weight_of(model, "lm_head")
    before = logits_of(model)
    model.prepack()
    assert isinstance(weight_of(model, "lm_head"), PackedQuantizedWeight)
    assert weight_of(model, "model.embed_tokens") is weight_of(model, "lm_head")
    assert relative_error(logits_of(model), before) < 0.05


@needs_cpu_kernels
@pytest.mark.parametrize(
    "family", ["llama", "phi3", "mixtral", "qwen3_moe", "gpt_oss", "qwen3_5", "granitemoehybrid", "lfm2"]
)
def test_ranks_hold_their_parts(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    plain = logits_of(load(tmp_path, "none"))

    def compute(shard: Shard) -> Tensor:
        model = load(tmp_path, "int8", shard=shard)
        model.prepack()
        return logits_of(model)

    logits, *_ = run_ranks(2, compute)
    assert relative_error(logits, plain) < (
        0.05 if family in ("llama", "phi3", "lfm2") else 0.5
    )  # other experts are chosen


@needs_cpu_kernels
def test_random_weights_are_those_of_the_plain_model(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    plain = load(tmp_path, "none", load_format="dummy")
    model = load(tmp_path, "int8", load_format="dummy")
    for name in ("model.layers.1.self_attn.o_proj", "model.layers.0.mlp.gate_up_proj", "lm_head"):
        expected = quantize_int8(weight_of(plain, name).detach()).dequantize()
        assert torch.equal(weight_of(model, name).dequantize(), expected)


@needs_cpu_kernels
def test_a_row_has_the_same_bits_in_any_company(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    model = load(tmp_path, "int4", dtype=torch.bfloat16)
    model.prepack()
    hidden = torch.randn(40, model.config.hidden_size).bfloat16()
    whole = model.logits(hidden)
    assert torch.equal(torch.cat([model.logits(row[None]) for row in hidden]), whole)


@needs_cpu_kernels
def test_a_quantized_model_cannot_be_saved(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    with pytest.raises(ValueError, match="quantized weights cannot be saved"):
        save_model(load(tmp_path / "model", "int8"), tmp_path / "again")


def test_what_no_kernel_multiplies_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny("llama", tmp_path)
    monkeypatch.setattr(multiply, "library", lambda _: None)
    with pytest.raises(ValueError, match=r"`quantization` is `int8`, but no kernel for cpu .* use `auto`"):
        load(tmp_path, "int8")


@needs_cpu_kernels
def test_fp8_on_a_cpu_is_refused_with_what_to_use(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    with pytest.raises(ValueError, match=r"`quantization` is `fp8`, but no kernel for cpu .* use `int8` or `int4`"):
        load(tmp_path, "fp8")


@pytest.mark.covers("quantization/dequantized")
def test_without_kernels_a_quantized_checkpoint_is_dequantized_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint loads everywhere; what that costs is said."""
    monkeypatch.setattr(multiply, "library", lambda _: None)
    save_quantized(tmp_path, "gptq")
    with caplog.at_level(logging.WARNING, logger="infer_models"):
        model = load(tmp_path, "auto")
    assert isinstance(weight_of(model, "model.layers.0.self_attn.qkv_proj"), torch.nn.Parameter)
    (record,) = caplog.records
    assert "gptq weights are dequantized to float32, because no kernel of cpu multiplies" in record.getMessage()
    assert "GiB" in record.getMessage()


MEASURE = """
import resource, sys
from pathlib import Path
import torch
from infer_kernels import QuantizedWeight
from infer_models import load_model

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

small, large = map(Path, sys.argv[1:])
load_model(small, device=torch.device("cpu"), dtype=torch.bfloat16, quantization="int4")
before = peak_bytes()
model = load_model(large, device=torch.device("cpu"), dtype=torch.bfloat16, quantization="int4")
held = {id(each): each.num_bytes for module in model.modules() for each in vars(module).values()
        if isinstance(each, QuantizedWeight)}
print(peak_bytes() - before - sum(held.values()), sum(held.values()))
"""


@pytest.mark.covers("quantization/on-the-fly")
@needs_cpu_kernels
def test_quantizing_takes_little_more_memory_than_the_quantized_weights(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    save_tiny("llama", small, dtype=torch.bfloat16)
    save_tiny("llama", large, dtype=torch.bfloat16, vocab_size=1_000_000)
    run = [sys.executable, "-c", MEASURE, str(small), str(large)]
    output = subprocess.run(run, check=True, timeout=120, capture_output=True, text=True).stdout
    extra, held = map(int, output.split())
    assert held > 2**26
    assert extra < 2**26


def test_experts_are_quantized_together_or_not_at_all(tmp_path: Path) -> None:
    """No kernel of CUDA multiplies by one stack of codes and one of numbers."""
    downs = tuple(f"model.layers.{layer}.mlp.experts.{expert}.down_proj" for layer in range(3) for expert in range(8))
    twin = save_quantized(tmp_path, "gptq", family="qwen3_moe", plain_layers=("lm_head", *downs))
    assert not any("down_proj" in name for name in twin.quantized)
    model = load(tmp_path, "auto")
    for name, module in model.named_modules():
        if name.endswith("mlp.experts"):
            stacks: Any = module
            assert isinstance(stacks.gate_up_proj, torch.nn.Parameter)
            assert isinstance(stacks.down_proj, torch.nn.Parameter)
    with torch.no_grad():
        expected = twin.model(IDS[None]).logits[0]
    model = load(tmp_path, "none")
    torch.testing.assert_close(logits_of(model), expected, rtol=0, atol=1e-4)

"""Checkpoints of models with states, and of Gemma 4, as they come: quantized in part, in stacks, of two sizes."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from infer_engine import LLM, SamplingParams
from infer_models import CausalView, load_model
from infer_proofs.engine.models import ModelEngine, greedy_tokens, random_prompt, save_servable
from infer_proofs.models import save_tiny
from infer_proofs.models.compressed_layers import quantize_compressed
from infer_proofs.models.quantized_layers import quantize_gptq

IDS = torch.tensor([5, 9, 200, 17, 3, 3, 42, 311, 8, 77, 1, 60])
WEIGHTS = "model.safetensors"


@torch.no_grad()
def require_equal(folder: Path, twin: Any) -> None:
    model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32, quantization="none")
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    torch.testing.assert_close(logits, twin(IDS[None]).logits[0], rtol=0, atol=1e-4)


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def quantize(folder: Path, twin: Any, parts: tuple[str, ...], how: Callable[[Tensor], tuple[Any, Tensor]]) -> None:
    """Store the layers whose names end so quantized, and give the twin what they are worth."""
    stored = load_file(folder / WEIGHTS)
    for name in [name for name in stored if name.removesuffix(".weight").endswith(parts)]:
        tensors, worth = how(stored.pop(name))
        stored |= {f"{name.removesuffix('.weight')}.{end}": each.contiguous() for end, each in tensors.items()}
        twin.get_parameter(name).data = worth
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})


GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
PACKED_WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
PACKED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": [f"model.layers.{layer}.linear_attn.in_proj_ba" for layer in range(4)],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": PACKED_WEIGHTS}},
}


@pytest.mark.parametrize(
    ("config", "how"),
    [
        # sgl-project/sglang#38854: the projections of decays and rates are plain, and nothing says so
        (GPTQ, partial(quantize_gptq, bits=4)),
        # vllm-project/vllm#40252: what is ignored has other names than the tensors
        (PACKED, partial(quantize_compressed, weights=PACKED_WEIGHTS, layout="pack-quantized")),
    ],
    ids=["gptq", "compressed"],
)
@pytest.mark.parametrize("parts", [("in_proj_qkv", "in_proj_z", "out_proj", "q_proj"), ("in_proj_qkv", "down_proj")])
def test_layers_are_quantized_as_their_tensors_are(
    tmp_path: Path, parts: tuple[str, ...], config: Any, how: Any
) -> None:
    twin = save_tiny("qwen3_5", tmp_path)
    quantize(tmp_path, twin, parts, how)
    edit_config(tmp_path, quantization_config=config)
    require_equal(tmp_path, twin)


def test_stacks_of_experts_are_read_beside_a_shared_one(tmp_path: Path) -> None:
    twin = save_tiny("qwen3_5_moe", tmp_path)
    stored = load_file(tmp_path / WEIGHTS)
    plain = {name: each for name, each in stored.items() if ".experts." not in name}
    stacks = {name: each for name, each in twin.state_dict().items() if ".mlp.experts." in name}
    assert len(stacks) == 8
    save_file(plain | {name: each.contiguous() for name, each in stacks.items()}, tmp_path / WEIGHTS)
    require_equal(tmp_path, twin)


@pytest.mark.parametrize("family", ["gemma4", "gemma4_moe", "qwen3_5"])
def test_a_quantized_cache_holds_layers_of_two_sizes(tmp_path: Path, family: str) -> None:
    # vllm-project/vllm#40388: heads of two sizes, and scales beside their codes
    twin = save_servable(family, tmp_path)
    prompt = random_prompt(40)
    llm = LLM(str(tmp_path), dtype="float32", kv_cache_dtype="int8", kv_cache_memory="8MiB")
    (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    assert output.token_ids == greedy_tokens(twin, prompt, 1)


@pytest.mark.parametrize("family", ["granitemoehybrid", "qwen3_5", "lfm2"])
def test_blocks_have_the_bytes_of_the_layers_that_attend(tmp_path: Path, family: str) -> None:
    # ollama/ollama#12692: memory of all layers was asked for
    save_servable(family, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    attends = [kind in ("full_attention", "attention") for kind in config["layer_types"]]
    assert 0 < sum(attends) < len(attends)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    of_block = 2 * 4 * 16 * config["num_key_value_heads"] * head_dim * sum(attends)
    engine = ModelEngine(tmp_path, block_size=16, kv_cache_memory=50 * of_block + 1)
    assert engine.info.num_kv_blocks == 50

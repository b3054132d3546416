"""Granite 4: what its configuration says and what is refused, dtypes of what states need, and quantized products."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_kernels import QuantizedWeight
from infer_models import CausalView, CheckpointError, ModelConfig, load_model
from infer_models.layer_states import StateHeads, StateSpec
from infer_models.layers import GatedMLP
from infer_models.layers.hybrid import Mamba2
from infer_models.tensor_parallel import check_tensor_parallel_size
from infer_proofs.models import save_tiny

CPU = torch.device("cpu")
IDS = torch.randint(3, 320, (40,), generator=torch.Generator().manual_seed(1))
GRANITE4: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "vocab_size": 100352,
    "hidden_size": 1536,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "shared_intermediate_size": 1024,
    "position_embedding_type": "nope",
    "normalization_function": "rmsnorm",
    "residual_multiplier": 0.5,
    "rms_norm_eps": 1e-5,
}
"""As files say it that `transformers` 4 wrote."""


def read(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    return ModelConfig.from_folder(folder)


def test_a_file_of_transformers_4_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, GRANITE4)
    of_groups = StateHeads(1, 128)
    state = StateSpec(num_before=3, parts=(StateHeads(48, 64), of_groups, of_groups), matrices=(48, 64, 128))
    assert state.convolution == (3, 3328)
    assert config.states == (state, state, None, state)
    assert config.ropes == (None,) * 4
    assert config.mamba is not None
    assert config.moe is not None
    assert (config.moe.num_experts, config.moe.experts_per_token, config.moe.intermediate_size) == (64, 6, 512)
    assert config.intermediate_size == config.moe.shared_intermediate_size == 1024
    assert (config.mamba.norm_eps, config.norm_eps) == (1e-5, 4e-5)
    assert (config.mamba.convolution_bias, config.mamba.projection_bias) == (True, False)
    assert config.mamba.scan.time_step_limit == (0.0, math.inf)


@pytest.mark.parametrize(
    "same",
    [
        {"layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"]},
        {"layer_types": None, "layers_block_type": GRANITE4["layer_types"]},
        {"position_embedding_type": None},
        {"mamba_d_head": "auto"},
        {"time_step_limit": [0.0, {"__float__": "Infinity"}]},
        {"time_step_limit": [0.0, math.inf]},
    ],
)
def test_other_spellings_mean_the_same(tmp_path: Path, same: dict[str, Any]) -> None:
    assert read(tmp_path, GRANITE4 | same) == read(tmp_path, GRANITE4)


def test_a_model_whose_layers_all_attend_has_no_states(tmp_path: Path) -> None:
    dense = {"layer_types": ["attention"] * 4, "num_local_experts": 0, "position_embedding_type": "rope"}
    config = read(tmp_path, GRANITE4 | dense)
    assert (config.states, config.mamba, config.moe) == ((), None, None)
    assert None not in config.ropes
    check_tensor_parallel_size(config, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
        ({"normalization_function": "layernorm"}, "`normalization_function` is 'layernorm'"),
        ({"position_embedding_type": "alibi"}, "`position_embedding_type` is 'alibi'"),
        ({"layer_types": ["mamba"] * 3}, "`layer_types` is"),
        ({"layer_types": ["sliding_attention"] * 4}, "`layer_types` is"),
        ({"mamba_n_heads": 50}, "`mamba_n_heads` is 50; it must be a divisor of `mamba_expand` * `hidden_size` = 3072"),
        ({"mamba_n_groups": 5}, "`mamba_n_groups` is 5; it must be a divisor of `mamba_n_heads` = 48"),
        ({"mamba_d_head": 32}, "`mamba_d_head` is 32; it must be `auto` or 64"),
        ({"mamba_d_conv": 1}, "`mamba_d_conv` is 1; it must be a whole number of at least 2"),
        ({"time_step_limit": [0.5, 0.1]}, "`time_step_limit` is [0.5, 0.1]; it must be two numbers"),
        ({"time_step_limit": [-1.0, 0.1]}, "`time_step_limit` is [-1.0, 0.1]; it must be two numbers"),
        ({"num_experts_per_tok": 65}, "`num_experts_per_tok` is 65; it must be at most 64"),
        ({"residual_multiplier": 0}, "`residual_multiplier` is 0; it must be a number above 0"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, GRANITE4 | changes)
    assert message in str(caught.value)


def test_what_decays_a_state_is_kept_in_fp32(tmp_path: Path) -> None:
    save_tiny("granitemoehybrid", tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.bfloat16)
    layers = [module for module in model.modules() if isinstance(module, Mamba2)]
    assert len(layers) == 3
    for layer in layers:
        assert {layer.A_log.dtype, layer.D.dtype, layer.dt_bias.dtype} == {torch.float32}
        assert layer.norm.weight.dtype == torch.bfloat16


@torch.no_grad()
def test_products_of_all_layers_are_quantized_on_the_fly(tmp_path: Path) -> None:
    save_tiny("granitemoehybrid", tmp_path)
    exact, quantized = (
        load_model(tmp_path, device=CPU, dtype=torch.float32, quantization=each) for each in ("auto", "int8")
    )
    for module in quantized.modules():
        if isinstance(module, Mamba2):
            assert isinstance(module.in_proj.weight, QuantizedWeight)
            assert isinstance(module.out_proj.weight, QuantizedWeight)
        if isinstance(module, GatedMLP):
            assert isinstance(module.gate_up_proj.weight, QuantizedWeight)
    ours, expected = (model(IDS, torch.arange(len(IDS)), CausalView()) for model in (quantized, exact))
    assert (ours - expected).square().mean().sqrt() < 0.1 * expected.std()

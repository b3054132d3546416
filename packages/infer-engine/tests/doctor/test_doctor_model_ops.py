"""The ops that the doctor checks are those that a step of the model calls, whoever wrote its family."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.doctor.kernels import examine_kernels
from infer_engine.doctor.model_ops import ops_of
from infer_kernels import ExpertActivation
from infer_kernels.checks import ConvolutionOps, DeltaRuleOps, HeadOps, ModelOps, MoeOps, ScanOps
from infer_models import CausalLM, KVCacheView, ModelConfig
from infer_models.config import MoEConfig
from infer_models.config.registry import REGISTERED, Family
from infer_models.families.gemma3.model import Gemma3
from infer_models.families.llama.config import read_llama
from infer_models.families.llama.model import Llama
from infer_models.families.nanogpt.model import NanoGPT
from infer_models.families.olmo.model import HeadsNormAttention, Olmo
from infer_models.families.qwen3_moe.model import Qwen3MoE
from infer_models.layers import ParameterFactory
from infer_proofs.engine.doctor import examined
from infer_proofs.engine.models import ALL_FAMILIES, save_servable
from infer_proofs.models import save_tiny_nanogpt

LLAMA: dict[str, Any] = {
    "norm": "llama",
    "has_sandwich_norms": False,
    "has_post_norms": False,
    "qk_norm": None,
    "norms_all_heads": False,
    "has_rotary": True,
    "rotary_dim": None,
    "has_sinks": False,
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "activation": "silu_and_mul",
    "embedding_scale": 1.0,
}
OLMO = {"has_post_norms": True, "norms_all_heads": True}
GEMMA = {"norm": "gemma", "qk_norm": "gemma", "has_sandwich_norms": True, "activation": "gelu_tanh_and_mul"}
DELTA_NET = {"norm": "gemma", "qk_norm": "gemma", "rotary_dim": 8}
GEMMA4 = GEMMA | {"norm": "llama", "qk_norm": "llama", "has_post_norms": True, "embedding_scale": 8.0}
DIFFERENCES: dict[str, dict[str, Any]] = {
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": "llama"},
    "qwen3_moe": {"qk_norm": "llama", "activation": None},
    "mixtral": {"activation": None},
    "granite": {"embedding_scale": 12.0 / 0.22},
    "granitemoehybrid": {"embedding_scale": 12.0 / 0.22, "has_rotary": False},
    "phi3": {"rotary_dim": 24},
    "olmo2": OLMO,
    "olmo3": OLMO,
    "gemma3": GEMMA | {"embedding_scale": 8.0},
    "gemma3_wrapped": GEMMA | {"embedding_scale": 8.0},
    "gemma4": GEMMA4,
    "gemma4_moe": GEMMA4,
    "gemma4_wrapped": GEMMA4,
    "gpt_oss": {"has_sinks": True, "qkv_bias": True, "output_bias": True, "activation": None},
    "lfm2": {"qk_norm": "llama"},
    "qwen3_5": DELTA_NET,
    "qwen3_5_wrapped": DELTA_NET,
    "qwen3_5_moe": DELTA_NET,
    "qwen3_5_moe_wrapped": DELTA_NET,
    "qwen3_next": DELTA_NET,
}
"""Ops of a family, or their numbers, in which it differs from Llama."""


def ops_in(folder: Path, **changes: Any) -> ModelOps:
    return ops_of(replace(ModelConfig.from_folder(folder), **changes), dtype=torch.bfloat16, block_size=16)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_ops_of_a_family_are_those_that_its_step_calls(folder_of: Callable[[str], Path], family: str) -> None:
    ops = ops_in(folder_of(family))
    assert {name: getattr(ops, name) for name in LLAMA} == LLAMA | DIFFERENCES.get(family, {})


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_sizes_of_ops_are_those_of_the_model(folder_of: Callable[[str], Path], family: str) -> None:
    config, ops = ModelConfig.from_folder(folder_of(family)), ops_in(folder_of(family))
    for name in ("vocab_size", "hidden_size", "q_heads", "kv_heads", "head_dim"):
        assert getattr(ops, name) == getattr(config, name), name
    shared = None if config.moe is None else config.moe.shared_intermediate_size
    assert ops.intermediate_size == (shared or config.intermediate_size)
    assert (ops.scale, ops.soft_cap) == (config.attention_scale, config.attention_soft_cap)
    other_windows = [window for heads in ops.other_heads for window in heads.windows]
    assert (*ops.windows, *other_windows) == tuple(dict.fromkeys(config.windows))


def test_layers_with_heads_of_other_sizes_are_ops_of_their_own(tmp_path: Path) -> None:
    save_servable("gemma4", tmp_path, num_kv_shared_layers=0, attention_k_eq_v=True, num_global_key_value_heads=1)
    ops = ops_in(tmp_path)
    assert (ops.kv_heads, ops.head_dim, ops.windows) == (2, 16, (8,))
    assert ops.other_heads == (HeadOps(kv_heads=1, head_dim=32, windows=(None,), scale=1.0, rotary_dim=None),)


@pytest.mark.parametrize("family", [family for family in ALL_FAMILIES if not family.startswith("gemma4")])
def test_layers_of_other_families_have_equal_heads(folder_of: Callable[[str], Path], family: str) -> None:
    assert ops_in(folder_of(family)).other_heads == ()


def test_ops_of_layers_with_states_are_those_that_their_step_calls(folder_of: Callable[[str], Path]) -> None:
    gated = ops_in(folder_of("lfm2"))
    assert (gated.delta_rule, gated.has_output_gate, gated.has_shared_expert_gate) == (None, False, False)
    assert gated.convolution == ConvolutionOps(channels=64, width=3, is_gated=True)
    ops = ops_in(folder_of("qwen3_next"))
    assert ops.delta_rule == DeltaRuleOps(key_heads=2, value_heads=4, key_dim=16, value_dim=16)
    assert ops.convolution == ConvolutionOps(channels=128, width=4, has_silu=True)
    assert (ops.has_output_gate, ops.has_shared_expert_gate) == (True, True)
    scanning = ops_in(folder_of("granitemoehybrid"))
    assert scanning.scan == ScanOps(heads=8, head_dim=16, groups=2, state_size=16)
    assert (scanning.convolution is not None, scanning.delta_rule) == (True, None)
    assert (ops_in(folder_of("llama")).convolution, ops_in(folder_of("llama")).scan) == (None, None)


def test_ops_of_a_model_with_learned_positions_are_not_llamas(tmp_path: Path) -> None:
    save_tiny_nanogpt(tmp_path)
    ops = ops_in(tmp_path)
    assert (ops.norm, ops.activation, ops.has_rotary, ops.output_bias) == (None, None, False, True)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (
            "qwen3_moe",
            MoeOps(
                experts=6,
                experts_per_token=2,
                intermediate_size=48,
                scoring="softmax",
                normalize=True,
                activation=ExpertActivation(),
            ),
        ),
        (
            "gpt_oss",
            MoeOps(
                experts=6,
                experts_per_token=3,
                intermediate_size=96,
                scoring="softmax_of_top_k",
                normalize=True,
                activation=ExpertActivation(alpha=1.702, limit=7.0, up_offset=1.0),
                has_biases=True,
            ),
        ),
        (
            "gemma4_moe",
            MoeOps(
                experts=6,
                experts_per_token=2,
                intermediate_size=48,
                scoring="softmax",
                normalize=True,
                activation=ExpertActivation(function="gelu_tanh"),
                has_expert_scales=True,
            ),
        ),
    ],
)
def test_mixtures_of_experts_are_those_that_the_step_calls(
    folder_of: Callable[[str], Path], family: str, expected: MoeOps
) -> None:
    assert ops_in(folder_of(family)).moe == expected


def test_biases_that_a_configuration_asks_for_are_ops(tmp_path: Path) -> None:
    save_servable("llama", tmp_path, attention_bias=True, mlp_bias=True)
    ops = ops_in(tmp_path)
    assert (ops.qkv_bias, ops.output_bias, ops.mlp_bias) == (True, True, True)


def test_a_model_with_experts_in_some_layers_has_the_activation_of_the_others(tmp_path: Path) -> None:
    save_servable("qwen3_moe", tmp_path, mlp_only_layers=[1])
    ops = ops_in(tmp_path)
    assert ops.moe is not None
    assert ops.activation == "silu_and_mul"


def test_no_kernel_is_loaded_to_find_a_models_ops(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ops_in(folder_of("gpt_oss"))
    loaded: list[object] = []
    monkeypatch.setattr("infer_kernels.dispatch.library", loaded.append)
    assert ops_in(folder_of("gpt_oss")) == expected
    assert loaded == []


def test_ops_of_a_model_of_any_size_take_no_memory(tmp_path: Path) -> None:
    save_servable("qwen3_moe", tmp_path)
    moe = MoEConfig(
        num_experts=1 << 10,
        experts_per_token=8,
        intermediate_size=1 << 14,
        normalizes_weights=True,
        is_sparse=(True,) * 3,
    )
    ops = ops_in(tmp_path, hidden_size=1 << 16, intermediate_size=1 << 17, vocab_size=1 << 20, moe=moe)
    assert ops.moe is not None
    assert (ops.hidden_size, ops.moe.experts, ops.moe.intermediate_size) == (1 << 16, 1 << 10, 1 << 14)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[CausalLM]], None]:
    """Return a function that lets a class be that of another package's family `registered`."""

    def register(build: type[CausalLM]) -> None:
        monkeypatch.setitem(REGISTERED, "registered", Family(read=read_llama, build=build))

    return register


@pytest.mark.parametrize(("family", "build"), [("gemma3", Gemma3), ("qwen3_moe", Qwen3MoE), ("olmo3", Olmo)])
def test_a_family_of_another_package_has_its_own_ops(
    folder_of: Callable[[str], Path],
    register: Callable[[type[CausalLM]], None],
    family: str,
    build: type[CausalLM],
) -> None:
    register(build)
    assert ops_in(folder_of(family), model_type="registered") == ops_in(folder_of(family))


class HeadsNormGPT(NanoGPT):
    """A model with layer norms, whose only RMS norms are over all heads of queries and of keys."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        super().__init__(config, factory)
        layers: Any = self.model.layers
        for index, layer in enumerate(layers):
            layer.self_attn = HeadsNormAttention(config, factory, index)


def test_norms_of_heads_are_not_taken_for_those_of_layers(
    tmp_path: Path, register: Callable[[type[CausalLM]], None]
) -> None:
    register(HeadsNormGPT)
    save_tiny_nanogpt(tmp_path)
    ops = ops_in(tmp_path, model_type="registered")
    assert (ops.norm, ops.norms_all_heads) == (None, True)


class NeedsTokens(Llama):
    """A model that cannot compute a step without tokens."""

    def hidden_states(self, input_ids: torch.Tensor, position_ids: torch.Tensor, cache: KVCacheView) -> torch.Tensor:
        hidden = super().hidden_states(input_ids, position_ids, cache)
        return hidden.view(len(hidden), -1)


def test_a_family_whose_ops_cannot_be_found_is_a_warning(
    tmp_path: Path, register: Callable[[type[CausalLM]], None]
) -> None:
    register(NeedsTokens)
    save_servable("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "registered"}))
    found = examined(examine_kernels, model=str(tmp_path))
    assert found.named("warning") == {"ops"}
    assert "a step without tokens fails: " in found.findings["ops"].found
    assert found.summaries == ["not checked"]

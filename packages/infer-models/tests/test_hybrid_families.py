"""Families whose layers may have states: what their files say in every dialect, what is refused, what is held how."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

from infer_models import CausalLM, CausalView, CheckpointError, ModelConfig, load_model, save_model
from infer_models.layer_states import StateHeads, StateSpec
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import TINY_FAMILIES, save_tiny

CPU = torch.device("cpu")
IDS = torch.tensor([5, 9, 200, 17, 3, 3, 42, 311, 8, 77, 1, 60])
HYBRIDS = [family for family, tiny in TINY_FAMILIES.items() if tiny.has_states]
DELTA_NETS = ["qwen3_5", "qwen3_5_moe", "qwen3_next"]
WRAPPED = [family for family in HYBRIDS if TINY_FAMILIES[family].wrapper is not None]


def load(folder: Path, **how: Any) -> CausalLM:
    return load_model(folder, device=CPU, **({"dtype": torch.float32} | how))


@torch.no_grad()
def logits_of(model: CausalLM) -> Tensor:
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


def read(folder: Path, **fields: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    return ModelConfig.from_folder(folder)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


@torch.no_grad()
@pytest.mark.parametrize("family", ["lfm2", *DELTA_NETS])
def test_states_have_the_shapes_of_the_cache_of_transformers(tmp_path: Path, family: str) -> None:
    twin = save_tiny(family, tmp_path)
    cache = twin(IDS[None], use_cache=True).past_key_values
    states = load(tmp_path).config.states
    assert len(states) == twin.config.num_hidden_layers
    for state, layer, kind in zip(states, cache.layers, twin.config.layer_types, strict=True):
        assert (state is None) == (kind == "full_attention")
        if state is None:
            continue
        num_before, channels = state.convolution
        assert layer.conv_states[0].shape == (1, channels, num_before + 1)  # theirs has room for the newest input
        matrices = layer.recurrent_states[0]
        assert state.matrices == (None if matrices is None else tuple(matrices.shape[1:]))


@pytest.mark.parametrize("model_type", ["lfm2", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"])
def test_layers_and_states_that_a_file_leaves_out_are_as_transformers_has_them(tmp_path: Path, model_type: str) -> None:
    config, defaults = read(tmp_path, model_type=model_type), AutoConfig.for_model(model_type)
    assert [config.attends(layer) for layer in range(config.num_layers)] == [
        kind == "full_attention" for kind in defaults.layer_types
    ]
    (rope,) = set(config.ropes)
    assert rope is not None
    assert rope.theta == defaults.rope_parameters["rope_theta"]
    share = defaults.rope_parameters.get("partial_rotary_factor", 1.0)
    assert (rope.rotary_dim or config.head_dim) == int(config.head_dim * share)
    if model_type != "lfm2":
        heads = defaults.linear_num_key_heads, defaults.linear_num_value_heads
        keys = StateHeads(heads[0], defaults.linear_key_head_dim)
        assert config.states[0] == StateSpec(
            num_before=defaults.linear_conv_kernel_dim - 1,
            parts=(keys, keys, StateHeads(heads[1], defaults.linear_value_head_dim)),
            matrices=(heads[1], 128, 128),
        )


def test_lfm2_s_early_names_of_fields_are_read(tmp_path: Path) -> None:
    early = {"block_ff_dim": 6656, "tie_embedding": False, "full_attn_idxs": [1, 3], "num_hidden_layers": 4}
    config = read(tmp_path, model_type="lfm2", rope_theta=500_000.0, block_norm_eps=0.1, **early)
    twin = AutoConfig.for_model("lfm2", **early)
    assert twin.layer_types == ["conv", "full_attention", "conv", "full_attention"]
    assert [config.attends(layer) for layer in range(4)] == [False, True, False, True]
    assert (config.intermediate_size, config.tie_word_embeddings, config.norm_eps) == (4608, False, 1e-5)
    assert {rope.theta for rope in config.ropes if rope is not None} == {500_000.0}
    assert read(tmp_path, model_type="lfm2", tie_word_embeddings=False, tie_embedding=True).tie_word_embeddings


def test_rotation_of_pictures_and_the_place_of_theta_change_nothing(tmp_path: Path) -> None:
    mrope = {"mrope_section": [11, 11, 10], "mrope_interleaved": True, "rope_type": "default", "rope_theta": 1e7}
    dialects: list[dict[str, Any]] = [
        {"rope_parameters": mrope | {"partial_rotary_factor": 0.25}},
        {"rope_parameters": mrope},
        {"rope_parameters": mrope, "partial_rotary_factor": 0.25},
        {"rope_theta": 1e7, "rope_scaling": {"type": "mrope", "mrope_section": [11, 11, 10]}},
        {"rope_theta": 1e7, "rope_scaling": None},
    ]
    first, *others = (read(tmp_path, model_type="qwen3_5_text", **dialect) for dialect in dialects)
    assert {(rope.theta, rope.rotary_dim) for rope in first.ropes if rope is not None} == {(1e7, 64)}
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "lfm2", "layer_types": ["linear_attention"] * 32},
            "must be 32 times `conv` or `full_attention`",
        ),
        ({"model_type": "lfm2", "layer_types": ["conv"]}, "must be 32 times `conv` or `full_attention`"),
        ({"model_type": "lfm2", "conv_L_cache": 1}, "`conv_L_cache` is 1; it must be a whole number of at least 2"),
        ({"model_type": "lfm2", "full_attn_idxs": ["2"]}, "`full_attn_idxs` is ['2']; it must be a list of whole"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'; it must be `silu`"),
        ({"layer_types": ["sliding_attention"] * 32}, "must be 32 times `linear_attention` or `full_attention`"),
        ({"linear_num_value_heads": 24}, "`linear_num_value_heads` is 24; it must be a multiple of `linear_num_key_h"),
        ({"linear_value_head_dim": 64}, "`linear_value_head_dim` is 64; it must be that of keys"),
        ({"linear_conv_kernel_dim": 1}, "`linear_conv_kernel_dim` is 1; it must be a whole number of at least 2"),
        ({"full_attention_interval": 0}, "`full_attention_interval` is 0; it must be a whole number"),
        ({"head_dim": 72}, "`head_dim` is 72; it must be a multiple of 16"),
        ({"model_type": "qwen3_next", "num_experts_per_tok": 513}, "must be at most 512, the number of experts"),
        ({"model_type": "qwen3_5_moe_text", "hidden_act": "gelu"}, "`hidden_act` is 'gelu'; it must be `silu`"),
    ],
)
def test_a_variant_that_is_not_supported_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, **({"model_type": "qwen3_5_text"} | fields))
    assert message in str(caught.value)


@pytest.mark.parametrize("family", WRAPPED)
def test_encoders_and_layers_that_predict_several_tokens_are_left_unread(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    expected = logits_of(load(tmp_path))
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    assert any(name.startswith("model.visual.") for name in stored)
    assert all(name.startswith(("model.language_model.", "model.visual.", "lm_head.")) for name in stored)
    mtp = {f"mtp.layers.0.{name}": torch.zeros(3) for name in ("self_attn.q_proj.weight", "input_layernorm.weight")}
    mtp |= {"mtp.fc.weight": torch.zeros(3), "mtp.norm.weight": torch.zeros(3)}
    save_file(stored | mtp, path)
    assert torch.equal(logits_of(load(tmp_path)), expected)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("place", ["text_config", "outside", "both"])
def test_tied_heads_of_wrappers_are_so_wherever_the_file_says_it(tmp_path: Path, place: str, *, is_tied: bool) -> None:
    save_tiny("qwen3_5_wrapped", tmp_path, tie_word_embeddings=is_tied)
    expected = logits_of(load(tmp_path))
    fields = json.loads((tmp_path / "config.json").read_text())
    text = {name: value for name, value in fields["text_config"].items() if name != "tie_word_embeddings"}
    in_text = {} if place == "outside" else {"tie_word_embeddings": is_tied}
    edit(tmp_path, text_config=text | in_text, tie_word_embeddings=None if place == "text_config" else is_tied)
    model = load(tmp_path)
    assert model.config.tie_word_embeddings == is_tied
    assert torch.equal(logits_of(model), expected)


@needs_cpu_kernels
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_decays_are_held_in_fp32_and_convolutions_as_numbers(tmp_path: Path, family: str, quantization: Any) -> None:
    save_tiny(family, tmp_path, dtype=torch.bfloat16)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    decays = {name: torch.rand(4) for name in stored if name.endswith("A_log")}  # which files may have in fp32 alone
    assert decays
    save_file(stored | decays, path)
    model = load(tmp_path, dtype=torch.bfloat16, quantization=quantization)
    for name, expected in decays.items():
        net: Any = model.get_submodule(name.removesuffix(".A_log"))
        assert net.A_log.dtype == net.dt_bias.dtype == torch.float32
        assert torch.equal(net.A_log, expected)
        assert torch.equal(net.dt_bias, stored[name.replace("A_log", "dt_bias")].float())
        assert net.conv1d.weight.dtype == net.norm.weight.dtype == torch.bfloat16
        assert net.in_proj_ba.weight.dtype == torch.bfloat16
        assert net.conv1d.weight.shape == (128, 4)


def test_norms_multiply_by_one_more_than_their_weight_but_for_those_of_delta_nets(tmp_path: Path) -> None:
    save_tiny("qwen3_5", tmp_path)
    model = load(tmp_path, load_format="dummy")  # norms that change nothing
    weights = {name: float(each.mean()) for name, each in model.named_parameters() if name.endswith("norm.weight")}
    assert {name for name, mean in weights.items() if mean == 1.0} == {
        f"model.layers.{layer}.linear_attn.norm.weight" for layer in (0, 1, 3)
    }
    assert set(weights.values()) == {0.0, 1.0}


@pytest.mark.parametrize("family", HYBRIDS)
def test_models_with_states_are_saved_and_read_again(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    model = load(tmp_path)
    save_model(model, tmp_path)
    assert torch.equal(logits_of(load(tmp_path)), logits_of(model))


@torch.no_grad()
@pytest.mark.parametrize("family", HYBRIDS)
def test_random_weights_make_a_model_that_computes(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    logits = logits_of(load(tmp_path, load_format="dummy"))
    assert logits.isfinite().all()
    assert logits.std() > 0

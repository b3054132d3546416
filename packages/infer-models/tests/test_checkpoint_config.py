"""What `config.json` and `generation_config.json` say, in the dialects of `transformers` 4 and 5."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from infer_models import CheckpointError, GenerationConfig, ModelConfig
from infer_models.config.model_config import LayerHeads
from infer_models.config.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    ProportionalScaling,
    RopeParameters,
    YarnScaling,
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
GEMMA: dict[str, Any] = LLAMA | {"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 512}


def read(folder: Path, fields: object) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    return ModelConfig.from_folder(folder)


def refusal_of(folder: Path, fields: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(folder, fields)
    message = str(caught.value)
    assert message.startswith(str(folder / "config.json"))
    assert "\n" not in message
    return message


@pytest.mark.covers("models/config-json")
def test_an_architecture_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA | {"dtype": "bfloat16"})
    assert (config.model_type, config.dtype, config.max_position_embeddings) == ("llama", "bfloat16", 131072)
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (128256, 2048, 16)
    assert (config.q_heads, config.kv_heads, config.head_dim, config.intermediate_size) == (32, 8, 64, 8192)
    assert config.tie_word_embeddings
    assert config.attention_scale == 0.125
    assert len(config.attention_specs) == 16


@pytest.mark.covers("models/llama3-frequencies")
@pytest.mark.parametrize(
    "rope",
    [{"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, {"rope_scaling": LLAMA3, "rope_theta": 5e5}],
    ids=["transformers_5", "transformers_4"],
)
def test_llama3_scaling_is_read_in_both_dialects(tmp_path: Path, rope: dict[str, Any]) -> None:
    scaling = Llama3Scaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    assert read(tmp_path, LLAMA | rope).ropes == (RopeParameters(theta=5e5, scaling=scaling),) * 16


@pytest.mark.covers("configuration/dtype")
@pytest.mark.parametrize(
    "dialect", [{"dtype": "float16"}, {"torch_dtype": "float16"}, {"torch_dtype": "torch.float16"}]
)
def test_the_dtype_is_read_in_both_dialects(tmp_path: Path, dialect: dict[str, Any]) -> None:
    assert read(tmp_path, LLAMA | dialect).dtype == "float16"


@pytest.mark.covers("models/gemma3-rope-tables")
@pytest.mark.parametrize(
    "rope",
    [
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            }
        },
        {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"type": "linear", "factor": 8.0}},
    ],
    ids=["transformers_5", "transformers_4"],
)
def test_gemma_has_two_tables_in_both_dialects(tmp_path: Path, rope: dict[str, Any]) -> None:
    config = read(tmp_path, GEMMA | rope)
    full = RopeParameters(theta=1e6, scaling=LinearScaling(factor=8.0))
    sliding = RopeParameters(theta=2e4, scaling=NoScaling())
    assert config.ropes == (*[sliding] * 5, full, sliding)


@pytest.mark.covers("models/gemma3-window-layers")
@pytest.mark.parametrize(
    "layers",
    [
        {},
        {"sliding_window_pattern": 6},
        {"_sliding_window_pattern": 6},
        {"layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]},
    ],
)
def test_gemma_layers_alternate(tmp_path: Path, layers: dict[str, Any]) -> None:
    config = read(tmp_path, GEMMA | layers)
    assert config.windows == (512, 512, 512, 512, 512, None, 512)


def test_gemma_heads_are_tied_unless_said_otherwise(tmp_path: Path) -> None:
    fields = {name: value for name, value in GEMMA.items() if name != "tie_word_embeddings"}
    assert read(tmp_path, fields).tie_word_embeddings
    assert not read(tmp_path, fields | {"model_type": "llama"}).tie_word_embeddings


def test_a_model_without_a_type_is_refused(tmp_path: Path) -> None:
    fields = {name: value for name, value in LLAMA.items() if name != "model_type"}
    assert "`model_type` is missing" in refusal_of(tmp_path, fields)


PHI = {"model_type": "phi3"}


@pytest.mark.covers("models/unknown-model-type")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt2"},
            "`model_type` is 'gpt2'; it must be one of `gemma3_text`, `gemma4_text`, `gpt_oss`",
        ),
        ({"model_type": ["llama"]}, "`model_type` is ['llama']; it must be a string"),
        ({"hidden_size": "64"}, "`hidden_size` is '64'; it must be a whole number of at least 1"),
        ({"hidden_size": True}, "`hidden_size` is True; it must be a whole number"),
        ({"vocab_size": 0}, "`vocab_size` is 0; it must be a whole number"),
        ({"num_key_value_heads": 5}, "`num_key_value_heads` is 5; it must be a divisor of `num_attention_heads` = 32"),
        ({"num_attention_heads": 24}, "`num_attention_heads` is 24; it must be a divisor of `hidden_size` = 2048"),
        ({"head_dim": 71}, "`head_dim` is 71; supported are even numbers of at most 256"),
        ({"head_dim": 272}, "`head_dim` is 272; supported are even numbers of at most 256"),
        ({"model_type": "qwen3", "head_dim": 72}, "`head_dim` is 72; it must be a multiple of 16"),
        ({"rms_norm_eps": "tiny"}, "`rms_norm_eps` is 'tiny'; it must be a number above 0"),
        ({"tie_word_embeddings": 1}, "`tie_word_embeddings` is 1; it must be true or false"),
        ({"dtype": "float8_e4m3fn"}, "`dtype` is 'float8_e4m3fn'; it must be `float32`"),
        ({"hidden_act": "relu"}, "`hidden_act` is 'relu'; it must be `silu`"),
        (
            {"rope_scaling": {"type": "axial"}},
            "`rope_scaling.type` is 'axial'; it must be one of `default`, `linear`, `dynamic`, `llama3`, `yarn`",
        ),
        ({"rope_scaling": {"type": "longrope"}}, "`rope_scaling.short_factor` is missing"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 31}},
            "must be 32 numbers, one for each rotated pair",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0, -1.0]}},
            "`rope_scaling.short_factor` is [1.0, -1.0]; it must be a list of numbers above 0",
        ),
        ({"rope_scaling": {"type": "linear"}}, "`rope_scaling.factor` is missing"),
        ({"rope_scaling": [1]}, "`rope_scaling` is [1]; it must be an object"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "`rope_parameters.high_freq_factor` is 1.0"),
        (PHI | {"rope_parameters": {"partial_rotary_factor": 0.01}}, "`rope_parameters.partial_rotary_factor` is 0.01"),
        (PHI | {"partial_rotary_factor": 1.5}, "`partial_rotary_factor` is 1.5; it must be a share of head_dim = 64"),
        ({"is_causal": False}, "`is_causal` is False; it must be true, or left out: models here attend"),
        ({"use_bidirectional_attention": True}, "`use_bidirectional_attention` is True; it must be false, or left out"),
        ({"is_encoder_decoder": True}, "`is_encoder_decoder` is True; it must be false, or left out"),
        ({"per_layer_config": {"0": {"head_dim": 32}}}, "it must be left out: sizes of single layers are not read"),
        ({"rope_scaling": {"type": "yarn", "truncate": 1}}, "`rope_scaling.truncate` is 1; it must be true or false"),
    ],
)
def test_a_value_that_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refusal_of(tmp_path, LLAMA | changes)


MOE = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
OSS = {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}
ACTIVATION = {"hidden_act": "gelu"}
GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 704}
GEMMA4 = {"model_type": "gemma4_text", "vocab_size_per_layer_input": 128256, "head_dim": 64}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mistral"} | ACTIVATION, "`hidden_act` is 'gelu'"),
        ({"model_type": "ministral"} | ACTIVATION, "`hidden_act` is 'gelu'"),
        ({"model_type": "ministral", "layer_types": ["chunked_attention"] * 16}, "`layer_types` is"),
        ({"model_type": "ministral3"} | ACTIVATION, "`hidden_act` is 'gelu'"),
        ({"model_type": "mixtral"} | ACTIVATION, "`hidden_act` is 'gelu'"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "`num_experts_per_tok` is 9; it must be at most 8"),
        ({"model_type": "qwen2"} | ACTIVATION, "`hidden_act` is 'gelu'"),
        ({"model_type": "qwen2", "use_sliding_window": "no"}, "`use_sliding_window` is 'no'; it must be true or false"),
        (MOE | {"num_experts_per_tok": 5}, "`num_experts_per_tok` is 5; it must be at most 4, the number of experts"),
        (MOE | {"mlp_only_layers": [1, -1]}, "`mlp_only_layers` is [1, -1]; it must be a list of whole numbers"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "`no_rope_layers` is [1, 0]; it must be 16 numbers"),
        (
            {"model_type": "granite", "residual_multiplier": 0},
            "`residual_multiplier` is 0; it must be a number above 0",
        ),
        ({"model_type": "phi3"} | ACTIVATION, "`hidden_act` is 'gelu'"),
        ({"model_type": "olmo3"} | ACTIVATION, "`hidden_act` is 'gelu'"),
        ({"model_type": "olmo3", "layer_types": ["full_attention"]}, "`layer_types` is"),
        ({"model_type": "olmo3", "rope_parameters": {"rope_theta": 500.0}}, "one table for `full_attention` and"),
        (OSS | {"attention_bias": False}, "`attention_bias` is False; it must be true"),
        (OSS | ACTIVATION, "`hidden_act` is 'gelu'"),
        (OSS | {"swiglu_limit": -1.0}, "`swiglu_limit` is -1.0; it must be a number above 0"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "`use_bidirectional_attention` is True"),
        ({"model_type": "gemma3_text", "hidden_activation": "gelu"}, "`hidden_activation` is 'gelu'"),
        (GEMMA4 | {"hidden_activation": "gelu"}, "`hidden_activation` is 'gelu'"),
        (
            GEMMA4 | {"use_bidirectional_attention": "all"},
            "`use_bidirectional_attention` is 'all'; it must be false, or left out",
        ),
        (GEMMA4 | GEMMA4_EXPERTS | {"top_k_experts": 9}, "`top_k_experts` is 9; it must be at most 8"),
        (GEMMA4 | {"enable_moe_block": True, "num_experts": 8}, "`moe_intermediate_size` is missing"),
        (GEMMA4 | {"layer_types": ["chunked_attention"] * 16}, "`layer_types` is"),
        (GEMMA4 | {"global_head_dim": 1024}, "`global_head_dim` is 1024; it must be a multiple of 16 of at most 512"),
        (
            GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 5},
            "`num_global_key_value_heads` is 5; it must be a divisor of `num_attention_heads` = 32",
        ),
        (GEMMA4 | {"num_kv_shared_layers": 12}, "`num_kv_shared_layers` is 12; it must be so few that a layer before"),
        (GEMMA4 | {"vocab_size_per_layer_input": 7}, "`vocab_size_per_layer_input` is 7; it must be `vocab_size`"),
        (
            GEMMA4 | {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "`rope_parameters.full_attention.rope_type` is 'yarn'; it must be `default` or `proportional`",
        ),
        (
            GEMMA4 | {"rope_parameters": {"sliding_attention": {"partial_rotary_factor": 0.5}}},
            "`rope_parameters.sliding_attention.partial_rotary_factor` is 0.5; it must be missing",
        ),
        (
            GEMMA4 | {"per_layer_config": {"16": {"head_dim": 64}}},
            "`per_layer_config` is {'16': {'head_dim': 64}}; it must be of layers 0 to 15",
        ),
        (GEMMA4 | {"per_layer_config": {"5": {"skip": ["mlp"]}}}, "it must be of `head_dim` and `num_key_value_heads`"),
    ],
)
def test_what_a_family_does_not_support_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    fields = {name: value for name, value in (LLAMA | changes).items() if value is not None}
    assert message in refusal_of(tmp_path, fields)


def test_gemma_4_whose_file_leaves_out_layers_is_that_of_transformers(tmp_path: Path) -> None:
    config = read(tmp_path, {"model_type": "gemma4_text", "attention_k_eq_v": True, "num_global_key_value_heads": 2})
    assert (config.num_layers, config.windows[:6]) == (30, (512,) * 5 + (None,))
    sliding = LayerHeads(kv_heads=4, head_dim=256)
    assert config.layer_heads[:6] == (*[sliding] * 5, LayerHeads(kv_heads=2, head_dim=512, are_values_keys=True))
    assert config.kv_layers == tuple(range(30))
    assert config.per_layer_input_size == 256
    assert (config.ropes[0], config.ropes[5]) == (
        RopeParameters(theta=10_000.0, scaling=NoScaling()),
        RopeParameters(theta=1_000_000.0, scaling=ProportionalScaling(num_rotated=64, factor=1.0), rotary_dim=512),
    )


def test_the_last_layers_of_gemma_4_attend_to_the_last_of_their_kind_before_them(tmp_path: Path) -> None:
    shared = {"num_hidden_layers": 35, "num_kv_shared_layers": 20, "use_double_wide_mlp": True}
    types = {"layer_types": ["full_attention" if (layer + 1) % 5 == 0 else "sliding_attention" for layer in range(35)]}
    config = read(tmp_path, GEMMA4 | {"vocab_size_per_layer_input": None, "vocab_size": 262_144} | shared | types)
    assert config.kv_layers[:20] == (*range(15), 13, 13, 13, 13, 14)
    assert [config.attention_specs[layer].is_shared for layer in (12, 13, 14, 15)] == [False, True, True, False]
    assert [config.has_cache(layer) for layer in (0, 14, 15, 34)] == [True, True, False, False]
    assert config.intermediate_sizes[14:16] == (9216, 18432)


def test_gpt_oss_whose_file_has_no_dtype_is_bf16(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA | OSS).dtype == "bfloat16"
    assert read(tmp_path, LLAMA | OSS | {"torch_dtype": "float32"}).dtype == "float32"
    assert read(tmp_path, LLAMA).dtype == "float32"


def test_a_window_as_long_as_the_longest_sequence_is_none(tmp_path: Path) -> None:
    fields = LLAMA | {"model_type": "phi3"}
    assert read(tmp_path, fields | {"sliding_window": 131072}).windows == (None,) * 16
    assert read(tmp_path, fields | {"sliding_window": 131071}).windows == (131071,) * 16


def test_mistral_has_a_window_unless_the_file_says_null(tmp_path: Path) -> None:
    fields = LLAMA | {"model_type": "mistral"}
    assert read(tmp_path, fields).windows == (4096,) * 16
    assert read(tmp_path, fields | {"sliding_window": None}).windows == (None,) * 16


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        {"rope_scaling": {"type": "yarn"}, "original_max_position_embeddings": 32768},
    ],
)
def test_yarn_is_read_in_every_dialect(tmp_path: Path, rope: dict[str, Any]) -> None:
    (scaling,) = {each.scaling for each in read(tmp_path, LLAMA | rope).ropes if each is not None}
    assert isinstance(scaling, YarnScaling)
    assert (scaling.factor, scaling.original_max_position_embeddings) == (4.0, 32768)
    assert scaling.attention_factor == pytest.approx(1.1386294)
    assert (scaling.beta_fast, scaling.beta_slow, scaling.truncate) == (32.0, 1.0, True)


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
@pytest.mark.parametrize("in_scaling", [True, False])
def test_longrope_is_read_under_its_early_names_too(tmp_path: Path, name: str, *, in_scaling: bool) -> None:
    original = {"original_max_position_embeddings": 4096}
    scaling = {"type": name, "short_factor": [1.0] * 24, "long_factor": [2.0] * 24}
    fields = LLAMA | {"model_type": "phi3", "partial_rotary_factor": 0.75}
    fields |= {"rope_scaling": scaling | original} if in_scaling else {"rope_scaling": scaling} | original
    (rope,) = set(read(tmp_path, fields).ropes)
    assert rope is not None
    assert rope.rotary_dim == 48
    assert rope.scaling == LongRopeScaling(
        short_factors=(1.0,) * 24,
        long_factors=(2.0,) * 24,
        short_length=4096,
        attention_factor=math.sqrt(1 + math.log(32) / math.log(4096)),
    )


@pytest.mark.covers("models/gemma3-window-layers")
def test_layer_types_must_fit_the_layers(tmp_path: Path) -> None:
    assert "`layer_types`" in refusal_of(tmp_path, GEMMA | {"layer_types": ["full_attention"] * 6})
    assert "`layer_types`" in refusal_of(tmp_path, GEMMA | {"layer_types": ["chunked_attention"] * 7})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"nul"])
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json (is not valid JSON|holds a JSON list|is empty)"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.covers("models/config-json")
def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.covers("models/eos-ids")
@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 7}, {"eos_token_id": 1}, (7,)),
        ({"eos_token_id": [9, 7, 9]}, {}, (9, 7)),
        ({"eos_token_id": None}, {"eos_token_id": 1}, (1,)),
        (None, {"eos_token_id": [1, 2]}, (1, 2)),
        (None, {}, ()),
    ],
)
def test_eos_ids_come_from_the_generation_config_first(
    tmp_path: Path, generation: object, config: object, expected: tuple[int, ...]
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert GenerationConfig.from_folder(tmp_path).eos_token_ids == expected


@pytest.mark.covers("models/eos-ids")
@pytest.mark.parametrize("eos", ["</s>", [1, "2"], -1, 1.5, True])
def test_an_eos_that_is_no_token_id_is_an_error(tmp_path: Path, eos: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: `eos_token_id` is"):
        GenerationConfig.from_folder(tmp_path)


def test_how_weights_are_quantized_is_read_of_both_fields(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA).quantization is None
    for fields, method in (
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"compression_config": {"format": "pack-quantized"}}, "compressed-tensors"),
    ):
        quantization = read(tmp_path, LLAMA | fields).quantization
        assert quantization is not None
        assert quantization.method == method
    assert read(tmp_path, LLAMA | {"quantization_config": None}).quantization is None

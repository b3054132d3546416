"""The families of this package: the reader of each `config.json`, and the path of the class of its models.

A reader reads the fields that its family has beside the common ones, and refuses variants that are not supported.
Families whose layers may have states are in `hybrid_families.py` and `mamba_families.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from infer_models.config.decoder_fields import (
    FULL,
    SLIDING,
    read_decoder,
    read_dtype,
    read_heads,
    read_moe,
    read_window,
    read_windows,
    require,
    with_biases,
    with_multipliers,
    with_windows,
)
from infer_models.config.gemma4_family import GEMMA4
from infer_models.config.hybrid_families import HYBRID_FAMILIES
from infer_models.config.json_fields import JsonFields
from infer_models.config.mamba_families import MAMBA_FAMILIES
from infer_models.config.model_config import ModelConfig, QueryScaling
from infer_models.config.registry import Family, default_sizes
from infer_models.config.rope_fields import read_full_and_sliding_rope, read_original_positions, rope_fields

_MINISTRAL3_ROPE: Mapping[str, Any] = MappingProxyType(
    {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
)
_GPT_OSS_ROPE: Mapping[str, Any] = MappingProxyType(
    {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
)
"""The rotary tables of families whose files may have none."""


def read_llama(fields: JsonFields) -> ModelConfig:
    """Llama 3.x, and models that were brought into its form: any head size, biases."""
    require(fields, "hidden_act", "silu")
    return with_biases(read_decoder(fields, pads_heads=True), fields, mlp=True)


def read_mistral(fields: JsonFields) -> ModelConfig:
    """Mistral: Llama whose layers may slide. An absent window is that of Mistral 7B; null is none.

    A file with `layer_types` is of Ministral 8B, as `transformers` takes it.
    """
    if "layer_types" in fields:
        return read_ministral(fields)
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, pads_heads=True)
    return replace(config, windows=with_windows(config, read_window(fields, default=4096)))


def read_ministral(fields: JsonFields) -> ModelConfig:
    """Ministral 8B: Mistral of which only some layers slide."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, pads_heads=True)
    window = read_window(fields, default=4096)
    windows = read_windows(fields, config, window=window, default_types=[SLIDING] * config.num_layers)
    return replace(config, windows=windows)


def read_mixtral(fields: JsonFields) -> ModelConfig:
    """Mixtral: Mistral with experts in every layer."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, default_theta=1_000_000.0, default_norm_eps=1e-5, pads_heads=True)
    moe = read_moe(
        fields,
        intermediate_size=config.intermediate_size,
        normalizes_weights=True,
        default_per_token=2,
        default_experts=8,
        is_sparse=(True,) * config.num_layers,
    )
    return replace(config, moe=moe, windows=with_windows(config, read_window(fields, default=None)))


def read_ministral3(fields: JsonFields) -> ModelConfig:
    """Ministral 3: Mistral whose queries grow beyond the positions of its first training."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(
        fields,
        default_head_dim=128,
        default_norm_eps=1e-5,
        default_rope=_MINISTRAL3_ROPE,
    )
    rope = rope_fields(fields, default=_MINISTRAL3_ROPE)
    scaling = None
    if "llama_4_scaling_beta" in rope:
        scaling = QueryScaling(
            beta=rope.number("llama_4_scaling_beta"),
            original_max_position_embeddings=read_original_positions(rope, fields),
        )
    return replace(
        config,
        query_scaling=scaling,
        windows=with_windows(config, read_window(fields, default=None)),
    )


def read_qwen2(fields: JsonFields) -> ModelConfig:
    """Qwen 2 and 2.5: Llama with biases; the later layers may slide."""
    require(fields, "hidden_act", "silu")
    return _with_later_windows(read_decoder(fields, pads_heads=True), fields)


def read_qwen3(fields: JsonFields) -> ModelConfig:
    """Qwen 3, dense; the later layers may slide."""
    require(fields, "hidden_act", "silu")
    return _with_later_windows(with_biases(read_decoder(fields, default_head_dim=128), fields), fields)


def _with_later_windows(config: ModelConfig, fields: JsonFields) -> ModelConfig:
    """Return `config` with the windows of Qwen 2 and 3: of the later layers, if `use_sliding_window` says so."""
    window = _read_window_in_use(fields, default=4096)
    first = fields.whole_number("max_window_layers", 28)
    types = [SLIDING if layer >= first else FULL for layer in range(config.num_layers)]
    return replace(config, windows=read_windows(fields, config, window=window, default_types=types))


def _read_window_in_use(fields: JsonFields, *, default: int | None) -> int | None:
    """Read the length of windows where `use_sliding_window` says that there are any."""
    window = read_window(fields, default=default)
    return window if fields.flag("use_sliding_window", default=False) else None


def read_qwen3_moe(fields: JsonFields) -> ModelConfig:
    """Qwen 3 with experts; some layers may have MLPs, and all may slide."""
    require(fields, "hidden_act", "silu")
    config = with_biases(read_decoder(fields), fields)
    window = _read_window_in_use(fields, default=4096)
    dense, step = fields.indices("mlp_only_layers"), fields.count("decoder_sparse_step", 1)
    return replace(
        config,
        windows=with_windows(config, window),
        moe=read_moe(
            fields,
            intermediate_size=fields.count("moe_intermediate_size", 768),
            normalizes_weights=fields.flag("norm_topk_prob", default=False),
            default_per_token=8,
            is_sparse=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(config.num_layers)),
        ),
    )


def read_smollm3(fields: JsonFields) -> ModelConfig:
    """SmolLM 3: Llama some of whose layers have no positions; those may slide."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, default_theta=2_000_000.0, tied_by_default=True, pads_heads=True)
    config = with_biases(config, fields, mlp=True)
    every = fields.count("no_rope_layer_interval", 4)
    usual = [int((layer + 1) % every != 0) for layer in range(config.num_layers)]
    has_rope = fields.indices("no_rope_layers") if "no_rope_layers" in fields else usual  # 1: rotated, 0: not
    if len(has_rope) < config.num_layers:
        raise fields.invalid("no_rope_layers", f"{config.num_layers} numbers, 1 or 0, one for each layer")
    in_use = _read_window_in_use(fields, default=None)
    window = read_window(fields, default=None) if "layer_types" in fields else in_use  # a list says it by itself
    types = [FULL if rotated else SLIDING for rotated in has_rope[: config.num_layers]]
    return replace(
        config,
        windows=read_windows(fields, config, window=window, default_types=types),
        ropes=tuple(rope if has_rope[layer] else None for layer, rope in enumerate(config.ropes)),
    )


def read_granite(fields: JsonFields) -> ModelConfig:
    """Granite 3: Llama with four multipliers."""
    require(fields, "hidden_act", "silu")
    return with_multipliers(with_biases(read_decoder(fields, pads_heads=True), fields, mlp=True), fields)


def read_phi3(fields: JsonFields) -> ModelConfig:
    """Phi 3 and 4: Llama with fused tensors, a part of each head rotated, LongRoPE."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, default_norm_eps=1e-5, rotates_part=True)
    return replace(config, windows=with_windows(config, read_window(fields, default=None)))


def read_olmo2(fields: JsonFields) -> ModelConfig:
    """OLMo 2: norms after attention and MLP, and over all heads of queries and keys."""
    require(fields, "hidden_act", "silu")
    return with_biases(read_decoder(fields, default_norm_eps=1e-5), fields)


def read_olmo3(fields: JsonFields) -> ModelConfig:
    """OLMo 3: OLMo 2 with three sliding layers to one full one; only full ones scale their frequencies."""
    config = read_olmo2(fields)
    types = [FULL if (layer + 1) % 4 == 0 else SLIDING for layer in range(config.num_layers)]
    windows = read_windows(fields, config, window=read_window(fields, default=4096), default_types=types)
    theta = fields.number("rope_theta", 500_000.0)
    full, sliding = read_full_and_sliding_rope(fields, head_dim=config.head_dim, full_theta=theta, sliding_theta=theta)
    kinds = fields.texts("layer_types") if "layer_types" in fields else types
    return replace(config, windows=windows, ropes=tuple(full if kind == FULL else sliding for kind in kinds))


def read_gemma3(fields: JsonFields) -> ModelConfig:
    """Gemma 3: five sliding layers to one full one, each kind with its own frequencies."""
    require(fields, "hidden_activation", "gelu_pytorch_tanh")
    config = with_biases(read_decoder(fields, default_head_dim=256, tied_by_default=True), fields)
    # Its files say the length that its scaling, of full layers alone, makes possible.
    config = replace(config, max_position_embeddings=fields.count("max_position_embeddings"))
    name = "sliding_window_pattern" if "sliding_window_pattern" in fields else "_sliding_window_pattern"
    every = fields.count(name, 6)
    types = [FULL if (layer + 1) % every == 0 else SLIDING for layer in range(config.num_layers)]
    kinds = fields.texts("layer_types") if "layer_types" in fields else types
    full, sliding = read_full_and_sliding_rope(
        fields,
        head_dim=config.head_dim,
        full_theta=fields.number("rope_theta", 1_000_000.0),
        sliding_theta=fields.number("rope_local_base_freq", 10_000.0),
    )
    return replace(
        config,
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_soft_cap=fields.optional_number("attn_logit_softcapping"),
        logit_soft_cap=fields.optional_number("final_logit_softcapping"),
        embedding_scale=config.hidden_size**0.5,
        windows=read_windows(fields, config, window=read_window(fields, default=4096), default_types=types),
        ropes=tuple(full if kind == FULL else sliding for kind in kinds),
    )


def read_gpt_oss(fields: JsonFields) -> ModelConfig:
    """gpt-oss: experts in every layer, every second layer sliding, attention sinks, biases."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(
        fields,
        default_head_dim=64,
        default_theta=150_000.0,
        default_dtype="bfloat16",
        default_norm_eps=1e-5,
        default_rope=_GPT_OSS_ROPE,
    )
    if not fields.flag("attention_bias", default=True):
        raise fields.invalid("attention_bias", "true: models without biases are not supported")
    types = [SLIDING if layer % 2 == 0 else FULL for layer in range(config.num_layers)]
    return replace(
        config,
        windows=read_windows(fields, config, window=read_window(fields, default=128), default_types=types),
        moe=replace(
            read_moe(
                fields,
                intermediate_size=config.intermediate_size,
                normalizes_weights=True,
                default_per_token=4,
                is_sparse=(True,) * config.num_layers,
            ),
            swiglu_alpha=fields.number("swiglu_alpha", 1.702),
            swiglu_limit=fields.number("swiglu_limit", 7.0),
        ),
        has_parts_apart=fields.flag("has_parts_apart", default=False),
    )


def read_nanogpt(fields: JsonFields) -> ModelConfig:
    """NanoGPT: learned positions, layer norms, an MLP without a gate."""
    heads = read_heads(fields, default_head_dim=None)
    if heads.held_head_dim != heads.head_dim:
        raise fields.invalid("num_attention_heads", "one that makes heads of a multiple of 16 elements")
    hidden_size = fields.count("hidden_size")
    num_layers = fields.count("num_hidden_layers")
    return ModelConfig(
        model_type=fields.text("model_type"),
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        q_heads=heads.q_heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        intermediate_size=fields.count("intermediate_size", 4 * hidden_size),
        max_position_embeddings=fields.count("max_position_embeddings"),
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        dtype=read_dtype(fields),
        tie_word_embeddings=False,
        attention_scale=heads.head_dim**-0.5,
        windows=(None,) * num_layers,
        ropes=(None,) * num_layers,
    )


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(
            read=read_llama,
            build="infer_models.families.llama:Llama",
            defaults=default_sizes(32000, 4096, 11008, 32, 32, None, 2048),
        ),
        "mistral": Family(
            read=read_mistral,
            build="infer_models.families.mistral:Mistral",
            defaults=default_sizes(32000, 4096, 14336, 32, 32, 8, 131072),
        ),
        "ministral": Family(
            read=read_ministral,
            build="infer_models.families.mistral:Mistral",
            defaults=default_sizes(32000, 4096, 14336, 32, 32, 8, 131072),
        ),
        "ministral3": Family(
            read=read_ministral3,
            build="infer_models.families.mistral:Mistral",
            defaults=default_sizes(131072, 4096, 14336, 34, 32, 8, 262144),
        ),
        "mixtral": Family(
            read=read_mixtral,
            build="infer_models.families.mistral:Mixtral",
            defaults=default_sizes(32000, 4096, 14336, 32, 32, 8, 131072),
        ),
        "qwen2": Family(
            read=read_qwen2,
            build="infer_models.families.qwen2:Qwen2",
            defaults=default_sizes(151936, 4096, 22016, 32, 32, 32, 32768),
        ),
        "qwen3": Family(
            read=read_qwen3,
            build="infer_models.families.qwen3:Qwen3",
            defaults=default_sizes(151936, 4096, 22016, 32, 32, 32, 32768),
        ),
        "qwen3_moe": Family(
            read=read_qwen3_moe,
            build="infer_models.families.qwen3_moe:Qwen3MoE",
            defaults=default_sizes(151936, 2048, 6144, 24, 32, 4, 32768),
        ),
        "smollm3": Family(
            read=read_smollm3,
            build="infer_models.families.llama:Llama",
            defaults=default_sizes(128256, 2048, 11008, 36, 16, 4, 32768),
        ),
        "granite": Family(
            read=read_granite,
            build="infer_models.families.llama:Llama",
            defaults=default_sizes(32000, 4096, 11008, 32, 32, None, 2048),
        ),
        "phi3": Family(
            read=read_phi3,
            build="infer_models.families.phi3:Phi3",
            defaults=default_sizes(32064, 3072, 8192, 32, 32, None, 4096),
        ),
        "olmo2": Family(
            read=read_olmo2,
            build="infer_models.families.olmo:Olmo",
            defaults=default_sizes(50304, 4096, 11008, 32, 32, None, 2048),
        ),
        "olmo3": Family(
            read=read_olmo3,
            build="infer_models.families.olmo:Olmo",
            defaults=default_sizes(50304, 4096, 11008, 32, 32, None, 2048),
        ),
        "gemma3_text": Family(
            read=read_gemma3,
            build="infer_models.families.gemma3:Gemma3",
            defaults=default_sizes(262208, 2304, 9216, 26, 8, 4, 131072),
        ),
        "gemma4_text": GEMMA4,
        "gpt_oss": Family(
            read=read_gpt_oss,
            build="infer_models.families.gpt_oss:GptOss",
            defaults=default_sizes(201088, 2880, 2880, 36, 64, 8, 131072),
        ),
        **HYBRID_FAMILIES,
        **MAMBA_FAMILIES,
        "nanogpt": Family(read=read_nanogpt, build="infer_models.families.nanogpt:NanoGPT"),
    }
)
"""The families of this package by `model_type`; the defaults are those of `transformers`' configuration classes."""

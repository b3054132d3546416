"""Turns the metadata of a GGUF file into the fields of a `config.json`, architecture by architecture.

What is not in the metadata is in llama.cpp's code: these constants stand beside the architecture that they belong to.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

from infer_models.errors import CheckpointError
from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.block_types import OF_LLAMA_CPP
from infer_models.gguf.gemma4 import GEMMA4
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.hybrids import HYBRIDS, granite_multipliers
from infer_models.gguf.metadata import ARCHITECTURE, LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, Metadata, read_factors
from infer_models.gguf.tensor_names import EMBEDDING, HEAD

_FULL, _SLIDING = "full_attention", "sliding_attention"
_IS_CAUSAL = ".attention.causal"
_WINDOW, _PATTERN = ".attention.sliding_window", ".attention.sliding_window_pattern"
_SCALING_KEYS = (".rope.scaling.type", ".rope.scaling.factor", ".rope.scale_linear")
_GEMMA3_27B_LAYERS = 62
_GEMMA3_LENGTH, _GEMMA3_FACTOR = 131072, 8.0
"""The context that Gemma 3's scaling makes possible, and its factor, which Ollama's files leave out."""
_SAMPLING: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "general.sampling.temp",
        "top_p": "general.sampling.top_p",
        "min_p": "general.sampling.min_p",
        "repetition_penalty": "general.sampling.penalty_repeat",
    }
)


def architecture_of(header: GgufHeader) -> Architecture:
    """Return the architecture of a file.

    Raises:
        CheckpointError: it is none that is read.
    """
    metadata = Metadata(header)
    if metadata.architecture == "gptoss":
        raise metadata.invalid(ARCHITECTURE, f"another one: Ollama's own files are not read; {OF_LLAMA_CPP}")
    found = ARCHITECTURES.get(metadata.architecture)
    if found is None:
        raise metadata.invalid(ARCHITECTURE, "one of " + ", ".join(f"`{each}`" for each in ARCHITECTURES))
    return found


def config_fields(header: GgufHeader) -> Fields:
    """Return the fields that a `config.json` of the model would have, but those of the tokenizer.

    Raises:
        CheckpointError: the architecture is not read, or a value is missing, damaged or not supported.
    """
    architecture, metadata = architecture_of(header), Metadata(header)
    if EMBEDDING not in header.tensors:
        raise CheckpointError(f"{header.path} holds no tensor `{EMBEDDING}`: it is no whole model.")
    if not metadata.flag(_IS_CAUSAL, default=True):
        raise metadata.invalid(_IS_CAUSAL, "true: a model that sees later tokens writes no text")
    heads = metadata.count(".attention.head_count")
    hidden_size = metadata.count(".embedding_length")
    fields: Fields = {
        "model_type": architecture.model_type,
        "vocab_size": header.tensors[EMBEDDING].shape[0],
        "hidden_size": hidden_size,
        "num_hidden_layers": metadata.count(".block_count"),
        "num_attention_heads": heads,
        "head_dim": metadata.optional_count(".attention.key_length") or hidden_size // max(heads, 1),
        "max_position_embeddings": metadata.count(".context_length"),
        "rms_norm_eps": metadata.number(".attention.layer_norm_rms_epsilon", architecture.norm_epsilon),
        "rope_theta": metadata.number(".rope.freq_base", 10000.0),
        "tie_word_embeddings": HEAD not in header.tensors,
        "torch_dtype": _dtype(header),
    }
    value_length = metadata.optional_count(".attention.value_length")
    if value_length not in (None, fields["head_dim"]):
        raise metadata.invalid(".attention.value_length", f"the size of keys, {fields['head_dim']}")
    if not architecture.layers_differ:
        fields["num_key_value_heads"] = _kv_heads(metadata, heads, architecture)
        fields["intermediate_size"] = metadata.optional_count(".feed_forward_length")
        fields |= _rope_fields(metadata, header, head_dim=fields["head_dim"])
    own = architecture.own_fields(metadata, header)
    scaling = {**architecture.scaling, **fields.get("rope_scaling", {}), **own.get("rope_scaling", {})}
    fields |= own
    if scaling:
        fields["rope_scaling"] = {"rope_type": "default", **scaling}
    metadata.warn_of_unread(metadata.architecture)
    return {name: value for name, value in fields.items() if value is not None}


def _kv_heads(metadata: Metadata, default: int, architecture: Architecture) -> int:
    key = ".attention.head_count_kv"
    return metadata.count_but_zeros(key, default) if architecture.has_states else metadata.count(key, default)


def sampling_fields(header: GgufHeader) -> Fields:
    """Return how the model is meant to be sampled, as fields of a `generation_config.json`.

    Raises:
        CheckpointError: a value is no number.
    """
    metadata = Metadata(header)
    found: Fields = {name: metadata.number(key) for name, key in _SAMPLING.items() if key in metadata}
    if "general.sampling.top_k" in metadata:
        found["top_k"] = metadata.count("general.sampling.top_k")
    return found


def _dtype(header: GgufHeader) -> str:
    """Return the dtype to compute in: fp32 where most weights are, and bf16 otherwise.

    Weights of F16 are mostly of models trained in bf16, whose activations may leave the range of fp16.
    """
    sizes: dict[str, int] = {}
    for place in header.tensors.values():
        if len(place.shape) > 1:
            sizes[place.kind] = sizes.get(place.kind, 0) + math.prod(place.shape)
    return "float32" if max(sizes, key=sizes.__getitem__, default="") == "F32" else "bfloat16"


def _rope_fields(metadata: Metadata, header: GgufHeader, *, head_dim: int) -> Fields:
    """Return the fields of positions: the part of each head that is rotated, and the scaling."""
    rotated = metadata.optional_count(".rope.dimension_count") or head_dim
    if rotated > head_dim:
        raise metadata.invalid(".rope.dimension_count", f"at most {head_dim}, the size of a head")
    fields: Fields = {"rotated_share": rotated / head_dim}
    scaling = _scaling(metadata, header, rotated=rotated)
    return fields | ({} if scaling is None else {"rope_scaling": scaling})


def _scaling(metadata: Metadata, header: GgufHeader, *, rotated: int) -> Fields | None:
    """Return `rope_scaling`; None: there is none."""
    factor = metadata.number(".rope.scaling.factor", metadata.number(".rope.scale_linear", 0.0))
    original = metadata.optional_count(".rope.scaling.original_context_length")
    if LONG_FACTORS in header.tensors:
        names = {"short_factor": SHORT_FACTORS, "long_factor": LONG_FACTORS}
        fields: Fields = {name: read_factors(header, tensor) for name, tensor in names.items()}
        fields |= {"rope_type": "longrope", "original_max_position_embeddings": original}
        if ".rope.scaling.attn_factor" in metadata:
            fields["attention_factor"] = metadata.number(".rope.scaling.attn_factor")
        return fields
    if ROPE_FACTORS in header.tensors:
        return _divided(metadata, header, num_pairs=rotated // 2)
    kind = metadata.text(".rope.scaling.type", "linear" if factor else "none")
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "longrope":
        return None  # of lengths whose factors the file leaves out, as of the trained one
    if kind != "yarn":
        raise metadata.invalid(".rope.scaling.type", "`none`, `linear`, `yarn` or `longrope`")
    fields = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    keys = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow", "mscale_all_dim": "yarn_log_multiplier"}
    keys["attention_factor"] = "yarn_attn_factor"
    for name, key in keys.items():
        if f".rope.scaling.{key}" in metadata:
            fields[name] = metadata.number(f".rope.scaling.{key}")
    if fields.get("mscale_all_dim"):
        fields["mscale"] = 1.0
    return fields


def _divided(metadata: Metadata, header: GgufHeader, *, num_pairs: int) -> Fields | None:
    """Return the scaling that divides each frequency by its factor in the file; None: all are 1.

    Raises:
        CheckpointError: there is not one for each rotated pair of a head's elements.
    """
    factors = read_factors(header, ROPE_FACTORS)
    if len(factors) != num_pairs or not all(each > 0 for each in factors):
        raise CheckpointError(f"{header.path}: tensor `{ROPE_FACTORS}` must hold {num_pairs} numbers above 0.")
    if set(factors) == {1.0}:
        return None
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": metadata.count(".context_length"),
    }


def _llama(metadata: Metadata, header: GgufHeader) -> Fields:
    num_experts = metadata.optional_count(".expert_count")
    if num_experts is None:
        return _biases(header)
    return {
        "model_type": "mixtral",
        "num_local_experts": num_experts,
        "num_experts_per_tok": metadata.count(".expert_used_count"),
    }


def _mistral3(metadata: Metadata, header: GgufHeader) -> Fields:
    beta = metadata.number(".attention.temperature_scale", 0.0)
    if not beta:  # Mistral Small 3, whose queries do not grow
        return _llama(metadata, header)
    return {"model_type": "ministral3", "rope_scaling": {"llama_4_scaling_beta": beta}}


def _biases(header: GgufHeader) -> Fields:
    return {
        "attention_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
    }


def _qwen3_moe(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    return {
        "num_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _gemma3(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    layers, heads = metadata.count(".block_count"), metadata.count(".attention.head_count")
    head_dim = metadata.count(".attention.key_length")
    is_27b = layers == _GEMMA3_27B_LAYERS
    window = metadata.optional_count(_WINDOW)
    # Some of Ollama's files have other names of the bases, and others neither bases nor a scaling.
    theta = metadata.number(".rope.freq_base", metadata.number(".rope.global.freq_base", 1_000_000.0))
    fields: Fields = {
        "query_pre_attn_scalar": metadata.count(".embedding_length") // max(heads, 1) if is_27b else head_dim,
        "sliding_window": window,
        "layer_types": _layer_types(metadata, every=6) if window else [_FULL] * layers,
        "rope_theta": theta,
        "rope_local_base_freq": metadata.number(
            ".rope.freq_base_swa", metadata.number(".rope.local.freq_base", 10_000.0)
        ),
        "final_logit_softcapping": metadata.optional_number(".final_logit_softcapping"),
    }
    is_long = metadata.count(".context_length") == _GEMMA3_LENGTH
    if is_long and not any(key in metadata for key in _SCALING_KEYS):
        fields["rope_scaling"] = {"rope_type": "linear", "factor": _GEMMA3_FACTOR}
    return fields


def _phi3(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    return {
        "sliding_window": metadata.optional_count(_WINDOW),
        "original_max_position_embeddings": metadata.optional_count(".rope.scaling.original_context_length"),
    }


def _olmo2(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    window = metadata.optional_count(_WINDOW)
    if window is None:
        return {}
    base = metadata.optional_number(".rope.freq_base_swa")
    return {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": _layer_types(metadata, every=4),
        "rope_parameters": None if base is None else {_SLIDING: {"rope_theta": base}},
    }


def _layer_types(metadata: Metadata, *, every: int) -> list[str]:
    """Return the kind of each layer: that of the metadata, or all slide but the last one of `every` layers."""
    if metadata.is_array(_PATTERN):
        return [_SLIDING if each else _FULL for each in metadata.numbers(_PATTERN)]
    every = metadata.count(_PATTERN, every) or 1 << 30  # 0: all layers slide
    return [_FULL if (layer + 1) % every == 0 else _SLIDING for layer in range(metadata.count(".block_count"))]


def _gpt_oss(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    return {
        "num_local_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "intermediate_size": metadata.count(".expert_feed_forward_length"),
        "has_parts_apart": True,
        "sliding_window": metadata.count(_WINDOW),
        "layer_types": _layer_types(metadata, every=2),
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    }


def _granite(metadata: Metadata, header: GgufHeader) -> Fields:
    for key in (".expert_count", ".expert_used_count"):
        if metadata.optional_count(key) is not None:
            raise metadata.invalid(key, "0: of Granite with experts `granitehybrid` is read alone")
    # Granite 4 whose layers all attend is converted with the sizes of its other layers.
    width = metadata.optional_count(".expert_shared_feed_forward_length")
    return granite_multipliers(metadata) | _biases(header) | ({"intermediate_size": width} if width else {})


def _smollm3(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    key = ".attention.rope_pattern"
    return {"no_rope_layers": [int(each) for each in metadata.numbers(key)]} if key in metadata else {}


_NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GPT_OSS_NAMES = MappingProxyType(
    {
        "post_attention_norm": "post_attention_layernorm",
        "attn_sinks.weight": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        "ffn_gate_exps.bias": "mlp.experts.gate_proj_bias",
        "ffn_up_exps.bias": "mlp.experts.up_proj_bias",
        "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
    }
)
_MIXTRAL_NAMES = MappingProxyType(
    {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    }
)
"""Names of what only the files of Mixtral have, of those of Llama."""
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(model_type="llama", own_fields=_llama, has_interleaved_heads=True, names=_MIXTRAL_NAMES),
        "mistral3": Architecture(
            model_type="llama", own_fields=_mistral3, has_interleaved_heads=True, names=_MIXTRAL_NAMES
        ),
        "qwen2": Architecture(model_type="qwen2"),
        "qwen3": Architecture(model_type="qwen3"),
        "qwen3moe": Architecture(model_type="qwen3_moe", own_fields=_qwen3_moe),
        "gemma3": Architecture(
            model_type="gemma3_text",
            own_fields=_gemma3,
            norm_epsilon=1e-6,
            norm_shift=1.0,
            names=MappingProxyType({**_NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}),
        ),
        "phi3": Architecture(
            model_type="phi3",
            own_fields=_phi3,
            names=MappingProxyType({"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
        ),
        "olmo2": Architecture(model_type="olmo2", own_fields=_olmo2, names=MappingProxyType(_NORMS_AFTER)),
        "granite": Architecture(model_type="granite", own_fields=_granite, has_interleaved_heads=True),
        "smollm3": Architecture(model_type="smollm3", own_fields=_smollm3, has_interleaved_heads=True),
        "gpt-oss": Architecture(
            model_type="gpt_oss",
            own_fields=_gpt_oss,
            names=_GPT_OSS_NAMES,
            scaling=MappingProxyType({"truncate": False}),
        ),
        "gemma4": GEMMA4,
        **HYBRIDS,
    }
)
"""The architectures that are read, by their names."""

"""Turns the metadata of a GGUF file into the fields of a `config.json`, but those of one family alone.

What is not in the metadata is in llama.cpp's code: such constants stand beside the architecture that they belong to.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

from infer_models.errors import CheckpointError
from infer_models.gguf.architecture import Architecture, Fields, architecture_of
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, Metadata, read_factors
from infer_models.gguf.tensor_names import EMBEDDING, HEAD

_IS_CAUSAL = ".attention.causal"
SAMPLING_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "general.sampling.temp",
        "top_p": "general.sampling.top_p",
        "top_k": "general.sampling.top_k",
        "min_p": "general.sampling.min_p",
        "repetition_penalty": "general.sampling.penalty_repeat",
    }
)
"""Fields of a `generation_config.json` with their keys in a GGUF file."""


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
    return {
        name: metadata.count(key) if name == "top_k" else metadata.number(key)
        for name, key in SAMPLING_KEYS.items()
        if key in metadata
    }


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

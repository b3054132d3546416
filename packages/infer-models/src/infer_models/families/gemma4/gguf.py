"""Gemma 4 in GGUF files, whose layers differ in their heads, their MLPs and how they rotate."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from infer_models.errors import CheckpointError
from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader, Scalar
from infer_models.gguf.metadata import ROPE_FACTORS, Metadata, read_factors
from infer_models.gguf.own_fields import FULL, KV_HEADS, SLIDING, WINDOW

_PATTERN, _SHARED = ".attention.sliding_window_pattern", ".attention.shared_kv_layers"
_HEAD_DIM, _SLIDING_HEAD_DIM = ".attention.key_length", ".attention.key_length_swa"
_WIDTH = ".feed_forward_length"
_PER_LAYER_EMBEDDING = "per_layer_token_embd.weight"
_UNROTATED = 1e20
"""A frequency divided by more than this turns nothing."""


def _gemma4(metadata: Metadata, header: GgufHeader) -> Fields:
    layers = metadata.count(".block_count")
    kinds = [SLIDING if each else FULL for each in _of_layers(metadata, _PATTERN, layers)]
    heads = [_whole(metadata, KV_HEADS, each) for each in _of_layers(metadata, KV_HEADS, layers)]
    sizes = {FULL: metadata.count(_HEAD_DIM), SLIDING: metadata.count(_SLIDING_HEAD_DIM)}
    for key, kind in {"value_length": FULL, "value_length_swa": SLIDING}.items():
        if metadata.count(f".attention.{key}", sizes[kind]) != sizes[kind]:
            raise metadata.invalid(f".attention.{key}", f"the size of keys, {sizes[kind]}")
    for key, kind in {"dimension_count": FULL, "dimension_count_swa": SLIDING}.items():
        if metadata.count(f".rope.{key}", sizes[kind]) != sizes[kind]:
            layer = "full" if kind == FULL else "sliding"
            raise metadata.invalid(f".rope.{key}", f"the size of a {layer} layer's heads, {sizes[kind]}")
    num_shared = metadata.count(_SHARED, 0)
    own = range(max(0, layers - num_shared))
    full = [layer for layer in own if kinds[layer] == FULL]
    return {
        "num_key_value_heads": heads[0],
        "head_dim": sizes[SLIDING],
        "layer_types": kinds,
        "per_layer_config": {
            str(layer): {"head_dim": sizes[kind], "num_key_value_heads": count}
            for layer, (kind, count) in enumerate(zip(kinds, heads, strict=True))
        },
        "attention_k_eq_v": any(not _has_values(header, layer, keys=heads[layer] * sizes[FULL]) for layer in full),
        "num_kv_shared_layers": num_shared,
        "sliding_window": metadata.count(WINDOW),
        "rope_theta": None,
        "rope_parameters": {
            FULL: {
                "rope_type": "proportional",
                "partial_rotary_factor": _rotated_share(header, sizes[FULL]),
                "rope_theta": metadata.number(".rope.freq_base", 1_000_000.0),
            },
            SLIDING: {"rope_type": "default", "rope_theta": metadata.number(".rope.freq_base_swa", 10_000.0)},
        },
        "final_logit_softcapping": metadata.optional_number(".final_logit_softcapping"),
        **_widths(metadata, layers, len(own)),
        **_own_inputs(metadata, header),
        **_experts(metadata),
    }


def _has_values(header: GgufHeader, layer: int, *, keys: int) -> bool:
    """Return whether a layer has values of its own, perhaps in one tensor with queries and `keys` rows of keys."""
    fused, output = (header.tensors.get(f"blk.{layer}.{name}.weight") for name in ("attn_qkv", "attn_output"))
    if fused is None or output is None:
        return f"blk.{layer}.attn_v.weight" in header.tensors
    return fused.shape[0] > output.shape[-1] + keys


def _of_layers(metadata: Metadata, key: str, layers: int) -> Sequence[Scalar]:
    """Return a value for each layer; one that is no array is that of all."""
    if not metadata.is_array(key):
        return [metadata.count(key)] * layers
    values = metadata.numbers(key)
    if len(values) != layers:
        raise metadata.invalid(key, f"{layers} values, one for each layer")
    return values


def _whole(metadata: Metadata, key: str, value: Scalar) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise metadata.invalid(key, "whole numbers above 0")
    return value


def _widths(metadata: Metadata, layers: int, num_own: int) -> dict[str, Any]:
    """Return the width of MLPs, and whether it is double in layers without keys of their own."""
    widths = [_whole(metadata, _WIDTH, each) for each in _of_layers(metadata, _WIDTH, layers)]
    first = widths[0] if widths else 0
    is_double = num_own < layers and widths[-1] == 2 * first
    if widths != [first] * num_own + [first * (2 if is_double else 1)] * (layers - num_own):
        raise metadata.invalid(_WIDTH, f"one number for the first {num_own} layers, and it or twice it for all others")
    return {"intermediate_size": first, "use_double_wide_mlp": is_double}


def _own_inputs(metadata: Metadata, header: GgufHeader) -> dict[str, Any]:
    """Return the size of the embeddings that each layer has of its own, 0 without them, and their vocabulary."""
    size = metadata.count(".embedding_length_per_layer_input", 0)
    place = header.tensors.get(_PER_LAYER_EMBEDDING)
    if size and place is None:
        raise CheckpointError(f"{header.path} holds no tensor `{_PER_LAYER_EMBEDDING}`: it is no whole model.")
    vocabulary = {} if place is None else {"vocab_size_per_layer_input": place.shape[0]}
    return {"hidden_size_per_layer_input": size, **vocabulary}


def _experts(metadata: Metadata) -> dict[str, Any]:
    if metadata.optional_count(".expert_count") is None:
        return {}
    return {
        "enable_moe_block": True,
        "num_experts": metadata.count(".expert_count"),
        "top_k_experts": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
    }


def _rotated_share(header: GgufHeader, head_dim: int) -> float:
    """Return the part of a full layer's head that is rotated: the first pairs, whose frequencies are divided by 1.

    Raises:
        CheckpointError: others are divided by something else.
    """
    factors = read_factors(header, ROPE_FACTORS)
    num_rotated = factors.count(1.0)
    is_known = factors[:num_rotated] == [1.0] * num_rotated and all(each > _UNROTATED for each in factors[num_rotated:])
    if len(factors) != head_dim // 2 or not is_known or not num_rotated:
        raise CheckpointError(
            f"{header.path}: tensor `{ROPE_FACTORS}` changes frequencies in another way than Gemma 4; it is not read."
        )
    return num_rotated / len(factors)


_NAMES = MappingProxyType(
    {
        "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
        "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
        "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_exps": "experts.{}.gate_proj",
        "ffn_up_exps": "experts.{}.up_proj",
        "ffn_down_exps": "experts.{}.down_proj",
    }
)
ARCHITECTURES = {"gemma4": Architecture(model_type="gemma4_text", own_fields=_gemma4, names=_NAMES, layers_differ=True)}

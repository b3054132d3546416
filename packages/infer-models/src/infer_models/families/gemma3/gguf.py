"""Gemma 3 in GGUF files."""

from types import MappingProxyType

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import FULL, NORMS_AFTER, WINDOW, layer_types

_SCALING_KEYS = (".rope.scaling.type", ".rope.scaling.factor", ".rope.scale_linear")
_27B_LAYERS = 62
_LENGTH, _FACTOR = 131072, 8.0
"""The context that Gemma 3's scaling makes possible, and its factor, which Ollama's files leave out."""


def _gemma3(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    layers, heads = metadata.count(".block_count"), metadata.count(".attention.head_count")
    head_dim = metadata.count(".attention.key_length")
    is_27b = layers == _27B_LAYERS
    window = metadata.optional_count(WINDOW)
    # Some of Ollama's files have other names of the bases, and others neither bases nor a scaling.
    theta = metadata.number(".rope.freq_base", metadata.number(".rope.global.freq_base", 1_000_000.0))
    fields: Fields = {
        "query_pre_attn_scalar": metadata.count(".embedding_length") // max(heads, 1) if is_27b else head_dim,
        "sliding_window": window,
        "layer_types": layer_types(metadata, every=6) if window else [FULL] * layers,
        "rope_theta": theta,
        "rope_local_base_freq": metadata.number(
            ".rope.freq_base_swa", metadata.number(".rope.local.freq_base", 10_000.0)
        ),
        "final_logit_softcapping": metadata.optional_number(".final_logit_softcapping"),
    }
    is_long = metadata.count(".context_length") == _LENGTH
    if is_long and not any(key in metadata for key in _SCALING_KEYS):
        fields["rope_scaling"] = {"rope_type": "linear", "factor": _FACTOR}
    return fields


ARCHITECTURES = {
    "gemma3": Architecture(
        model_type="gemma3_text",
        own_fields=_gemma3,
        norm_epsilon=1e-6,
        norm_shift=1.0,
        names=MappingProxyType({**NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}),
    ),
}

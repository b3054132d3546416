"""Fields that several architectures of GGUF files have in common, beside those of all."""

from infer_models.errors import CheckpointError
from infer_models.gguf.architecture import Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.tensor_names import name_within

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers in `layer_types`."""
WINDOW, SHARED_SIZE = ".attention.sliding_window", ".expert_shared_feed_forward_length"
_PATTERN, KV_HEADS = ".attention.sliding_window_pattern", ".attention.head_count_kv"
NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
"""Names of norms after attention and MLPs."""


def biases(header: GgufHeader) -> Fields:
    """Return whether attention and MLPs have biases."""
    return {
        "attention_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
    }


def layer_types(metadata: Metadata, *, every: int) -> list[str]:
    """Return the kind of each layer: that of the metadata, or all slide but the last one of `every` layers."""
    if metadata.is_array(_PATTERN):
        return [SLIDING if each else FULL for each in metadata.numbers(_PATTERN)]
    every = metadata.count(_PATTERN, every) or 1 << 30  # 0: all layers slide
    return [FULL if (layer + 1) % every == 0 else SLIDING for layer in range(metadata.count(".block_count"))]


def types_by_heads(metadata: Metadata, other: str) -> list[str]:
    """Return the kind of each layer: those without heads of keys and values are of the kind `other`.

    Raises:
        CheckpointError: there is no number of heads for each layer.
    """
    layers = metadata.count(".block_count")
    heads = metadata.numbers(KV_HEADS) if metadata.is_array(KV_HEADS) else [1] * layers
    if len(heads) != layers:
        raise metadata.invalid(KV_HEADS, f"{layers} numbers, one for each layer")
    return [FULL if each else other for each in heads]


def check_convolutions(header: GgufHeader, within: str, channels: int, width: int) -> None:
    """Raise unless the convolutions are of that size, before anything of it is allocated.

    Raises:
        CheckpointError: one is of another.
    """
    for name, place in header.tensors.items():
        if (
            name_within(name) == within
            and name.endswith(".weight")
            and place.shape not in ((channels, width), (channels, 1, width))
        ):
            raise CheckpointError(
                f"{header.path}: tensor `{name}` has shape {list(place.shape)} but the metadata makes it "
                f"{[channels, width]}."
            )

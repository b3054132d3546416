"""Gemma 4's reader: layers of two kinds, which differ in their heads, their frequencies and where their keys come from.

sliding layers    `head_dim`, `num_key_value_heads`, a window
full layers       `global_head_dim`, and with `attention_k_eq_v` `num_global_key_value_heads`
the last layers   `num_kv_shared_layers` of them attend to keys and values of the last layer of their kind before
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from infer_models.config.decoder_fields import (
    FULL,
    SLIDING,
    read_decoder,
    read_moe,
    read_window,
    read_windows,
    require,
    with_biases,
)
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import LayerHeads, ModelConfig, MoEConfig
from infer_models.config.registry import Family, default_sizes
from infer_models.config.rope import RopeParameters
from infer_models.config.rope_fields import read_full_and_sliding_rope

_ROPE: Mapping[str, Any] = MappingProxyType(
    {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    }
)
"""The rotary tables of files that have none."""
_PER_LAYER = "per_layer_config"
_MOST_HEAD_DIM = 512


def read_gemma4(fields: JsonFields) -> ModelConfig:
    """Gemma 4 (text); images and sounds, in whose tokens some of its models attend to what follows, are not read."""
    require(fields, "hidden_activation", "gelu_pytorch_tanh")
    if "rope_parameters" not in fields:
        fields = fields.with_fields(JsonFields(fields.path, {"rope_parameters": dict(_ROPE)}), ("rope_parameters",))
    config = with_biases(read_decoder(fields, default_head_dim=256, tied_by_default=True), fields)
    kinds = _read_kinds(fields, config)
    heads = _read_heads(fields, config, kinds)
    kv_layers = _read_kv_layers(fields, kinds, heads)
    full, sliding = _read_ropes(fields, config, kinds, heads)
    is_wide = fields.flag("use_double_wide_mlp", default=False)
    return replace(
        config,
        attention_scale=1.0,
        logit_soft_cap=fields.optional_number("final_logit_softcapping"),
        embedding_scale=config.hidden_size**0.5,
        windows=read_windows(
            fields.with_fields(JsonFields(fields.path, {"layer_types": kinds}), ("layer_types",)),
            config,
            window=read_window(fields, default=512),
            default_types=kinds,
        ),
        ropes=tuple(full if kind == FULL else sliding for kind in kinds),
        layer_heads=heads,
        kv_layers=kv_layers,
        intermediate_sizes=tuple(
            config.intermediate_size * (2 if is_wide and kv_layer != layer else 1)
            for layer, kv_layer in enumerate(kv_layers)
        ),
        per_layer_input_size=_read_per_layer_input_size(fields, config),
        moe=_read_experts(fields, config),
    )


def _read_experts(fields: JsonFields, config: ModelConfig) -> MoEConfig | None:
    """Read the experts beside each MLP; None: there are none."""
    if not fields.flag("enable_moe_block", default=False):
        return None
    return read_moe(
        fields,
        intermediate_size=fields.count("moe_intermediate_size"),
        normalizes_weights=True,
        is_sparse=(True,) * config.num_layers,
        count_name="top_k_experts",
    )


def _read_kinds(fields: JsonFields, config: ModelConfig) -> list[str]:
    """Read each layer's kind: five sliding layers to one full one, and the last one is full whatever the file says."""
    if "layer_types" not in fields:
        kinds = [FULL if (layer + 1) % 6 == 0 else SLIDING for layer in range(config.num_layers)]
    else:
        kinds = fields.texts("layer_types")
        if len(kinds) != config.num_layers or not {FULL, SLIDING} >= set(kinds):
            allowed = f"{config.num_layers} times `{SLIDING}` or `{FULL}`, one for each layer"
            raise fields.invalid("layer_types", allowed)
    return [*kinds[:-1], FULL]


def _read_heads(fields: JsonFields, config: ModelConfig, kinds: Sequence[str]) -> tuple[LayerHeads, ...]:
    """Read the keys and values of each layer: of full ones, or layer by layer, as `transformers` saves them.

    Raises:
        CheckpointError: they do not divide the queries, or are of a size that attention does not compute.
    """
    are_keys = fields.flag("attention_k_eq_v", default=False)
    if _PER_LAYER in fields:
        listed = fields.nested(_PER_LAYER)
        others = {str(layer): listed.nested(str(layer)) for layer in range(config.num_layers)}
        if not others.keys() >= set(listed.names):
            raise fields.invalid(_PER_LAYER, f"of layers 0 to {config.num_layers - 1}")
        own = [others[str(layer)] for layer in range(config.num_layers)]
        of_layers = [(each, each.count("head_dim", config.head_dim), "head_dim") for each in own]
        kv_heads = [each.count("num_key_value_heads", config.kv_heads) for each in own]
        for each in own:
            if not {"head_dim", "num_key_value_heads"} >= set(each.names):
                raise fields.invalid(_PER_LAYER, "of `head_dim` and `num_key_value_heads` alone")
    else:
        wide = fields.count("global_head_dim", 512)
        name = "num_global_key_value_heads"
        fewer = fields.count(name, config.kv_heads) if are_keys else config.kv_heads
        of_layers = [(fields, wide if kind == FULL else config.head_dim, "global_head_dim") for kind in kinds]
        kv_heads = [fewer if kind == FULL else config.kv_heads for kind in kinds]
    for (holder, head_dim, name), count in zip(of_layers, kv_heads, strict=True):
        if head_dim % 16 or head_dim > _MOST_HEAD_DIM:
            raise holder.invalid(name, f"a multiple of 16 of at most {_MOST_HEAD_DIM}")
        if config.q_heads % count:
            raise holder.invalid(
                "num_key_value_heads" if _PER_LAYER in fields else "num_global_key_value_heads",
                f"a divisor of `num_attention_heads` = {config.q_heads}",
            )
    return tuple(
        LayerHeads(kv_heads=count, head_dim=head_dim, are_values_keys=are_keys and kind == FULL)
        for (_, head_dim, _), count, kind in zip(of_layers, kv_heads, kinds, strict=True)
    )


def _read_kv_layers(fields: JsonFields, kinds: Sequence[str], heads: Sequence[LayerHeads]) -> tuple[int, ...]:
    """Read to which layer's keys and values each layer attends.

    Raises:
        CheckpointError: there is no layer of the kind of one that has none, or it has other heads.
    """
    name = "num_kv_shared_layers"
    first = len(kinds) - fields.whole_number(name, 0)
    own = range(max(0, min(first, len(kinds))))
    kv_layers = list(own)
    for layer in range(len(own), len(kinds)):
        source = max((each for each in own if kinds[each] == kinds[layer]), default=None)
        if source is None or heads[source] != heads[layer]:
            raise fields.invalid(name, f"so few that a layer before them is like layer {layer}, a `{kinds[layer]}`")
        kv_layers.append(source)
    return tuple(kv_layers)


def _read_ropes(
    fields: JsonFields, config: ModelConfig, kinds: Sequence[str], heads: Sequence[LayerHeads]
) -> tuple[RopeParameters, RopeParameters]:
    """Read the tables of full and of sliding layers.

    Raises:
        CheckpointError: layers of a kind have heads of several sizes, or frequencies are of another type.
    """
    tables = fields.nested("rope_parameters")
    for kind in dict.fromkeys(kinds):
        if len({each.head_dim for each, of in zip(heads, kinds, strict=True) if of == kind}) > 1:
            raise fields.invalid(_PER_LAYER, f"of equal `head_dim` for all layers that are `{kind}`")
        table = tables.nested(kind)
        name = table.text("rope_type", "default")
        if name not in ("default", "proportional"):
            raise table.invalid("rope_type", "`default` or `proportional`")
        if name == "default" and "partial_rotary_factor" in table:
            raise table.invalid("partial_rotary_factor", "missing where `rope_type` is `default`")
    head_dim = heads[-1].head_dim  # the last layer is full
    full, sliding = read_full_and_sliding_rope(
        fields, head_dim=config.head_dim, full_theta=1_000_000.0, sliding_theta=10_000.0, full_head_dim=head_dim
    )
    return replace(full, rotary_dim=head_dim), sliding


def _read_per_layer_input_size(fields: JsonFields, config: ModelConfig) -> int | None:
    """Read the size of the embeddings that each layer has of its own; 0 is none.

    Raises:
        CheckpointError: they are of another vocabulary.
    """
    size = fields.whole_number("hidden_size_per_layer_input", 256)
    name = "vocab_size_per_layer_input"
    vocab_size = fields.count(name, 262_144)
    if size > 0 and vocab_size != config.vocab_size:
        raise fields.invalid(name, f"`vocab_size`, which is {config.vocab_size}")
    return size if size > 0 else None


FAMILIES = {
    "gemma4_text": Family(
        read=read_gemma4,
        build="infer_models.families.gemma4.model:Gemma4",
        defaults=default_sizes(262_144, 2304, 9216, 30, 8, 4, 131_072),
        wrappers=("gemma4",),
    ),
}

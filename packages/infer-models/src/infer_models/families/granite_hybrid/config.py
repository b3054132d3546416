"""Granite 4: the fields of its `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import (
    FULL,
    read_decoder,
    read_moe,
    read_width,
    require,
    with_biases,
    with_multipliers,
)
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import MambaConfig, ModelConfig
from infer_models.config.registry import Family, default_sizes
from infer_models.layer_states import ScanSpec, StateHeads, StateSpec

_ATTENDING = frozenset({FULL, "attention"})
_MAMBA = frozenset({"linear_attention", "mamba"})
"""Kinds of layers in `layer_types`, as `transformers` 5 and 4 call them."""


def read_granite_hybrid(fields: JsonFields) -> ModelConfig:
    """Granite 4: Mamba 2, and attention, often without positions; a shared MLP, and perhaps experts beside it."""
    require(fields, "hidden_act", "silu")
    require(fields, "normalization_function", "rmsnorm")
    config = with_biases(read_decoder(fields, pads_heads=True), fields)
    states, mamba = _read_mamba(fields, config)
    shared = fields.count("shared_intermediate_size", 1024)
    moe = None
    if fields.whole_number("num_local_experts") != 0:
        moe = read_moe(
            fields,
            intermediate_size=config.intermediate_size,
            normalizes_weights=True,
            is_sparse=(True,) * config.num_layers,
            default_per_token=2,
            experts_names=("num_local_experts",),
        )
        moe = replace(moe, shared_intermediate_size=shared)
    return replace(
        with_multipliers(config, fields),
        intermediate_size=shared,
        ropes=config.ropes if _has_positions(fields) else (None,) * config.num_layers,
        states=states,
        mamba=mamba,
        moe=moe,
        has_parts_apart=fields.flag("has_parts_apart", default=False),
    )


def _has_positions(fields: JsonFields) -> bool:
    """Return whether attention rotates queries and keys.

    Raises:
        CheckpointError: it has positions of another kind.
    """
    kind = fields.text("position_embedding_type", "nope")
    if kind not in ("rope", "nope"):
        raise fields.invalid("position_embedding_type", "`rope`, or `nope` or null for none")
    return kind == "rope"


def _read_mamba(fields: JsonFields, config: ModelConfig) -> tuple[tuple[StateSpec | None, ...], MambaConfig | None]:
    """Read each layer's state, and what layers with one compute; nothing of either if all layers attend.

    Raises:
        CheckpointError: `layer_types` does not fit the layers or names another kind, or a size does not fit.
    """
    name = "layers_block_type" if "layers_block_type" in fields and "layer_types" not in fields else "layer_types"
    types = fields.texts(name) if name in fields else ["mamba"] * config.num_layers
    if len(types) != config.num_layers or not set(types) <= _ATTENDING | _MAMBA:
        raise fields.invalid(name, f"{config.num_layers} times `mamba` or `attention`, one for each layer")
    if set(types) <= _ATTENDING:
        return (), None
    scan = _read_scan(fields, config.hidden_size)
    width = read_width(fields, "mamba_d_conv", 4)
    of_groups = StateHeads(scan.num_groups, scan.state_size)
    state = StateSpec(
        num_before=width - 1,
        parts=(StateHeads(scan.heads, scan.head_dim), of_groups, of_groups),
        matrices=(scan.heads, scan.head_dim, scan.state_size),
    )
    mamba = MambaConfig(
        scan=scan,
        convolution_bias=fields.flag("mamba_conv_bias", default=True),
        projection_bias=fields.flag("mamba_proj_bias", default=False),
        norm_eps=config.norm_eps,
    )
    return tuple(state if each in _MAMBA else None for each in types), mamba


def _read_scan(fields: JsonFields, hidden_size: int) -> ScanSpec:
    """Read the sizes of the selective scan.

    Raises:
        CheckpointError: heads do not make up the inner size, or groups do not divide them.
    """
    heads, groups = fields.count("mamba_n_heads", 128), fields.count("mamba_n_groups", 1)
    inner = fields.count("mamba_expand", 2) * hidden_size
    if inner % heads:
        raise fields.invalid("mamba_n_heads", f"a divisor of `mamba_expand` * `hidden_size` = {inner}")
    if heads % groups:
        raise fields.invalid("mamba_n_groups", f"a divisor of `mamba_n_heads` = {heads}")
    if fields.value("mamba_d_head") not in (None, "auto", inner // heads):
        raise fields.invalid("mamba_d_head", f"`auto` or {inner // heads}, the inner size divided by the heads")
    return ScanSpec(
        heads=heads,
        head_dim=inner // heads,
        num_groups=groups,
        state_size=fields.count("mamba_d_state", 256),
        time_step_limit=_read_time_step_limit(fields),
    )


def _read_time_step_limit(fields: JsonFields) -> tuple[float, float]:
    """Read the least and the largest step; `transformers` 5 writes infinity as an object.

    Raises:
        CheckpointError: they are something else than two such numbers.
    """
    if "time_step_limit" not in fields:
        return 0.0, float("inf")
    match fields.value("time_step_limit"):
        case [int() | float() as least, int() | float() | {"__float__": "Infinity"} as most]:
            limit = float(least), float("inf") if isinstance(most, dict) else float(most)
            if 0.0 <= limit[0] <= limit[1]:
                return limit
    raise fields.invalid("time_step_limit", "two numbers of at least 0, the lower one first")


FAMILIES = {
    "granitemoehybrid": Family(
        read=read_granite_hybrid,
        build="infer_models.families.granite_hybrid.model:GraniteHybrid",
        defaults={**default_sizes(32000, 4096, 11008, 32, 32, None, 2048), "num_local_experts": 8},
    ),
}

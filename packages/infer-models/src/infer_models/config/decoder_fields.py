"""Reads the fields of `config.json` that most families have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig, MoEConfig
from infer_models.config.rope_fields import DEFAULT_THETA, longest_sequence, read_rope
from infer_models.config.stored_dtype import stored_dtype
from infer_models.errors import CheckpointError
from infer_models.layer_states import StateSpec

MAX_HEAD_DIM = 256
_SHORT_DTYPES = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float32",
    "float64": "float32",
}
"""Other names of dtypes, and wider ones, which nothing is computed in."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers in `layer_types`."""
_OTHER_NAMES: Mapping[str, str] = MappingProxyType({"swish": "silu"})
"""Activations that `transformers` has under two names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads of a layer.

    Attributes:
        q_heads: query heads.
        kv_heads: key and value heads.
        head_dim: elements of a head in checkpoints.
    """

    q_heads: int
    kv_heads: int
    head_dim: int

    @property
    def held_head_dim(self) -> int:
        """The multiple of 16 to which heads are padded."""
        return -(-self.head_dim // 16) * 16


def read_decoder(
    fields: JsonFields,
    *,
    default_head_dim: int | None = None,
    default_theta: float = DEFAULT_THETA,
    tied_by_default: bool = False,
    default_dtype: str = "float32",
    default_norm_eps: float = 1e-6,
    default_rope: Mapping[str, Any] | None = None,
    pads_heads: bool = False,
    rotates_part: bool = False,
) -> ModelConfig:
    """Read the common fields of families with RMSNorm and RoPE, as of a model without windows, caps and scales.

    Args:
        fields: fields of the file.
        default_head_dim: head size of the family; None divides `hidden_size` among the heads.
        default_theta: the family's base of rotary frequencies.
        tied_by_default: the family ties the LM head to the embedding where the file does not say.
        default_dtype: dtype of weights, where neither the file nor the weights say.
        default_norm_eps: the family's epsilon of norms.
        default_rope: the family's rotary table, where the file has none.
        pads_heads: heads of any size are taken, padded to a multiple of 16.
        rotates_part: the family reads `partial_rotary_factor`; others rotate whole heads.

    Raises:
        CheckpointError: a field is missing or has a value that is not supported.
    """
    heads = read_heads(fields, default_head_dim=default_head_dim)
    num_layers = fields.count("num_hidden_layers")
    is_padded = heads.held_head_dim != heads.head_dim
    if is_padded and not pads_heads:
        raise fields.invalid("head_dim", "a multiple of 16: heads of this family are not padded")
    rope = read_rope(
        fields,
        head_dim=heads.head_dim,
        default_theta=default_theta,
        default=default_rope,
        rotates_part=rotates_part,
    )
    if is_padded and rope.rotary_dim is None:
        rope = replace(rope, rotary_dim=heads.head_dim)
    return ModelConfig(
        model_type=fields.text("model_type"),
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        num_layers=num_layers,
        q_heads=heads.q_heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.held_head_dim,
        stored_head_dim=heads.head_dim if is_padded else None,
        intermediate_size=fields.count("intermediate_size"),
        max_position_embeddings=longest_sequence(fields, rope),
        norm_eps=fields.number("rms_norm_eps", default_norm_eps),
        dtype=read_dtype(fields, default=default_dtype),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=tied_by_default),
        attention_scale=heads.head_dim**-0.5,
        windows=(None,) * num_layers,
        ropes=(rope,) * num_layers,
    )


def read_heads(fields: JsonFields, *, default_head_dim: int | None) -> Heads:
    """Read the heads; a family without a default for `head_dim` divides `hidden_size` among them.

    Raises:
        CheckpointError: they do not divide, or are of a size that attention does not compute.
    """
    q_heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", q_heads)
    if q_heads % kv_heads:
        raise fields.invalid("num_key_value_heads", f"a divisor of `num_attention_heads` = {q_heads}")
    hidden_size = fields.count("hidden_size")
    if "head_dim" not in fields and default_head_dim is None and hidden_size % q_heads:
        allowed = f"a divisor of `hidden_size` = {hidden_size} where `head_dim` is not set"
        raise fields.invalid("num_attention_heads", allowed)
    head_dim = fields.count("head_dim", default_head_dim or hidden_size // q_heads)
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise CheckpointError(
            f"{fields.path}: `head_dim` is {head_dim}; supported are even numbers of at most {MAX_HEAD_DIM}."
        )
    return Heads(q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim)


def read_windows(
    fields: JsonFields, config: ModelConfig, *, window: int | None, default_types: Sequence[str]
) -> tuple[int | None, ...]:
    """Read each layer's window: `window` where `layer_types`, or else `default_types`, say that the layer slides.

    A window as long as the longest sequence is none.

    Raises:
        CheckpointError: `layer_types` does not fit the layers, or names another kind.
    """
    layer_types = fields.texts("layer_types") if "layer_types" in fields else default_types
    if len(layer_types) != config.num_layers or not {FULL, SLIDING} >= set(layer_types):
        allowed = f"{config.num_layers} times `{SLIDING}` or `{FULL}`, one for each layer"
        raise fields.invalid("layer_types", allowed)
    if window is not None and window >= config.max_position_embeddings:
        window = None
    return tuple(window if layer_type == SLIDING else None for layer_type in layer_types)


def with_windows(config: ModelConfig, window: int | None) -> tuple[int | None, ...]:
    """Return the windows of a model whose layers all slide; a window as long as the longest sequence is none."""
    is_window = window is not None and window < config.max_position_embeddings
    return (window if is_window else None,) * config.num_layers


def read_states(
    fields: JsonFields, config: ModelConfig, *, kind: str, state: StateSpec, default_types: Sequence[str]
) -> tuple[StateSpec | None, ...]:
    """Read which layers have a state: those that `layer_types`, or else `default_types`, calls `kind`.

    Raises:
        CheckpointError: `layer_types` does not fit the layers, or names another kind.
    """
    types = fields.texts("layer_types") if "layer_types" in fields else default_types
    if len(types) != config.num_layers or not {FULL, kind} >= set(types):
        raise fields.invalid("layer_types", f"{config.num_layers} times `{kind}` or `{FULL}`, one for each layer")
    return tuple(state if each == kind else None for each in types)


def read_width(fields: JsonFields, name: str, default: int) -> int:
    """Read over how many tokens a convolution goes.

    Raises:
        CheckpointError: it is one, which needs no state.
    """
    width = fields.count(name, default)
    if width < 2:
        raise fields.invalid(name, "a whole number of at least 2")
    return width


def read_dtype(fields: JsonFields, *, default: str = "float32") -> str:
    """Read the weights' type under its name in `transformers` 5 or 4; absent, it is that of the weights.

    Args:
        fields: fields of the file.
        default: dtype where there are no weights that say it.

    Raises:
        CheckpointError: it is none that weights are loaded from.
    """
    name = "dtype" if "dtype" in fields else "torch_dtype"
    dtype = fields.text(name, "auto").removeprefix("torch.")
    dtype = _SHORT_DTYPES.get(dtype, dtype)
    if dtype == "auto":
        return stored_dtype(fields.path.parent) or default
    if dtype not in ("float32", "bfloat16", "float16"):
        raise fields.invalid(name, "`float32`, `bfloat16` or `float16`")
    return dtype


def with_biases(config: ModelConfig, fields: JsonFields, *, mlp: bool = False) -> ModelConfig:
    """Return `config` with the biases that a family may have: of attention, and with `mlp` of MLPs."""
    return replace(
        config,
        attention_bias=fields.flag("attention_bias", default=False),
        mlp_bias=mlp and fields.flag("mlp_bias", default=False),
    )


def with_multipliers(config: ModelConfig, fields: JsonFields) -> ModelConfig:
    """Return `config` with the four multipliers of Granite.

    What layers add to the residual stream is multiplied by `residual_multiplier`. The stream is kept divided by it
    instead: then layers add what they compute, the embedding's scale is divided, and norms, which undo any scale of
    their input, divide their epsilon by its square.
    """
    residual = fields.number("residual_multiplier", 1.0)
    return replace(
        config,
        attention_scale=fields.number("attention_multiplier", 1.0),
        embedding_scale=fields.number("embedding_multiplier", 1.0) / residual,
        norm_eps=config.norm_eps / residual**2,
        logits_scaling=fields.number("logits_scaling", 1.0),
    )


def read_moe(
    fields: JsonFields,
    *,
    intermediate_size: int,
    normalizes_weights: bool,
    is_sparse: tuple[bool, ...],
    default_per_token: int | None = None,
    default_experts: int = 128,
    count_name: str = "num_experts_per_tok",
    experts_names: Sequence[str] = ("num_experts", "num_local_experts"),
) -> MoEConfig:
    """Read how many experts there are, the first of `experts_names` that is there, and how many compute a token.

    Raises:
        CheckpointError: a field is missing, or a token has more experts than there are.
    """
    name = next((name for name in experts_names if name in fields), experts_names[-1])
    num_experts = fields.count(name, default_experts)
    per_token = fields.count(count_name, default_per_token)
    if per_token > num_experts:
        raise fields.invalid(count_name, f"at most {num_experts}, the number of experts")
    return MoEConfig(
        num_experts=num_experts,
        experts_per_token=per_token,
        intermediate_size=intermediate_size,
        normalizes_weights=normalizes_weights,
        is_sparse=is_sparse,
    )


def read_window(fields: JsonFields, *, default: int | None) -> int | None:
    """Read the length of windows; null is none, and absent is the family's."""
    if fields.is_null("sliding_window") or (default is None and "sliding_window" not in fields):
        return None
    return fields.count("sliding_window", default)


def read_window_in_use(fields: JsonFields, *, default: int | None) -> int | None:
    """Read the length of windows where `use_sliding_window` says that there are any."""
    window = read_window(fields, default=default)
    return window if fields.flag("use_sliding_window", default=False) else None


def refuse(fields: JsonFields, *names: str) -> None:
    """Raise if one of the flags `names` is set.

    Raises:
        CheckpointError: it is.
    """
    for name in names:
        if fields.flag(name, default=False):
            raise fields.invalid(name, "false: this variant of the family is not supported")


def require(fields: JsonFields, name: str, only: str) -> None:
    """Raise unless the text `name` is `only`, under whichever of its names, or absent.

    Raises:
        CheckpointError: it is something else.
    """
    text = fields.text(name, only)
    if _OTHER_NAMES.get(text, text) != only:
        raise fields.invalid(name, f"`{only}`: other variants of the family are not supported")

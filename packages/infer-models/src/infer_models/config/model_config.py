"""`ModelConfig`: the architecture that a `config.json` describes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infer_models.attention import AttentionSpec
from infer_models.config.causal_fields import refuse_attention_to_what_follows
from infer_models.config.checkpoint_fields import read_config_fields
from infer_models.config.json_fields import JsonFields
from infer_models.config.quantization import QuantizationConfig, read_quantization_config
from infer_models.config.registry import find_family, known_families
from infer_models.config.rope import RopeParameters
from infer_models.config.unread_fields import without_ineffective
from infer_models.config.wrappers import TEXT_CONFIG, text_fields
from infer_models.gguf.checkpoint_files import is_gguf
from infer_models.layer_states import ScanSpec, StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """A mixture of experts in place of MLPs.

    Attributes:
        num_experts: experts of a layer.
        experts_per_token: experts that compute a token.
        intermediate_size: elements inside an expert.
        normalizes_weights: the weights of a token's experts are made to add up to 1.
        is_sparse: True for each layer that has experts; other layers have an MLP.
        swiglu_alpha: multiplies the gate inside the sigmoid.
        swiglu_limit: bound of gates from above, and of ups from both sides.
        shared_intermediate_size: elements inside the expert that computes every token; None: there is none.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    normalizes_weights: bool
    is_sparse: tuple[bool, ...]
    swiglu_alpha: float = 1.0
    swiglu_limit: float = math.inf
    shared_intermediate_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """The sizes of layers with a state that are Mamba 2.

    Attributes:
        scan: sizes of the selective scan.
        convolution_bias: the convolution before it has biases.
        projection_bias: the projections into the layer and out of it have biases.
        norm_eps: added to the mean square inside the norm after it.
    """

    scan: ScanSpec
    convolution_bias: bool
    projection_bias: bool
    norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHeads:
    """Keys and values of a layer, where layers differ.

    Attributes:
        kv_heads: key and value heads.
        head_dim: elements of a head, of queries too.
        are_values_keys: values are the keys before norm and rotation: checkpoints have no projection of their own.
    """

    kv_heads: int
    head_dim: int
    are_values_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScaling:
    """Queries grow with their position, in steps: `1 + beta * ln(1 + position // original_max_position_embeddings)`.

    Attributes:
        beta: growth of a step.
        original_max_position_embeddings: positions before the first step.
    """

    beta: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model's architecture.

    Attributes:
        model_type: names the family, such as `llama`.
        vocab_size: rows of the embedding; checkpoints may pad it beyond the tokenizer's vocabulary.
        hidden_size: elements of a token's hidden state.
        num_layers: decoder layers.
        q_heads: query heads of a layer.
        kv_heads: key and value heads of a layer; `q_heads` is a multiple of it.
        head_dim: elements of a head, not always `hidden_size / q_heads`; a multiple of 16, as kernels need.
        layer_heads: keys and values of each layer; empty: all have `kv_heads` heads of `head_dim` elements.
        kv_layers: the layer to whose keys and values each layer attends: its own, or an earlier one's, and then it has
            none; empty: all have their own.
        stored_head_dim: elements of a head in checkpoints; those after them are zeros. None: `head_dim`.
        intermediate_size: elements inside a layer's MLP.
        intermediate_sizes: the same of each layer; empty: all have `intermediate_size`.
        per_layer_input_size: elements of the embedding that each layer has of each token; None: they have none.
        max_position_embeddings: the longest sequence, in tokens, as far as scalings of positions lengthen it.
        norm_eps: added to the mean square, or the variance, inside the norms.
        dtype: dtype of the checkpoint's weights: `float32`, `bfloat16` or `float16`.
        tie_word_embeddings: the LM head is the embedding.
        attention_bias: the four projections of attention have biases.
        mlp_bias: the three projections of MLPs have biases.
        convolution_bias: convolutions, and the two projections around them, have biases.
        attention_scale: multiplies the dot products.
        attention_soft_cap: caps the scores; None leaves them.
        query_scaling: growth of queries with their position; None: they do not grow.
        embedding_scale: multiplies the rows of the embedding.
        logits_scaling: logits are divided by it.
        logit_soft_cap: logits become `cap * tanh(logits / cap)`; None leaves them.
        windows: each layer's sliding window in tokens, None where it attends to all before.
        ropes: each layer's rotary frequencies, None where it leaves queries and keys unrotated.
        states: each layer's state of fixed size, None where it attends; empty: all layers attend. A layer with a state
            has no keys and values: what `windows` and `ropes` say of it is not used.
        mamba: what layers with a state compute; None: something else than Mamba 2.
        moe: the experts of a mixture; None: all layers have an MLP.
        has_parts_apart: gates and ups, and each expert, are tensors of their own in the checkpoint, where the family's
            own checkpoints have them joined.
        has_mtp: the model has the layer of its checkpoint that predicts one token further.
        wrapper: `model_type` of the multimodal model whose text model this is; None: there is no other.
        quantization: quantization of the checkpoint's weights; None: they are not quantized.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    norm_eps: float
    dtype: str
    tie_word_embeddings: bool
    attention_scale: float
    attention_bias: bool = False
    mlp_bias: bool = False
    convolution_bias: bool = False
    attention_soft_cap: float | None = None
    query_scaling: QueryScaling | None = None
    embedding_scale: float = 1.0
    logits_scaling: float = 1.0
    logit_soft_cap: float | None = None
    windows: tuple[int | None, ...]
    ropes: tuple[RopeParameters | None, ...]
    states: tuple[StateSpec | None, ...] = ()
    mamba: MambaConfig | None = None
    moe: MoEConfig | None = None
    has_mtp: bool = False
    wrapper: str | None = None
    quantization: QuantizationConfig | None = None
    stored_head_dim: int | None = None
    layer_heads: tuple[LayerHeads, ...] = ()
    kv_layers: tuple[int, ...] = ()
    intermediate_sizes: tuple[int, ...] = ()
    per_layer_input_size: int | None = None
    has_parts_apart: bool = False

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `config.json`, as `transformers` 4 or 5 writes it, or the metadata of a GGUF file.

        Raises:
            CheckpointError: the file is missing or damaged, the `model_type` is unknown, a field is missing or has a
                value that is not supported.
        """
        return _read(folder, read_config_fields(folder))

    @property
    def short_length(self) -> int | None:
        """The longest sequence, in tokens, whose rotary frequencies are not those of longer ones; None: none is."""
        lengths = (rope.scaling.short_length for rope in self.ropes if rope is not None)
        return min((length for length in lengths if length is not None), default=None)

    def attends(self, layer: int) -> bool:
        """Return whether the layer of that index has keys and values; else it has a state."""
        return not self.states or self.states[layer] is None

    def has_cache(self, layer: int) -> bool:
        """Return whether the layer of that index has keys and values of its own."""
        return self.attends(layer) and self.kv_layer(layer) == layer

    def kv_layer(self, layer: int) -> int:
        """Return the layer to whose keys and values the layer of that index attends."""
        return self.kv_layers[layer] if self.kv_layers else layer

    def heads_of(self, layer: int) -> LayerHeads:
        """Return the keys and values of the layer of that index."""
        if self.layer_heads:
            return self.layer_heads[layer]
        return LayerHeads(kv_heads=self.kv_heads, head_dim=self.head_dim)

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """Each layer's attention."""
        shared = {kv_layer for layer, kv_layer in enumerate(self.kv_layers) if kv_layer != layer}
        return tuple(
            AttentionSpec(
                q_heads=self.q_heads,
                kv_heads=self.heads_of(layer).kv_heads,
                head_dim=self.heads_of(layer).head_dim,
                scale=self.attention_scale,
                window=window,
                soft_cap=self.attention_soft_cap,
                is_shared=layer in shared,
            )
            for layer, window in enumerate(self.windows)
        )


def unread_config_fields(folder: Path) -> Mapping[str, Any]:
    """Return the fields of a folder's `config.json` that nothing here reads and that may change answers, by name.

    Raises:
        CheckpointError: as for `ModelConfig.from_folder`.
    """
    if is_gguf(folder):
        return {}
    fields = read_config_fields(folder)
    prefix = f"{TEXT_CONFIG}." if _read(folder, fields).wrapper is not None else ""
    unread = {name: value for name, value in fields.unread.items() if name.startswith(prefix)}
    return without_ineffective(unread)


def _read(folder: Path, fields: JsonFields) -> ModelConfig:
    """Read the configuration of `folder`, whose fields are `fields`; see `ModelConfig.from_folder`."""
    fields, wrapper = text_fields(fields)
    family = find_family(fields.text("model_type"))
    if family is None:
        known = known_families()
        wrappers = (each for known_family in known.values() for each in known_family.wrappers)
        names = [*known, *(wrappers if wrapper is None else ())]
        raise fields.invalid("model_type", "one of " + ", ".join(f"`{each}`" for each in names))
    refuse_attention_to_what_follows(fields)
    fields = fields.with_defaults(family.defaults)
    config = replace(family.read(fields), wrapper=wrapper)
    if fields.is_unread("per_layer_config"):
        raise fields.invalid("per_layer_config", "left out: sizes of single layers are not read of this family")
    return config if is_gguf(folder) else replace(config, quantization=read_quantization_config(fields))

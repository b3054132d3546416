"""Gemma 4 (text): Gemma 3 whose full layers have wider heads, and whose last layers have no keys of their own.

Google, "Gemma 4", 2026. Heads, which layers share keys and values, MLPs of double width, and frequencies are data:
`ModelConfig.layer_heads`, `kv_layers`, `intermediate_sizes` and `ropes`.

    layer_scalar * (x + norm(attention(norm(x)))) + norm(mlp(norm(..))) + norm(projection(gelu(gate(..)) * own input)))

Where layers have experts, `mlp(norm(..))` is `norm(mlp(norm(..))) + norm(experts(norm(..)))`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from infer_kernels import ExpertActivation, Rotary, Routing, gelu_tanh_and_mul, gelu_tanh_gate, rms_norm
from infer_models.attention import KVCacheView
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    Experts,
    GatedMLP,
    LinearBase,
    LMHead,
    OwnWeight,
    ParameterFactory,
    QKNormAttention,
    RMSNorm,
    RotaryTables,
    Router,
    ShardedLayer,
    SharedKVAttention,
    VocabParallelEmbedding,
    whole_weights,
)
from infer_models.weights import ScaledWeight, StoredWeight


class ValueNormAttention(QKNormAttention):
    """Attention with RMS norms over each head of queries, keys and values; that of values has no weight."""

    ones: Tensor

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Attend as `config` says for layer `layer`."""
        super().__init__(config, factory, layer)
        self.eps = config.norm_eps
        ones = torch.ones(self.spec.head_dim, dtype=factory.dtype, device=factory.device)
        self.register_buffer("ones", ones, persistent=False)

    def attend(self, qkv: Tensor, rotary: Rotary | None, cache: KVCacheView) -> Tensor:
        """Normalize the values, in place unless a gradient is wanted, and attend."""
        qk, v = torch.split(qkv, [self.spec.q_heads + self.spec.kv_heads, self.spec.kv_heads], dim=1)
        if qkv.requires_grad:
            qkv = torch.cat([qk, rms_norm(v, self.ones, self.eps)], dim=1)
        else:
            rms_norm(v, self.ones, self.eps, out=v)
        return super().attend(qkv, rotary, cache)


class ReplicatedLinear(LinearBase):
    """`y = x @ weight.T`, all of which every rank computes."""

    def __init__(self, factory: ParameterFactory, in_features: int, out_features: int) -> None:
        """The weight is [out_features, in_features]."""
        super().__init__(factory.matrix(out_features, in_features), shares={})
        self.products = factory.products

    def forward(self, x: Tensor) -> Tensor:
        """Map x [tokens, in_features] to [tokens, out_features]."""
        return self.products.linear(x, self.weight, None)


class NormRouter(ShardedLayer):
    """A router with a norm of its own, which multiplies each expert's weight by a number.

    Attributes:
        scale: [hidden], weight of the norm; the checkpoint's times hidden^-0.5.
        per_expert_scale: [experts], multiplies the weights of each expert.
    """

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Every rank computes all of it."""
        super().__init__()
        assert config.moe is not None
        self.eps, self.factor, self.shares = config.norm_eps, config.hidden_size**-0.5, {}
        self.proj = Router(config, factory, scoring="softmax")
        self.scale = factory.vector(config.hidden_size, fill=self.factor)
        self.per_expert_scale = factory.vector(config.moe.num_experts, fill=1.0)

    def forward(self, x: Tensor) -> Routing:
        """Choose the experts of each row of x [tokens, hidden]."""
        routing: Routing = self.proj(rms_norm(x, self.scale, self.eps), expert_scales=self.per_expert_scale)
        return routing

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield both vectors."""
        for weight, stored in whole_weights(self, path):
            if weight is self.scale:
                yield weight, {f"{path}.scale": ScaledWeight(target=weight.detach(), factor=self.factor)}
            else:
                yield weight, stored


class Gemma4Layer(nn.Module):
    """Attention, an MLP, perhaps experts beside it, and the layer's own input, with norms around each.

    The sum is multiplied by a number.

    Attributes:
        layer_scalar: [1], multiplies what the layer leaves in the residual stream.
    """

    def __init__(self, config: ModelConfig, factory: ParameterFactory, layer: int) -> None:
        """Make the parts of the layer with index `layer`."""
        super().__init__()
        has_keys = config.has_cache(layer)
        self.input_layernorm = norm_of(config, factory)
        self.self_attn: nn.Module = (ValueNormAttention if has_keys else SharedKVAttention)(config, factory, layer)
        self.post_attention_layernorm = norm_of(config, factory)
        self.pre_feedforward_layernorm = norm_of(config, factory)
        width = config.intermediate_sizes[layer]
        self.mlp = GatedMLP(replace(config, intermediate_size=width), factory, gelu_tanh_and_mul)
        self.post_feedforward_layernorm = norm_of(config, factory)
        self.has_experts = config.moe is not None
        if self.has_experts:
            self.router = NormRouter(config, factory)
            self.experts = Experts(config, factory, activation=ExpertActivation(function="gelu_tanh"))
            self.post_feedforward_layernorm_1 = norm_of(config, factory)
            self.pre_feedforward_layernorm_2 = norm_of(config, factory)
            self.post_feedforward_layernorm_2 = norm_of(config, factory)
        self.layer_scalar = factory.vector(1, fill=1.0)
        self.has_own_input = config.per_layer_input_size is not None
        if config.per_layer_input_size is not None:
            self.per_layer_input_gate = ReplicatedLinear(factory, config.hidden_size, config.per_layer_input_size)
            self.per_layer_projection = ReplicatedLinear(factory, config.per_layer_input_size, config.hidden_size)
            self.post_per_layer_input_norm = norm_of(config, factory)

    def forward(
        self,
        x: Tensor,
        residual: Tensor,
        own_input: Tensor | None,
        next_norm: RMSNorm,
        rotary: Rotary | None,
        cache: KVCacheView,
    ) -> tuple[Tensor, Tensor]:
        """Map (this layer's normalized input, residual) to (the next layer's normalized input, new residual).

        `own_input` is [tokens, per_layer_input_size], or None where layers have none.
        """
        out = self.self_attn(x, rotary, cache)
        x, residual = self.post_attention_layernorm.norm_add_norm(self.pre_feedforward_layernorm, out, residual)
        out, norm = self.mlp(x), self.post_feedforward_layernorm
        if self.has_experts:
            out = self._with_experts(out, residual)
        if own_input is not None:
            residual = norm.norm_add(out, residual)
            gated = gelu_tanh_gate(own_input, self.per_layer_input_gate(residual))
            out, norm = self.per_layer_projection(gated), self.post_per_layer_input_norm
        return norm.norm_add_norm(next_norm, out, residual, scale=self.layer_scalar)

    def _with_experts(self, of_mlp: Tensor, residual: Tensor) -> Tensor:
        """Return the normalized sums of the experts for `residual` and of the MLP's rows, both [tokens, hidden]."""
        routing = self.router(residual)
        of_experts = self.experts(routing._replace(rows=self.pre_feedforward_layernorm_2(residual)))
        return self.post_feedforward_layernorm_2.norm_add(of_experts, self.post_feedforward_layernorm_1(of_mlp))


class Gemma4Decoder(nn.Module):
    """Embeddings, layers and final norm."""

    own_scale: Tensor

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate all layers."""
        super().__init__()
        hidden, size = config.hidden_size, config.per_layer_input_size
        scale = rounded(config.embedding_scale, factory)
        self.embed_tokens = VocabParallelEmbedding(factory, config.vocab_size, hidden, scale=scale)
        layers = [Gemma4Layer(config, factory, layer) for layer in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = norm_of(config, factory)
        self.norms = [*(layer.input_layernorm for layer in layers), self.norm]
        self.rotary_tables = RotaryTables(config, factory)
        self.own_size = size
        if size is not None:
            width = config.num_layers * size
            self.embed_tokens_per_layer = VocabParallelEmbedding(
                factory, config.vocab_size, width, scale=rounded(size**0.5, factory)
            )
            self.per_layer_model_projection = ReplicatedLinear(factory, hidden, width)
            # The projection is to be divided by the root of `hidden`, which its norm undoes, but for the epsilon.
            self.per_layer_projection_norm = RMSNorm(factory, size, config.norm_eps * hidden)
            own_scale = torch.tensor([2**-0.5], dtype=factory.dtype, device=factory.device)
            self.register_buffer("own_scale", own_scale, persistent=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Map ids [tokens] to normalized hidden states [tokens, hidden]."""
        residual: Tensor = self.embed_tokens(input_ids)
        own_inputs = self._own_inputs(input_ids, residual)
        x: Tensor = self.norms[0](residual)
        rotaries = self.rotary_tables(position_ids)
        for layer, own_input, next_norm, rotary in zip(self.layers, own_inputs, self.norms[1:], rotaries, strict=True):
            x, residual = layer(x, residual, own_input, next_norm, rotary, cache)
        return x

    def _own_inputs(self, input_ids: Tensor, embedded: Tensor) -> list[Tensor | None]:
        """Return each layer's own input, [tokens, own_size]; None where they have none."""
        if self.own_size is None:
            return [None] * len(self.layers)
        shape = (len(self.layers), self.own_size)
        of_token = self.embed_tokens_per_layer(input_ids).unflatten(-1, shape)
        projected = self.per_layer_model_projection(embedded).unflatten(-1, shape)
        both = self.per_layer_projection_norm.norm_add(projected, of_token, scale=self.own_scale)
        return [both[:, layer] for layer in range(len(self.layers))]


class Gemma4(CausalLM):
    """A Gemma 4 text model; its LM head may be tied to the embedding."""

    stacks_experts: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = Gemma4Decoder(config, factory)
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
        shared = [layer for layer in range(config.num_layers) if not config.has_cache(layer)]
        self.ignored_tensors = tuple(f"model.layers.{layer}.self_attn.[kv]_*" for layer in shared)


def norm_of(config: ModelConfig, factory: ParameterFactory) -> RMSNorm:
    """Return a norm of hidden states; unlike Gemma 3's it multiplies by its weight."""
    return RMSNorm(factory, config.hidden_size, config.norm_eps)


def rounded(scale: float, factory: ParameterFactory) -> float:
    """Return the scale of an embedding in the weights' dtype, as in training."""
    return torch.tensor(scale, dtype=factory.dtype).item()

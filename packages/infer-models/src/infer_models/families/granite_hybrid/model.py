"""Granite 4: Mamba 2 layers, and attention in some layers; each layer has a shared MLP, and perhaps experts beside it.

IBM, "Granite 4.0", 2025. Which layers attend, whether heads are rotated, and the multipliers are data: `ModelConfig`.
A checkpoint has all experts of a layer in two tensors:

    block_sparse_moe.input_linear.weight [experts, 2 * inner, hidden]     the gates, then the ups
    block_sparse_moe.output_linear.weight [experts, hidden, inner]

GGUF files have each expert's gates, ups and downs, and the gates and ups of shared MLPs, as tensors of their own
(`ModelConfig.has_parts_apart`).
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor, nn

from infer_kernels import ExpertActivation, silu_and_mul
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    Attention,
    Experts,
    GatedMLP,
    LayerInput,
    LayerNorm,
    LMHead,
    OwnWeight,
    ParameterFactory,
    RMSNorm,
    RoutedMLP,
    Router,
    Sublayer,
    detached,
    pre_norm_decoder,
)
from infer_models.layers.hybrid import Mamba2
from infer_models.weights import ArrangedWeight, StoredWeight


class StackedExperts(Experts):
    """Experts that checkpoints have as one tensor for each of both products."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate both stacks."""
        super().__init__(config, factory, activation=ExpertActivation())
        self.has_parts_apart = config.has_parts_apart

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield both stacks, which checkpoints have beside the router; or the parts of each expert."""
        if self.has_parts_apart:
            yield from super().stored_weights(path)
            return
        place = path.rpartition(".")[0]
        gate_up, down = self.unpacked_weights()
        inner, hidden = self.inner.total, self.hidden_size
        for name, weight, rows, columns, arrange in (
            ("input_linear", gate_up, 2 * inner, hidden, self._split),
            ("output_linear", down, hidden, inner, self._columns),
        ):
            shape = (self.num_experts, rows, columns)
            stored = ArrangedWeight(target=detached(weight), shape=shape, arrange=arrange, restore=_as_it_is)
            yield weight, {f"{place}.{name}.weight": stored}

    def _split(self, rows: Tensor) -> Tensor:
        """Return this rank's gates, then its ups, of rows [2 * inner, hidden]."""
        own = slice(self.inner.start, self.inner.start + self.inner.size)
        return torch.cat([half[own] for half in rows.chunk(2)])

    def _columns(self, weight: Tensor) -> Tensor:
        """Return this rank's columns of a weight [hidden, inner]."""
        return weight[:, self.inner.start : self.inner.start + self.inner.size]


def _as_it_is(item: Tensor) -> Tensor:
    return item


class StackedMLP(RoutedMLP):
    """A router, called so in checkpoints, and its experts."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate both."""
        super().__init__()
        self.router = Router(config, factory, scoring="softmax_of_top_k")
        self.experts = StackedExperts(config, factory)

    def parts(self) -> tuple[Router, Experts]:
        """Return both."""
        return self.router, self.experts


class MixedMLP(Sublayer):
    """Experts that are chosen for each token, and beside them an MLP that computes all tokens."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate both."""
        super().__init__()
        self.block_sparse_moe = StackedMLP(config, factory)
        self.shared_mlp = _shared_mlp(config, factory)

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + experts(x) + shared_mlp(x), both [tokens, hidden]."""
        assert not context
        router, experts = self.block_sparse_moe.parts()
        routing = router(x)
        if experts.shard.size > 1:
            term = self.shared_mlp.term(routing.rows) + experts.term(routing)
            return norm.add_norm(experts.shard.all_reduce(term), residual)
        _, with_experts = experts.add_norm(routing, residual, norm)
        return self.shared_mlp.add_norm(routing.rows, with_experts, norm)


def _shared_mlp(config: ModelConfig, factory: ParameterFactory) -> GatedMLP:
    return GatedMLP(config, factory, silu_and_mul, is_fused=not config.has_parts_apart)


class GraniteHybrid(CausalLM):
    """A Granite 4 model, with experts or without; its LM head may be tied to the embedding."""

    stored_names: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "mlp": "shared_mlp",
            "router": "router.layer",
            "gate_up_proj": "input_linear",
            "down_proj": "output_linear",
        }
    )

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""

        def attention(layer: int) -> nn.Module:
            return (Attention if config.attends(layer) else Mamba2)(config, factory, layer)

        def mlp(_: int) -> nn.Module:
            if config.moe is None:
                return _shared_mlp(config, factory)
            return MixedMLP(config, factory)

        decoder = pre_norm_decoder(config, factory, attention=attention, mlp=mlp, state_layer_name="mamba")
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))

    def _stored_name(self, name: str) -> str:
        """Return the name in checkpoints, whose layers have both parts of a `MixedMLP` as their own."""
        name = name.replace(".mlp.block_sparse_moe.", ".block_sparse_moe.")
        return super()._stored_name(name.replace(".mlp.shared_mlp.", ".mlp."))

"""Mixtures of experts: a router chooses a few of many MLPs for each token. Shazeer et al., 2017; Fedus et al., 2022."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Literal

from torch import Tensor, nn

from infer_kernels import (
    ExpertActivation,
    NormVariant,
    QuantizedWeight,
    Routing,
    fused_moe,
    fused_moe_add_norm,
    prepack_experts,
)
from infer_kernels.cpu import PackedExperts, PackedQuantizedExperts
from infer_models.config import ModelConfig
from infer_models.layers.linear import LinearBase
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, OwnWeight, ParameterFactory, ShardedLayer, detached
from infer_models.layers.sublayer import Sublayer
from infer_models.tensor_parallel import Share
from infer_models.weights import StoredWeight, WeightSlice, item_of, split_rows


class Router(LinearBase):
    """Chooses each token's experts; every rank computes all of it."""

    role = "exact"

    def __init__(
        self,
        config: ModelConfig,
        factory: ParameterFactory,
        *,
        scoring: Literal["softmax", "softmax_of_top_k"],
        bias: bool = False,
    ) -> None:
        """The weight is [experts, hidden], the bias [experts] or none; `scoring` as for `infer_kernels.moe_router`."""
        assert config.moe is not None
        super().__init__(factory.matrix(config.moe.num_experts, config.hidden_size), shares={})
        self.router = factory.router
        self.bias = factory.vector(config.moe.num_experts, fill=0.0) if bias else None
        self.experts_per_token = config.moe.experts_per_token
        self.scoring = scoring
        self.normalizes_weights = config.moe.normalizes_weights

    def forward(self, x: LayerInput, *, expert_scales: Tensor | None = None) -> Routing:
        """Return the normalized rows of x [tokens, hidden], their experts and the experts' weights.

        These are multiplied by their experts' `expert_scales` [experts], if there are any.
        """
        return self.router.route(
            x,
            self.weight,
            self.bias,
            experts_per_token=self.experts_per_token,
            scoring=self.scoring,
            normalize=self.normalizes_weights,
            expert_scales=expert_scales,
        )


class Experts(ShardedLayer):
    """Gated MLPs of one shape; each rank has a part of the inner elements of all of them.

    A checkpoint has each expert's `gate_proj`, `up_proj` and `down_proj` as layers of their own, without biases.

    Attributes:
        inner: this rank's inner elements of an expert.
        gate_up_proj: [experts, 2 * inner, hidden], the gates, then the ups: a parameter, quantized, or packed by
            `prepack`.
        down_proj: [experts, hidden, inner], likewise.
        gate_up_bias: [experts, 2 * inner], or None.
        down_bias: [experts, hidden], or None; all ranks hold it, and the first one adds it.
        adds_residual: the sum over experts may be one launch with the addition and norm after it; not over ranks.
    """

    gate_up_proj: nn.Parameter | PackedExperts | QuantizedWeight | PackedQuantizedExperts
    down_proj: nn.Parameter | PackedExperts | QuantizedWeight | PackedQuantizedExperts

    def __init__(
        self, config: ModelConfig, factory: ParameterFactory, *, activation: ExpertActivation, bias: bool = False
    ) -> None:
        """Gate with `activation`."""
        super().__init__()
        assert config.moe is not None
        self.num_experts, self.hidden_size = config.moe.num_experts, config.hidden_size
        self.inner = factory.shard.divide(config.moe.intermediate_size)
        self.gate_up_proj = factory.stack(self.num_experts, 2 * self.inner.size, self.hidden_size)
        self.down_proj = factory.stack(self.num_experts, self.hidden_size, self.inner.size)
        self.gate_up_bias = factory.matrix(self.num_experts, 2 * self.inner.size) if bias else None
        self.down_bias = factory.matrix(self.num_experts, self.hidden_size) if bias else None
        self.activation = activation
        self.shard = factory.shard
        self.is_invariant = factory.is_invariant
        self.adds_residual = factory.fused_products is not None and factory.shard.size == 1

    @property
    def num_weights(self) -> int:
        """Weights of all matrices that this rank holds."""
        return 3 * self.num_experts * self.inner.size * self.hidden_size

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices, but for scales, as they are before `prepack` on a CPU."""
        matrices = (self.gate_up_proj, self.down_proj)
        values = [each.values if isinstance(each, QuantizedWeight) else each for each in matrices]
        return sum(each.nbytes for each in values if isinstance(each, Tensor))

    def forward(self, routing: Routing) -> Tensor:
        """Map rows [tokens, hidden] to the weighted sum of their experts, [tokens, hidden]."""
        return self.shard.all_reduce(self.term(routing))

    def term(self, routing: Routing) -> Tensor:
        """Return this rank's term of the sum over ranks, [tokens, hidden]."""
        return fused_moe(
            routing.rows,
            self.gate_up_proj,
            self.down_proj,
            *routing.choice,
            activation=self.activation,
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias if self.shard.rank == 0 else None,
            is_invariant=self.is_invariant,
            grouping=routing.grouping,
        )

    def add_norm(self, routing: Routing, residual: Tensor, norm: RMSNorm | LayerNorm) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(routing), both [tokens, hidden]."""
        if self.adds_residual:
            return norm.add_experts(self, routing, residual)
        return norm.add_norm(self(routing), residual)

    def fused_add_norm(
        self, routing: Routing, *, residual: Tensor, norm_weight: Tensor, eps: float, variant: NormVariant
    ) -> tuple[LayerInput, Tensor]:
        """Do as `add_norm` with an RMS norm, of which its readers may do the rest; only if `adds_residual`."""
        return fused_moe_add_norm(
            routing.rows,
            self.gate_up_proj,
            self.down_proj,
            *routing.choice,
            activation=self.activation,
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            residual=residual,
            norm_weight=norm_weight,
            eps=eps,
            variant=variant,
            grouping=routing.grouping,
        )

    def prepack(self) -> None:
        """Reorder the weights as their device multiplies them fastest; this cannot be undone."""
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(self, name)
            if isinstance(weight, nn.Parameter | QuantizedWeight):
                packed = prepack_experts(detached(weight))
                if not isinstance(packed, Tensor):
                    delattr(self, name)  # perhaps a parameter, which packed experts are not
                    setattr(self, name, packed)

    def unpacked_weights(self) -> tuple[OwnWeight, OwnWeight]:
        """Return both stacks, which must not be prepacked."""
        assert isinstance(self.gate_up_proj, nn.Parameter | QuantizedWeight)
        assert isinstance(self.down_proj, nn.Parameter | QuantizedWeight)
        return self.gate_up_proj, self.down_proj

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield both stacks with the tensors of all experts."""
        gate_up_proj, down_proj = self.unpacked_weights()
        hidden = Share.whole(self.hidden_size)
        gate_up: dict[str, StoredWeight] = {}
        down: dict[str, StoredWeight] = {}
        for expert in range(self.num_experts):
            halves = split_rows(item_of(detached(gate_up_proj), expert), [self.inner.size] * 2)
            for name, target in zip(("gate_proj", "up_proj"), halves, strict=True):
                gate_up[f"{path}.{expert}.{name}.weight"] = WeightSlice(target=target, shares=(self.inner, hidden))
            target = item_of(detached(down_proj), expert)
            down[f"{path}.{expert}.down_proj.weight"] = WeightSlice(target=target, shares=(hidden, self.inner))
        yield gate_up_proj, gate_up
        yield down_proj, down


class RoutedMLP(Sublayer):
    """A router and its experts, whose names in checkpoints families choose."""

    @abstractmethod
    def parts(self) -> tuple[Router, Experts]:
        """Return both."""

    def forward(self, x: LayerInput) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        router, experts = self.parts()
        out: Tensor = experts(router(x))
        return out

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x), both [tokens, hidden]."""
        assert not context
        router, experts = self.parts()
        return experts.add_norm(router(x), residual, norm)


class SparseMLP(RoutedMLP):
    """A router, called `gate` in checkpoints, and its experts."""

    def __init__(self, *, gate: Router, experts: Experts) -> None:
        """Join the parts."""
        super().__init__()
        self.gate = gate
        self.experts = experts

    def parts(self) -> tuple[Router, Experts]:
        """Return both."""
        return self.gate, self.experts

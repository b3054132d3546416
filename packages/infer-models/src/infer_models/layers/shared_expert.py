"""`SharedExpertMLP`: experts chosen for each token, and one that computes all tokens. Dai et al., "DeepSeekMoE", 2024.

y = sum of the chosen experts + sigmoid(x @ shared_expert_gate.T) * shared_expert(x)
"""

from dataclasses import replace

from torch import Tensor

from infer_kernels import ExpertActivation, sigmoid_gate, silu_and_mul
from infer_models.config import ModelConfig
from infer_models.layers.linear import ColumnParallelLinear
from infer_models.layers.mlp import GatedMLP
from infer_models.layers.moe import Experts, Router, SparseMLP
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory


class SharedExpertGate(ColumnParallelLinear):
    """The product that gates the shared expert: one row, whose errors cost much. It is not quantized on the fly."""

    role = "exact"


class SharedExpertMLP(SparseMLP):
    """A router, its experts, and the shared expert with its gate, which every rank computes."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate all of them."""
        assert config.moe is not None
        assert config.moe.shared_intermediate_size is not None
        super().__init__(
            gate=Router(config, factory, scoring="softmax"),
            experts=Experts(config, factory, activation=ExpertActivation()),
        )
        shared = replace(config, intermediate_size=config.moe.shared_intermediate_size)
        self.shared_expert = GatedMLP(shared, factory, silu_and_mul)
        self.shared_expert_gate = SharedExpertGate(factory, config.hidden_size, 1)

    def forward(self, x: LayerInput) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        routing = self.gate(x)
        shared, gate = self.shared_expert.term(routing.rows), self.shared_expert_gate(routing.rows)
        return self.experts.shard.all_reduce(sigmoid_gate(shared, gate, addend=self.experts.term(routing)))

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x), both [tokens, hidden]."""
        assert not context
        return norm.add_norm(self(x), residual)

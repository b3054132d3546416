"""The gated MLP that most families share."""

from collections.abc import Callable

from torch import Tensor

from infer_models.config import ModelConfig
from infer_models.layers.linear import PackedLinear, RowParallelLinear
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput, ParameterFactory
from infer_models.layers.sublayer import Sublayer


class GatedMLP(Sublayer):
    """`down(activation(gate) * up)`: SwiGLU or GeGLU. Shazeer, "GLU Variants Improve Transformer", 2020."""

    def __init__(
        self,
        config: ModelConfig,
        factory: ParameterFactory,
        activation_and_mul: Callable[[Tensor], Tensor],
        *,
        is_fused: bool = False,
    ) -> None:
        """Gate with `activation_and_mul`: gates, then ups, [tokens, 2 * size] to [tokens, size].

        With `is_fused` checkpoints have one `gate_up_proj`.
        """
        super().__init__()
        self.activation_and_mul = activation_and_mul
        share = factory.shard.divide(config.intermediate_size)
        parts = {"gate_proj": share, "up_proj": share}
        self.gate_up_proj = PackedLinear(factory, config.hidden_size, parts, bias=config.mlp_bias, is_fused=is_fused)
        self.down_proj = RowParallelLinear(factory, config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: LayerInput) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        out: Tensor = self.down_proj(self.gate_up_proj.gated(x, self.activation_and_mul))
        return out

    def term(self, x: LayerInput) -> Tensor:
        """Return this rank's term of the sum over ranks, [tokens, hidden]."""
        return self.down_proj.term(self.gate_up_proj.gated(x, self.activation_and_mul))

    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x), both [tokens, hidden]."""
        del context
        return self.down_proj.add_norm(self.gate_up_proj.gated(x, self.activation_and_mul), residual, norm)

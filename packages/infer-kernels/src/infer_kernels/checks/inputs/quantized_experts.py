"""Random experts with quantized weights for tests of mixtures of experts."""

from dataclasses import dataclass

from torch import Tensor

from infer_kernels.checks.inputs.experts import Experts
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.quantization import Encoding, QuantizedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedExperts:
    """Experts whose weights are quantized, and the arguments of one call, as `fused_moe_quantized_triton` takes them.

    Attributes:
        plain: what else a call takes: rows, routing and biases.
        gate_up: [experts, 2 * intermediate, hidden].
        down: [experts, hidden, intermediate].
    """

    plain: Experts
    gate_up: QuantizedWeight
    down: QuantizedWeight

    @property
    def arguments(self) -> tuple[Tensor, QuantizedWeight, QuantizedWeight, Tensor, Tensor]:
        """The positional arguments."""
        return self.plain.x, self.gate_up, self.down, self.plain.expert_ids, self.plain.expert_weights


def quantized_experts(
    plain: Experts,
    *,
    encoding: Encoding,
    group_size: int | None = None,
    has_zeros: bool = False,
    has_minimums: bool = False,
) -> QuantizedExperts:
    """Return experts with the rows, routing and biases of `plain`, and other weights of its shapes."""
    gate_up, down = (
        random_quantized(
            *each.shape, encoding=encoding, group_size=group_size, has_zeros=has_zeros, has_minimums=has_minimums
        )
        for each in (plain.gate_up, plain.down)
    )
    return QuantizedExperts(plain=plain, gate_up=gate_up, down=down)

"""Changes of the heads of queries and keys before attention: QK-norm and rotation."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_like, require_shape
from infer_kernels.norm.rms_norm import NormVariant, check_variant


@dataclass(frozen=True, slots=True, kw_only=True)
class QKNorm:
    """RMSNorm of each head of the queries and keys.

    Attributes:
        q_weight: [head_dim], of the dtype and device of the heads.
        k_weight: like `q_weight`.
        eps: added to the mean square.
        variant: how the weight is applied, see `infer_kernels.rms_norm`.
    """

    q_weight: Tensor
    k_weight: Tensor
    eps: float
    variant: NormVariant

    def check(self, name: str, heads: Tensor) -> None:
        """Raise unless the weights fit `heads` [tokens, heads, head_dim], an argument called `name`."""
        for weight_name, weight in (("q_weight", self.q_weight), ("k_weight", self.k_weight)):
            require_shape(weight_name, weight, (heads.shape[2],), f"the head_dim of `{name}`")
            require_like(weight_name, weight, name, heads)
            require_dense_rows(weight_name, weight)
        check_variant(self.variant)


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotation of queries and keys by their positions. One step's layers share it, and what it has looked up.

    Attributes:
        position_ids: [tokens], int32 or int64, each below max_position (not checked: it would stall the device).
        cos_sin: [max_position, rotary_dim], fp32: the cosines of the rotary_dim / 2 angles, then their sines. An even
            rotary_dim, at most head_dim: only the first rotary_dim elements of each head are rotated.
    """

    position_ids: Tensor
    cos_sin: Tensor

    @cached_property
    def angles(self) -> tuple[Tensor, Tensor]:
        """(cosines, sines), fp32 [tokens, 1, 1, rotary_dim / 2] and [tokens, 1, rotary_dim / 2]; gathered once."""
        cos, sin = self.cos_sin.index_select(0, self.position_ids).unsqueeze(1).chunk(2, dim=-1)
        return cos.unsqueeze(-2), sin

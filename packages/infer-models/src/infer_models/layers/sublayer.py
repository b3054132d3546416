"""`Sublayer`: attention or an MLP that ends in a dense layer, which may be one launch with the ops after it."""

from abc import abstractmethod

from torch import Tensor, nn

from infer_kernels import apply_pending_norm
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import LayerInput


class Sublayer(nn.Module):
    """A module that can add its output to the residual stream and have the sum normalized by itself."""

    @abstractmethod
    def add_norm(
        self, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + self(x, *context), both [tokens, hidden]."""


def add_norm(
    sublayer: nn.Module, x: LayerInput, residual: Tensor, norm: RMSNorm | LayerNorm, *context: object
) -> tuple[LayerInput, Tensor]:
    """Return (norm(sum), sum) with sum = residual + sublayer(x, *context), both [tokens, hidden].

    Only a `Sublayer` gets rows whose norm is pending: a family's own modules get and return tensors.
    """
    if isinstance(sublayer, Sublayer):
        return sublayer.add_norm(x, residual, norm, *context)
    return norm.add_norm(sublayer(apply_pending_norm(x), *context), residual)

"""`ParameterFactory`: allocates a rank's weights, and says which function multiplies by them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from infer_kernels.cpu import PackedWeight
from infer_models.tensor_parallel import Shard, Share


class LinearFunction(Protocol):
    """What a linear layer computes: `infer_kernels.linear` or `linear_invariant`."""

    def __call__(self, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> Tensor:
        """Map x [tokens, in_features] to [tokens, out_features]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFactory:
    """Allocates a model's parameters; none requires a gradient until it is asked to.

    Attributes:
        device: of the parameters.
        dtype: of the parameters.
        linear: multiplies by the weights.
        shard: which part of the model this is; by default the whole.
    """

    device: torch.device
    dtype: torch.dtype
    linear: LinearFunction
    shard: Shard = field(default_factory=Shard)

    def matrix(self, rows: int, columns: int) -> nn.Parameter:
        """Return a parameter [rows, columns] whose elements are still to be loaded or drawn."""
        storage = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        return nn.Parameter(storage, requires_grad=False)

    def vector(self, size: int, *, fill: float) -> nn.Parameter:
        """Return a parameter [size] that holds `fill` everywhere: the value with which its layer changes nothing."""
        storage = torch.full((size,), fill, dtype=self.dtype, device=self.device)
        return nn.Parameter(storage, requires_grad=False)


class ShardedLayer(nn.Module):
    """A layer with parameters of which each rank holds a share.

    Attributes:
        shares: by the name of such a parameter, the share of each of its dimensions.
    """

    shares: Mapping[str, tuple[Share, ...]]

"""Linear layers over flat tokens, alone or several packed into one."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from infer_kernels import prepack
from infer_kernels.cpu import PackedWeight
from infer_models.layers.parameters import LinearFunction, ParameterFactory


class LinearBase(nn.Module):
    """A layer that multiplies by a weight.

    Attributes:
        weight: [out_features, in_features], or what `prepack` made of it.
        linear: what multiplies by it.
    """

    weight: nn.Parameter | PackedWeight
    linear: LinearFunction

    def __init__(self, weight: nn.Parameter, linear: LinearFunction) -> None:
        """Multiply by `weight` with `linear`."""
        super().__init__()
        self.weight = weight
        self.linear = linear

    def prepack(self) -> None:
        """Reorder the weight as its device multiplies it fastest; this cannot be undone."""
        if isinstance(self.weight, nn.Parameter):
            packed = prepack(self.weight.detach())
            if isinstance(packed, PackedWeight):
                del self.weight  # a parameter, which a packed weight is not
                self.weight = packed


class Linear(LinearBase):
    """`y = x @ weight.T + bias`."""

    def __init__(self, factory: ParameterFactory, in_features: int, out_features: int, *, bias: bool = False) -> None:
        """The weight is [out_features, in_features], the bias [out_features] or none."""
        super().__init__(factory.matrix(out_features, in_features), factory.linear)
        self.bias = factory.vector(out_features, fill=0.0) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x [tokens, in_features] to [tokens, out_features]."""
        return self.linear(x, self.weight, self.bias)


class PackedLinear(LinearBase):
    """Several linear layers of one input as one: their weights below each other, their outputs side by side.

    Attributes:
        parts: the rows of each part, by its name in checkpoints, in the order of the outputs. A checkpoint has each
            part as a layer of its own, in the place of this one.
    """

    def __init__(self, factory: ParameterFactory, in_features: int, parts: Mapping[str, int]) -> None:
        """The weight is [sum of `parts`, in_features]."""
        super().__init__(factory.matrix(sum(parts.values()), in_features), factory.linear)
        self.parts = dict(parts)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [tokens, in_features] to [tokens, sum of `parts`]."""
        return self.linear(x, self.weight)

    def part_weights(self) -> dict[str, Tensor]:
        """Return each part's rows of the weight, as views, by its name."""
        assert isinstance(self.weight, nn.Parameter), "a packed model cannot be saved"
        return dict(zip(self.parts, torch.split(self.weight.detach(), list(self.parts.values())), strict=True))

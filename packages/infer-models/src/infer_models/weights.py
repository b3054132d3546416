"""How parameters lie in checkpoints: which part of which tensor a rank holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infer_models.tensor_parallel import Share


class StoredWeight(Protocol):
    """A tensor of a checkpoint, and what of it a parameter holds."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the checkpoint's tensor."""

    def fill(self, whole: Tensor) -> None:
        """Copy what is wanted of `whole`, the checkpoint's tensor, into the parameter."""

    def stored(self) -> Tensor:
        """Return the checkpoint's tensor, of a parameter that holds all of it; it may be a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSlice:
    """A block of a checkpoint's tensor; of a whole model all of it.

    Attributes:
        target: a view of the parameter, or of a part of a packed one.
        shares: of each dimension of the checkpoint's tensor, what `target` holds.
    """

    target: Tensor
    shares: tuple[Share, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the checkpoint's tensor."""
        return tuple(share.total for share in self.shares)

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of `whole`, the checkpoint's tensor, that belongs into `target`."""
        return whole[tuple(slice(share.start, share.start + share.size) for share in self.shares)]

    def fill(self, whole: Tensor) -> None:
        """Copy the part of `whole`, the checkpoint's tensor, into `target`."""
        self.target.copy_(self.of(whole))

    def stored(self) -> Tensor:
        """Return `target`, which is all of the checkpoint's tensor."""
        return self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedWeight:
    """A tensor of a checkpoint that has the rows of several layers below each other, of each of which a rank has some.

    Attributes:
        parts: one for each layer, in the tensor's order.
    """

    parts: Sequence[WeightSlice]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the checkpoint's tensor."""
        return self.parts[0].shape

    def fill(self, whole: Tensor) -> None:
        """Copy each layer's part of `whole`, the checkpoint's tensor."""
        for part in self.parts:
            part.fill(whole)

    def stored(self) -> Tensor:
        """Return the checkpoint's tensor."""
        return torch.cat([part.target for part in self.parts])

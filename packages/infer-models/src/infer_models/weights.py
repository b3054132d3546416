"""How parameters lie in checkpoints: which part of which tensor a rank holds."""

import math
from collections.abc import Callable, Sequence
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

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""

    @property
    def target(self) -> Tensor:
        """What the parameter holds of it; it may be a copy."""

    def of(self, whole: Tensor) -> Tensor:
        """Return what belongs into `target` of `whole`, the checkpoint's tensor."""

    def fill(self, whole: Tensor) -> None:
        """Copy that into the parameter."""

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

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""
        return math.prod(self.shape)

    def of(self, whole: Tensor) -> Tensor:
        """Return the block of `whole`, the checkpoint's tensor."""
        return whole[tuple(slice(share.start, share.start + share.size) for share in self.shares)]

    def fill(self, whole: Tensor) -> None:
        """Copy the block of `whole`, the checkpoint's tensor, into `target`."""
        self.target.copy_(self.of(whole))

    def stored(self) -> Tensor:
        """Return `target`."""
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

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""
        return math.prod(self.shape)

    @property
    def target(self) -> Tensor:
        """A copy of what the layers hold, below each other."""
        return torch.cat([part.target for part in self.parts])

    def of(self, whole: Tensor) -> Tensor:
        """Return this rank's rows of each layer, below each other."""
        return torch.cat([part.of(whole) for part in self.parts])

    def fill(self, whole: Tensor) -> None:
        """Copy each layer's part of `whole`, the checkpoint's tensor."""
        for part in self.parts:
            part.fill(whole)

    def stored(self) -> Tensor:
        """Return a copy of what the layers hold, below each other."""
        return self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedWeight:
    """A tensor of a checkpoint whose items, along the first dimension, have their elements in another order.

    Attributes:
        target: the parameter, [items, ...].
        shape: of the checkpoint's tensor, [items, ...].
        arrange: turns an item of the checkpoint's into this rank's item of `target`.
        restore: turns an item of `target` into the checkpoint's, where `target` holds all of it.
    """

    target: Tensor
    shape: tuple[int, ...]
    arrange: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""
        return math.prod(self.shape)

    def of(self, whole: Tensor) -> Tensor:
        """Return this rank's items of `whole`, the checkpoint's tensor."""
        return torch.stack([self.arrange(item) for item in whole])

    def fill(self, whole: Tensor) -> None:
        """Copy this rank's items of `whole`, the checkpoint's tensor."""
        for index, item in enumerate(whole):
            self.target[index].copy_(self.arrange(item))

    def stored(self) -> Tensor:
        """Return the checkpoint's tensor."""
        return torch.stack([self.restore(item).contiguous() for item in self.target])

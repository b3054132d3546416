"""Parameters in checkpoints: the parts of tensors that a rank holds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels import QuantizedWeight
from infer_models.tensor_parallel import Share
from infer_models.weights.assignment import assign, item_of, select_rows

FLOATS = ("F64", "F32", "BF16", "F16")
"""Dtypes of plain weights in files, as safetensors spell them."""


def _plain(weight: Tensor | QuantizedWeight) -> Tensor:
    """Return `weight`.

    Raises:
        ValueError: it is quantized.
    """
    if isinstance(weight, Tensor):
        return weight
    raise ValueError("A model with quantized weights cannot be saved.")


class StoredWeight(Protocol):
    """A tensor of a checkpoint, and the part of it that a parameter holds."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the checkpoint's tensor."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes that the checkpoint's tensor may have, as safetensors spell them."""

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""

    @property
    def target(self) -> Tensor | QuantizedWeight:
        """The part of it that the parameter holds; it may be a copy."""

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of `whole`, the checkpoint's tensor, that belongs into `target`."""

    def fill(self, whole: Tensor | QuantizedWeight) -> None:
        """Copy the part of `whole`, the checkpoint's tensor, that belongs into `target` into the parameter."""

    def stored(self) -> Tensor:
        """Return the checkpoint's tensor, of a parameter that holds all of it; it may be a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSlice:
    """A block of a checkpoint's tensor; of a whole model all of it.

    Attributes:
        target: a view of the parameter, or of a part of a packed one.
        shares: share of each dimension of the checkpoint's tensor that `target` holds.
    """

    target: Tensor | QuantizedWeight
    shares: tuple[Share, ...]
    dtypes: ClassVar[tuple[str, ...]] = FLOATS

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

    def fill(self, whole: Tensor | QuantizedWeight) -> None:
        """Copy the block of `whole`, the checkpoint's tensor, into `target`."""
        if isinstance(whole, Tensor):
            return assign(self.target, self.of(whole))
        rows, columns = self.shares
        block = whole.rows(rows.start, rows.size)
        return assign(
            self.target, block if columns.size == columns.total else block.columns(columns.start, columns.size)
        )

    def pieces(self, num_rows: int) -> "Iterator[tuple[int, WeightSlice]]":
        """Yield pieces of at most `num_rows` rows: the first row in the checkpoint's tensor, and the piece."""
        rows, *columns = self.shares
        for done in range(0, rows.size, num_rows):
            size = min(num_rows, rows.size - done)
            target = select_rows(self.target, done, size)
            yield rows.start + done, WeightSlice(target=target, shares=(Share.whole(size), *columns))

    def stored(self) -> Tensor:
        """Return `target`.

        Raises:
            ValueError: it is quantized.
        """
        return _plain(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedWeight:
    """A tensor of a checkpoint that has the rows of several layers below each other, of each of which a rank has some.

    Attributes:
        parts: one for each layer, in the tensor's order.
    """

    parts: Sequence[WeightSlice]
    dtypes: ClassVar[tuple[str, ...]] = FLOATS

    @classmethod
    def in_turns(cls, layers: Sequence[tuple[Share, Tensor | QuantizedWeight]], *, num_turns: int = 1) -> "FusedWeight":
        """Return the tensor that has the rows of layers in turns, an equal part of each in every turn.

        Args:
            layers: the share of the rows of each layer that is held, and what holds them.
            num_turns: turns; 1: all rows of a layer are together.
        """
        total, start, slices = sum(share.total for share, _ in layers), 0, []
        for turn in range(num_turns):
            for share, held in layers:
                size = share.total // num_turns
                first, end = max(share.start, turn * size), min(share.start + share.size, (turn + 1) * size)
                if first < end:
                    rows = Share(start + first - turn * size, end - first, total)
                    columns = (Share.whole(width) for width in held.shape[1:])
                    target = select_rows(held, first - share.start, end - first)
                    slices.append(WeightSlice(target=target, shares=(rows, *columns)))
                start += size
        return cls(parts=slices)

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
        """A copy of the layers' weights, below each other."""
        return torch.cat([part.stored() for part in self.parts])

    def of(self, whole: Tensor) -> Tensor:
        """Return this rank's rows of each layer, below each other."""
        return torch.cat([part.of(whole) for part in self.parts])

    def fill(self, whole: Tensor | QuantizedWeight) -> None:
        """Copy each layer's part of `whole`, the checkpoint's tensor."""
        for part in self.parts:
            part.fill(whole)

    def stored(self) -> Tensor:
        """Return a copy of the layers' weights, below each other."""
        return self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedWeight:
    """A tensor of a checkpoint that is several parts of a packed parameter, which hold the same.

    Attributes:
        parts: the parts.
    """

    parts: Sequence[StoredWeight]
    dtypes: ClassVar[tuple[str, ...]] = FLOATS

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the checkpoint's tensor."""
        return self.parts[0].shape

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""
        return math.prod(self.shape)

    @property
    def target(self) -> Tensor | QuantizedWeight:
        """The first part."""
        return self.parts[0].target

    def of(self, whole: Tensor) -> Tensor:
        """Return this rank's rows of `whole`, the checkpoint's tensor, once."""
        return self.parts[0].of(whole)

    def fill(self, whole: Tensor | QuantizedWeight) -> None:
        """Copy `whole`, the checkpoint's tensor, into every part."""
        for part in self.parts:
            part.fill(whole)

    def stored(self) -> Tensor:
        """Return the first part."""
        return self.parts[0].stored()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedWeight:
    """A tensor of a checkpoint whose items, along the first dimension, have their elements in another order.

    Attributes:
        target: the parameter, [items, ...].
        shape: shape of the checkpoint's tensor, [items, ...].
        arrange: turns an item of the checkpoint's into this rank's item of `target`.
        restore: turns an item of `target` into the checkpoint's, where `target` holds all of it.
    """

    target: Tensor | QuantizedWeight
    shape: tuple[int, ...]
    arrange: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]
    dtypes: ClassVar[tuple[str, ...]] = FLOATS

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""
        return math.prod(self.shape)

    def of(self, whole: Tensor) -> Tensor:
        """Return this rank's items of `whole`, the checkpoint's tensor."""
        return torch.stack([self.arrange(item) for item in whole])

    def fill(self, whole: Tensor | QuantizedWeight) -> None:
        """Copy this rank's items of `whole`, the checkpoint's tensor."""
        assert isinstance(whole, Tensor)
        for index, item in enumerate(whole):
            self.fill_item(index, item)

    def fill_item(self, index: int, item: Tensor) -> None:
        """Copy this rank's part of one item of the checkpoint's tensor."""
        assign(item_of(self.target, index), self.arrange(item))

    def stored(self) -> Tensor:
        """Return the checkpoint's tensor.

        Raises:
            ValueError: it is quantized.
        """
        return torch.stack([self.restore(item).contiguous() for item in _plain(self.target)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledWeight:
    """A tensor of a checkpoint whose numbers the parameter holds multiplied by a factor.

    Attributes:
        target: the parameter, of the shape of the checkpoint's tensor.
        factor: multiplies its numbers.
    """

    target: Tensor
    factor: float
    dtypes: ClassVar[tuple[str, ...]] = FLOATS

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the checkpoint's tensor."""
        return tuple(self.target.shape)

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""
        return self.target.numel()

    def of(self, whole: Tensor) -> Tensor:
        """Return the numbers of `whole`, the checkpoint's tensor, multiplied."""
        return whole.float() * self.factor

    def fill(self, whole: Tensor | QuantizedWeight) -> None:
        """Copy `whole`, the checkpoint's tensor, multiplied."""
        assert isinstance(whole, Tensor)
        self.target.copy_(self.of(whole))

    def stored(self) -> Tensor:
        """Return the checkpoint's tensor, but for a rounding."""
        return (self.target.float() / self.factor).to(self.target.dtype)


@dataclass(frozen=True, slots=True)
class Padding:
    """Heads of `stored` elements in checkpoints, of which parameters hold `held`: the others are zeros."""

    stored: int
    held: int

    def of_checkpoint(self, share: Share) -> Share:
        """Return the share of a checkpoint's dimension whose heads make up `share` of the parameter's."""
        return Share(*(each // self.held * self.stored for each in (share.start, share.size, share.total)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedWeight:
    """A block of a checkpoint's tensor; the parameter holds the heads along one of its dimensions padded.

    Zeros change no score, and no sum of values: kernels have heads of certain sizes only.

    Attributes:
        target: a view of the parameter, or of a part of a packed one.
        shares: share of each dimension of the checkpoint's tensor that `target` holds.
        dimension: the dimension of the heads.
        padding: padding of a head.
    """

    target: Tensor | QuantizedWeight
    shares: tuple[Share, ...]
    dimension: int
    padding: Padding
    dtypes: ClassVar[tuple[str, ...]] = FLOATS

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the checkpoint's tensor."""
        return tuple(share.total for share in self.shares)

    @property
    def num_weights(self) -> int:
        """Numbers that the checkpoint's tensor holds."""
        return math.prod(self.shape)

    def of(self, whole: Tensor) -> Tensor:
        """Return the block of `whole`, the checkpoint's tensor, with its heads padded."""
        block = whole[tuple(slice(share.start, share.start + share.size) for share in self.shares)].movedim(
            self.dimension, -1
        )
        heads = block.reshape(*block.shape[:-1], -1, self.padding.stored)
        padded = functional.pad(heads, (0, self.padding.held - self.padding.stored))
        return padded.flatten(-2).movedim(-1, self.dimension)

    def fill(self, whole: Tensor | QuantizedWeight) -> None:
        """Copy the block of `whole`, the checkpoint's tensor, into `target`."""
        assign(self.target, self.of(whole if isinstance(whole, Tensor) else whole.dequantize()).contiguous())

    def stored(self) -> Tensor:
        """Return a copy of the checkpoint's part of `target`.

        Raises:
            ValueError: it is quantized.
        """
        numbers = _plain(self.target).movedim(self.dimension, -1)
        heads = numbers.reshape(*numbers.shape[:-1], -1, self.padding.held)[..., : self.padding.stored]
        return heads.flatten(-2).movedim(-1, self.dimension)

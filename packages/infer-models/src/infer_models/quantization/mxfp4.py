"""MXFP4: weights of four bits in blocks of 32 that share a power of two; `mxfp4` of `QuantizedWeight`.

    blocks [..., columns / 32, 16] uint8    two numbers a byte, the first in the lower four bits: a sign, two bits of
                                            exponent, one of mantissa
    scales [..., columns / 32] uint8        the exponent of a block's power of two, plus 127

Open Compute Project, "OCP Microscaling Formats (MX) Specification", 1.0, 2023.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_models.errors import CheckpointError
from infer_models.stored_format import Storage
from infer_models.weights import StoredWeight, assign, item_of

BLOCK = 32
"""Numbers that share a scale."""
STORAGE = Storage(encoding="mxfp4", group_size=BLOCK)
"""Format of such weights in memory where a kernel multiplies them."""
_NAN_EXPONENT = 255


def read_mxfp4(blocks: Tensor, scales: Tensor) -> QuantizedWeight:
    """Return the weight [rows, columns] of blocks [rows, columns / 32, 16].

    Args:
        blocks: uint8, see above.
        scales: uint8 [rows, columns / 32].
    """
    return QuantizedWeight(
        encoding="mxfp4",
        values=blocks.flatten(-2),
        scales=scales,
        in_features=BLOCK * scales.shape[-1],
        group_size=BLOCK,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4Weight:
    """A parameter [items, rows, columns] that a checkpoint has as blocks and scales.

    Attributes:
        target: the parameter, of a rank a part of it.
        blocks_shape: [items, rows, columns / 32, 16].
        arrange: turns an item [rows, columns] of the checkpoint into this rank's item of `target`.
        first_column: the first column of this rank.
        blocks_name: name of the tensor with the blocks.
        scales_name: name of the tensor with the scales.
    """

    target: Tensor | QuantizedWeight
    blocks_shape: tuple[int, ...]
    arrange: Callable[[QuantizedWeight], QuantizedWeight]
    first_column: int
    blocks_name: str
    scales_name: str

    def tensors(self) -> Mapping[str, StoredWeight]:
        """Return both tensors by their names."""
        shapes = {self.blocks_name: self.blocks_shape, self.scales_name: self.blocks_shape[:-1]}
        return MappingProxyType({name: Mxfp4Part(weight=self, shape=shape) for name, shape in shapes.items()})

    def fill_item(self, index: int, blocks: Tensor, scales: Tensor) -> None:
        """Copy an item, blocks [rows, columns / 32, 16] and scales [rows, columns / 32], into `target`.

        Raises:
            CheckpointError: a scale is no number.
        """
        if bool((scales == _NAN_EXPONENT).any()):
            raise CheckpointError(f"Tensor `{self.scales_name}` has a scale that is no number, in item {index}.")
        assign(item_of(self.target, index), self.arrange(read_mxfp4(blocks, scales)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4Part:
    """One of the two tensors of an `Mxfp4Weight`; it is read with the other one, and never written."""

    weight: Mxfp4Weight
    shape: tuple[int, ...]
    dtypes: ClassVar[tuple[str, ...]] = ("U8",)

    @property
    def num_weights(self) -> int:
        """Two for each byte of the blocks."""
        return 2 * math.prod(self.shape) if self.shape == self.weight.blocks_shape else 0

    @property
    def target(self) -> Tensor | QuantizedWeight:
        """The parameter."""
        return self.weight.target

    def of(self, whole: Tensor) -> Tensor:
        """Raise: one tensor alone has no numbers.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"One tensor of two, {list(whole.shape)}, is no weight.")

    def fill(self, whole: Tensor | QuantizedWeight) -> None:
        """Raise, as `of`.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"One tensor of two, {list(whole.shape)}, is no weight.")

    def stored(self) -> Tensor:
        """Raise: quantized weights are not written.

        Raises:
            ValueError: always.
        """
        raise ValueError("A model of a quantized checkpoint cannot be saved.")

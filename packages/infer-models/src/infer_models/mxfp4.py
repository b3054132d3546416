"""MXFP4: weights of four bits in blocks of 32 that share a power of two.

    blocks [..., columns / 32, 16] uint8    two numbers a byte, the first in the lower four bits: a sign, two bits of
                                            exponent, one of mantissa
    scales [..., columns / 32] uint8        the exponent of a block's power of two, plus 127

Open Compute Project, "OCP Microscaling Formats (MX) Specification", 1.0, 2023.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from infer_models.weights import StoredWeight

BLOCK = 32
"""Numbers that share a scale."""
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_ROWS_AT_ONCE = 512


def dequantize_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers of blocks [rows, columns / 32, 16], in fp32 [rows, columns].

    Args:
        blocks: uint8, see above.
        scales: uint8 [rows, columns / 32].
    """
    numbers = torch.tensor([*_POSITIVE, *(-value for value in _POSITIVE)], device=blocks.device)
    pairs = torch.stack([numbers.repeat(16), numbers.repeat_interleave(16)], dim=1)  # of each byte: [256, 2]
    values = pairs[blocks.int()].flatten(-2)
    return torch.ldexp(values, scales.int()[..., None] - 127).flatten(-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4Weight:
    """A parameter [items, rows, columns] that a checkpoint has as blocks and scales.

    Attributes:
        target: the parameter, of a rank a part of it.
        blocks_shape: [items, rows, columns / 32, 16].
        arrange: turns an item [rows, columns] of the checkpoint's numbers into this rank's item of `target`.
        blocks_name: of the tensor with the blocks.
        scales_name: of the tensor with the scales.
    """

    target: Tensor
    blocks_shape: tuple[int, ...]
    arrange: Callable[[Tensor], Tensor]
    blocks_name: str
    scales_name: str

    def tensors(self) -> Mapping[str, StoredWeight]:
        """Return both tensors by their names."""
        shapes = {self.blocks_name: self.blocks_shape, self.scales_name: self.blocks_shape[:-1]}
        return MappingProxyType({name: Mxfp4Part(weight=self, shape=shape) for name, shape in shapes.items()})

    def fill_item(self, index: int, blocks: Tensor, scales: Tensor) -> None:
        """Dequantize an item, blocks [rows, columns / 32, 16] and scales [rows, columns / 32], into `target`."""
        rows = [
            dequantize_mxfp4(*part).to(self.target.dtype)
            for part in zip(torch.split(blocks, _ROWS_AT_ONCE), torch.split(scales, _ROWS_AT_ONCE), strict=True)
        ]
        self.target[index].copy_(self.arrange(torch.cat(rows)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4Part:
    """One of the two tensors of an `Mxfp4Weight`; it is read with the other one, and never written."""

    weight: Mxfp4Weight
    shape: tuple[int, ...]

    @property
    def num_weights(self) -> int:
        """Two for each byte of the blocks."""
        return 2 * math.prod(self.shape) if self.shape == self.weight.blocks_shape else 0

    @property
    def target(self) -> Tensor:
        """The parameter."""
        return self.weight.target

    def of(self, whole: Tensor) -> Tensor:
        """Raise: one tensor alone has no numbers.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"One tensor of two, {list(whole.shape)}, is no weight.")

    def fill(self, whole: Tensor) -> None:
        """Raise, as `of`.

        Raises:
            ValueError: always.
        """
        self.of(whole)

    def stored(self) -> Tensor:
        """Raise: quantized weights are not written.

        Raises:
            ValueError: always.
        """
        raise ValueError("A model of a quantized checkpoint cannot be saved.")

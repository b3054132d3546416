"""Tile shapes of products whose bits must not depend on the batch: by the device, the dtype and the layer alone."""

from dataclasses import dataclass

import torch

from infer_kernels.gpu import describe_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTile:
    """What a program computes at once.

    Attributes:
        rows: rows of the input and the output.
        columns: columns of the output.
        inner: columns of the input that are multiplied in one iteration.
        num_warps: number of warps of a program.
        num_stages: iterations whose loads may be in flight.
    """

    rows: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int


_HALF_PRECISION = {
    8: ProductTile(rows=64, columns=128, inner=64, num_warps=4, num_stages=3),
    9: ProductTile(rows=64, columns=128, inner=64, num_warps=4, num_stages=4),
    12: ProductTile(rows=64, columns=128, inner=32, num_warps=4, num_stages=4),
}
"""Tiles for bf16 and fp16 by the major version of the compute capability. Others take those of 12, which fit them."""

_FULL_PRECISION = ProductTile(rows=32, columns=64, inner=32, num_warps=4, num_stages=3)
"""For fp32, which is multiplied without tensor cores."""

_UNALIGNED = ProductTile(rows=32, columns=32, inner=32, num_warps=4, num_stages=2)
"""For rows of the weight that do not start on multiples of 16 elements: loaded one by one, which takes registers."""


def choose_product_tile(device: torch.device, dtype: torch.dtype, *in_features: int) -> ProductTile:
    """Return the tile of layers with so many inputs."""
    if any(inputs % 16 for inputs in in_features):
        return _UNALIGNED
    if dtype.itemsize == 4:
        return _FULL_PRECISION
    major, _ = describe_gpu(device).capability
    return _HALF_PRECISION.get(major, _HALF_PRECISION[12])

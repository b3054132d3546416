"""Tile shapes of products whose bits must not depend on the batch: by the device, the dtype and the layer.

On sm_90 a tile of many rows is larger: it reads a byte from L2 for more products. Its sums have the order and, as an
H200 has shown, the bits of the smaller tile, so that a row of a batch still has the bits that it has alone
(`tests/gpu/test_ops_on_gpu.py`).
"""

from dataclasses import dataclass

import torch

from infer_kernels.gpu import Gpu, describe_gpu
from infer_kernels.integers import cdiv


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTile:
    """The tile that a program computes at once.

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
"""Tiles for bf16 and fp16 by `Gpu.tile_major`. Others take those of 12, which fit them."""

_MANY_ROWS = ProductTile(rows=128, columns=128, inner=64, num_warps=8, num_stages=3)
_LEAST_ROWS = 256
"""Rows for which sm_90 takes `_MANY_ROWS`, if they make a program for each multiprocessor. Later GPUs do not, as none
has shown that its larger tile has the same bits.
"""

_MANY_ROWS_OF_EXPERTS = ProductTile(rows=128, columns=256, inner=64, num_warps=8, num_stages=3)
_LEAST_ROWS_OF_AN_EXPERT = 128
"""Likewise of experts, of whose products there are always many."""

_FULL_PRECISION = ProductTile(rows=32, columns=64, inner=32, num_warps=4, num_stages=3)
"""For fp32, which is multiplied without tensor cores."""

_UNALIGNED = ProductTile(rows=32, columns=32, inner=32, num_warps=4, num_stages=2)
"""For rows of the weight that do not start on multiples of 16 elements: loaded one by one, which takes registers."""


def choose_product_tile(
    device: torch.device, dtype: torch.dtype, *, rows: int, in_features: int, out_features: int
) -> ProductTile:
    """Return the tile of a layer over `rows` rows."""
    small, gpu = _small_tile(device, dtype, in_features), describe_gpu(device)
    num_programs = cdiv(rows, _MANY_ROWS.rows) * cdiv(out_features, _MANY_ROWS.columns)
    is_large = rows >= _LEAST_ROWS and num_programs >= gpu.num_sms
    return _MANY_ROWS if is_large and _takes_many_rows(small, gpu) else small


def choose_experts_tile(
    device: torch.device, dtype: torch.dtype, *in_features: int, rows_of_expert: int
) -> ProductTile:
    """Return the tile of experts' layers with so many inputs, which `rows_of_expert` rows take on average."""
    small = _small_tile(device, dtype, *in_features)
    is_large = rows_of_expert >= _LEAST_ROWS_OF_AN_EXPERT
    return _MANY_ROWS_OF_EXPERTS if is_large and _takes_many_rows(small, describe_gpu(device)) else small


def _takes_many_rows(small: ProductTile, gpu: Gpu) -> bool:
    return small is _HALF_PRECISION[9] and gpu.capability[0] == 9


def _small_tile(device: torch.device, dtype: torch.dtype, *in_features: int) -> ProductTile:
    """Return the tile of layers with so many inputs, for any number of rows."""
    if any(inputs % 16 for inputs in in_features):
        return _UNALIGNED
    if dtype.itemsize == 4:
        return _FULL_PRECISION
    return _HALF_PRECISION.get(describe_gpu(device).tile_major, _HALF_PRECISION[12])

"""Products of tiles of rows that are all alike: a row's bits then do not depend on the other rows and their number.

A tile is 16 rows, the last filled up with zeros, in memory of its own with rows that start on cache lines, as libraries
also look at alignment. Tiles of 8 rows took longer for many rows, of 32 for one.
"""

from collections.abc import Callable

from torch import Tensor

from infer_kernels.integers import cdiv

_TILE_ROWS = 16
_LINE = 64
"""Bytes of a cache line."""


def multiply_row_tiles(x: Tensor, multiply: Callable[[Tensor], Tensor], *, out: Tensor) -> Tensor:
    """Write what `multiply` makes of tiles [16, in_features] of `x` [rows, in_features] to `out` [rows, out_features].

    Differentiable if `multiply` is.
    """
    rows, in_features = x.shape
    stride = cdiv(in_features * x.element_size(), _LINE) * _LINE // x.element_size()
    for start in range(0, rows, _TILE_ROWS):
        taken = x[start : start + _TILE_ROWS]
        # The same memory layout for every tile, whatever that of `x`.
        tile = x.new_zeros(_TILE_ROWS, stride)[:, :in_features]
        tile[: taken.shape[0]] = taken
        out[start : start + _TILE_ROWS] = multiply(tile)[: taken.shape[0]]
    return out

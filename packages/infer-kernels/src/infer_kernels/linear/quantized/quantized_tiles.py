"""Tile shapes of products with quantized weights: by the device, the dtype of x, the weight, and the rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from infer_kernels.gpu import describe_gpu
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_INVARIANT_ROWS = 64
"""Rows of a tile where bits must not depend on how many there are."""
_PROGRAMS_PER_SM = 4
"""That are wanted of a product of few rows: loads of as many are in flight, and hide each other's waits."""
_LEAST_INNER = 512
"""Inputs that are worth a program of their own."""
_MAX_SPLITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTile:
    """The tile that a program computes at once.

    Attributes:
        outputs: rows of the weight.
        rows: rows of x.
        inner: inputs of a product.
        steps: products of an iteration.
        num_warps: number of warps of a program.
        num_stages: iterations whose loads may be in flight.
    """

    outputs: int
    rows: int
    inner: int
    steps: int = 1
    num_warps: int
    num_stages: int

    @property
    def span(self) -> int:
        """Inputs of an iteration."""
        return self.inner * self.steps


def _tile(outputs: int, rows: int, inner: int, num_warps: int, num_stages: int) -> QuantizedTile:
    return QuantizedTile(outputs=outputs, rows=rows, inner=inner, num_warps=num_warps, num_stages=num_stages)


_FEW = {16: _tile(64, 16, 128, 4, 4), 32: _tile(64, 32, 128, 4, 3)}
_HALF_PRECISION = {
    8: {**_FEW, 64: _tile(128, 64, 64, 8, 3), 128: _tile(128, 128, 32, 8, 3)},
    9: {**_FEW, 64: _tile(128, 64, 64, 8, 4), 128: _tile(128, 128, 64, 8, 4)},
}
"""Tiles for bf16 and fp16, by `Gpu.tile_major` and by rows as a power of two. Others take those of 8, which fit."""

_FEW_WORDS = {16: _tile(128, 16, 128, 4, 4), 32: _tile(128, 32, 128, 4, 3)}
_WORDS = {
    8: {
        16: _tile(64, 16, 128, 4, 4),
        32: _tile(64, 32, 64, 4, 4),
        64: _tile(128, 64, 64, 8, 3),
        128: _tile(128, 128, 32, 8, 3),
    },
    9: {**_FEW_WORDS, 64: _tile(64, 64, 128, 4, 3), 128: _tile(128, 128, 64, 8, 4)},
}
"""For bf16 and fp16 times codes in the order of words, likewise: more numbers for each instruction around them."""
_WIDE_WORDS = _tile(128, 64, 128, 4, 3)
"""Likewise on sm_90 for 64 rows where a scale is a row's: sums of groups would not fit registers beside those of all.
Not where the tile is one for any number of rows: inputs are not divided, and programs would be few.
"""

_FULL_PRECISION = _tile(64, 32, 32, 4, 2)
"""For fp32, which is multiplied without tensor cores."""

_UNALIGNED = _tile(32, 32, 32, 8, 2)
"""For rows that do not start on multiples of 16 bytes of codes: loaded one by one, which takes registers."""

_MICROSCALED = {
    8: {16: _tile(64, 16, 128, 4, 4), 32: _tile(64, 32, 128, 4, 3), 64: _tile(64, 64, 64, 4, 3)},
    9: {
        16: replace(_tile(128, 16, 128, 4, 3), steps=2),
        32: _tile(128, 32, 128, 4, 3),
        64: _tile(128, 64, 128, 4, 3),
    },
}
"""For tiled MXFP4 with bf16 and tiled NVFP4, likewise, of at most 64 rows. What an iteration does beside making numbers
of codes is a third of it where a thread makes 128 numbers, and half where it makes 64. Two products of 128 inputs take
fewer registers than one of 256.
"""
_MICROSCALED_FP16 = replace(_tile(64, 64, 32, 4, 2), steps=4)
"""Likewise with fp16, whose scales meet the sums of each group."""
_MICROSCALED_FP32 = _tile(32, 32, 32, 4, 2)

_FEW_FP8 = {16: _tile(64, 16, 128, 4, 4), 32: _tile(64, 32, 128, 4, 4), 64: _tile(128, 64, 128, 8, 3)}
_FP8 = {
    8: {**_FEW_FP8, 128: _tile(128, 128, 64, 8, 3)},
    9: {**_FEW_FP8, 128: _tile(128, 128, 128, 8, 3)},
}
"""For products of fp8 with fp8, likewise. Sums over more than 128 inputs are added in fp32."""


def choose_quantized_tile(
    weight: QuantizedWeight, dtype: torch.dtype, *, rows: int, is_invariant: bool
) -> QuantizedTile:
    """Return the tile of a product of `rows` rows of `dtype`; with `is_invariant` the same for any number."""
    rows = _rows_of_tile(rows, is_invariant=is_invariant)
    if weight.traits.is_tiled:
        return _choose_microscaled_tile(weight, dtype, rows=min(rows, 64))
    if not _is_aligned(weight):
        tile = _UNALIGNED
    elif dtype.itemsize == 4:
        tile = _FULL_PRECISION
    else:
        tiles = _WORDS if weight.order == "words" else _HALF_PRECISION
        tile = _of_device(tiles, weight.device, rows)
        is_wide = tile is _WORDS[9][_WIDE_WORDS.rows] and weight.scales.shape[-1] == 1
        tile = _WIDE_WORDS if is_wide and not is_invariant else tile
    return _fit_groups(replace(tile, rows=min(rows, tile.rows)), weight)


def choose_fp8_tile(weight: QuantizedWeight, *, rows: int, is_invariant: bool) -> QuantizedTile:
    """Return the tile of a product of rows in fp8 with a weight in fp8; with `is_invariant` the same for any number."""
    rows = _rows_of_tile(rows, is_invariant=is_invariant)
    if not _is_aligned(weight):
        return _fit_groups(replace(_UNALIGNED, rows=min(rows, _UNALIGNED.rows)), weight)
    return _fit_groups(_of_device(_FP8, weight.device, rows), weight)


def choose_splits(weight: QuantizedWeight, tile: QuantizedTile, *, rows: int) -> tuple[int, int]:
    """Return in how many parts the inputs are multiplied by programs of their own, and the iterations of each.

    A weight of few outputs would leave multiprocessors without work, where few rows make few programs.
    """
    iterations = cdiv(weight.in_features, tile.span)
    if rows > _INVARIANT_ROWS:
        return 1, iterations
    programs = cdiv(weight.out_features, tile.outputs) * cdiv(next_power_of_2(rows), tile.rows)
    wanted = _PROGRAMS_PER_SM * describe_gpu(weight.device).num_sms // programs
    splits = max(1, min(wanted, _MAX_SPLITS, weight.in_features // _LEAST_INNER))
    each = cdiv(iterations, splits)
    return cdiv(iterations, each), each


def _choose_microscaled_tile(weight: QuantizedWeight, dtype: torch.dtype, *, rows: int) -> QuantizedTile:
    if dtype == torch.float32 or (dtype == torch.float16 and weight.encoding == "mxfp4_tiled"):
        tile = _MICROSCALED_FP16 if dtype == torch.float16 else _MICROSCALED_FP32
        return replace(tile, rows=min(rows, tile.rows))
    return _of_device(_MICROSCALED, weight.device, rows)


def _of_device(tiles: Mapping[int, Mapping[int, QuantizedTile]], device: torch.device, rows: int) -> QuantizedTile:
    """Return the tile of a table.

    On GPUs like sm_90 that are later, few rows take that of 8. Of those of 9 not all compile for sm_100 (groups of 32
    in words), and two products of an iteration, with one sum, were reported wrong on sm_103 (triton-lang/triton#10821).
    """
    gpu = describe_gpu(device)
    major = 8 if rows < _INVARIANT_ROWS and gpu.capability[0] != 9 else gpu.tile_major
    return tiles.get(major, tiles[8])[rows]


def _rows_of_tile(rows: int, *, is_invariant: bool) -> int:
    return _INVARIANT_ROWS if is_invariant else min(128, max(16, next_power_of_2(rows)))


def _is_aligned(weight: QuantizedWeight) -> bool:
    """Whether rows of codes, and of x, start on multiples of 16 bytes where their tensors do."""
    return weight.values.stride(-2) % 16 == 0 and weight.in_features % 16 == 0


def _fit_groups(tile: QuantizedTile, weight: QuantizedWeight) -> QuantizedTile:
    """Return `tile` with products that do not reach beyond a group of inputs, of which an iteration has more.

    Products with minimums may reach beyond, where groups are powers of two.
    """
    largest = weight.group_size & -weight.group_size  # power of two that divides it
    if weight.scales.shape[-1] == 1 or (weight.minimums is not None and largest == weight.group_size):
        return tile
    inner = min(tile.inner, largest)
    return replace(tile, inner=inner, steps=tile.inner // inner)

"""Tile shapes of the attention kernel, chosen from a table. Knows sizes and compute capabilities; knows no tensors.

No run-time tuning: a configuration depends on the model and the device alone, so that results do not change from run to
run. Each is compiled ahead of time by the tests for every architecture: it fits shared memory, and spills no registers
on sm_90.
"""

from dataclasses import dataclass

import triton


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """One way to launch the kernel.

    Attributes:
        rows: query rows of a tile, a power of two from 16: queries times the query heads of a key-value head.
        queries: queries of a tile, `rows` over the group.
        keys: keys per iteration, a power of two.
        num_warps: warps of a program.
        num_stages: iterations whose loads are in flight.
    """

    rows: int
    queries: int
    keys: int
    num_warps: int
    num_stages: int


def tile_config(
    *, decodes: bool, group: int, head_dim: int, block_size: int, itemsize: int, capability: tuple[int, int]
) -> TileConfig:
    """The configuration for decodes (one query per sequence) or for prefill chunks.

    Args:
        decodes: which of the two.
        group: query heads per key-value head.
        head_dim: elements of a head.
        block_size: tokens of a cache block.
        itemsize: bytes of an element of q and the caches.
        capability: of the device, such as (9, 0).
    """
    hopper = capability[0] in (9, 10)  # 227 KiB of shared memory and warpgroup matrix products
    width = triton.next_power_of_2(head_dim)
    if itemsize == 4:  # multiplied in full precision, without tensor cores: bound by registers
        rows, widest, num_warps, num_stages = 32, 32 if width <= 32 else 16, 8 if width == 256 else 4, 2
    elif decodes:
        rows, widest, num_warps, num_stages = 16, 64 if width <= 128 else 32, 4, 3
    elif width == 256:
        rows, widest, num_warps, num_stages = 32, 32, 4, 3 if hopper else 2
    elif width == 128 and not hopper:
        rows, widest, num_warps, num_stages = 64, 32, 4, 2
    else:
        rows, widest, num_warps, num_stages = 64, 64, 4, 3 if hopper else 2
    # A block of a power of two from 16 holds whole tiles; blocks of any other size are looked up key by key.
    keys = min(widest, block_size) if _is_power_of_two(block_size) and block_size >= 16 else min(widest, 32)
    rows = max(16 if decodes else rows, triton.next_power_of_2(group))
    return TileConfig(rows=rows, queries=rows // group, keys=keys, num_warps=num_warps, num_stages=num_stages)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0

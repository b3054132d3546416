"""Tile shapes of the attention kernels, chosen from a table.

No run-time tuning: a configuration depends on the model and the device alone, so that results do not change from run to
run, with the batch or with the size of blocks. Those of common models are compiled ahead of time by the tests for three
architectures: they fit shared memory, and in half precision spill no registers, unless blocks are smaller than a tile.
Decodes over an fp8 cache keep a few values in memory where `max_registers` says so, outside their loop over keys.
"""

from dataclasses import dataclass
from typing import Protocol

from infer_kernels.integers import next_power_of_2


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """One way to launch an attention kernel.

    Attributes:
        rows: query rows of a tile, a power of two from 16: queries times the query heads of a key-value head.
        keys: keys per iteration, a power of two.
        num_warps: warps of a program.
        num_stages: iterations whose loads are in flight.
        programs_per_sm: programs that share a multiprocessor, where the grid is fixed.
        max_registers: that a thread may have, so that they fit; None: as many as the compiler likes.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    max_registers: int | None = None


class ConfigTable(Protocol):
    """Chooses a configuration by what the model and the device are."""

    def __call__(
        self, *, group: int, head_dim: int, itemsize: int, cache_itemsize: int, capability: tuple[int, int]
    ) -> TileConfig:
        """Return it; arguments as for `decode_config`."""


def decode_config(
    *, group: int, head_dim: int, itemsize: int, cache_itemsize: int, capability: tuple[int, int]
) -> TileConfig:
    """The configuration of `paged_decode`.

    Args:
        group: query heads per key-value head.
        head_dim: elements of a head.
        itemsize: bytes of an element of q.
        cache_itemsize: bytes of an element of the caches, 1 for fp8.
        capability: of the device, such as (9, 0).
    """
    del cache_itemsize
    width = next_power_of_2(head_dim)
    rows = max(16, next_power_of_2(group))
    if itemsize == 4:
        return _in_full_precision(width, rows)
    return TileConfig(
        rows=rows,
        keys=64 if width <= 128 else 32,
        num_warps=4 if rows <= 32 else 8,
        num_stages=3 if rows <= 32 else 2,
        programs_per_sm=3,
        # Three programs of four warps. Where that is too few, what a program needs once lies in memory meanwhile.
        max_registers=168 if width == 128 and rows <= 32 and capability[0] in (9, 10) else None,
    )


def prefill_config(
    *, group: int, head_dim: int, itemsize: int, cache_itemsize: int, capability: tuple[int, int]
) -> TileConfig:
    """The configuration of `paged_prefill`; arguments as for `decode_config`."""
    hopper = capability[0] in (9, 10)  # 227 KiB of shared memory and warpgroup matrix products
    width = next_power_of_2(head_dim)
    if itemsize == 4:
        return _in_full_precision(width, max(32, next_power_of_2(group)))
    is_fp8 = cache_itemsize == 1  # codes become numbers in registers, on their way into shared memory
    if width == 256 and hopper and is_fp8:
        rows, keys, num_warps, num_stages = 128, 32, 8, 3
    elif width == 128 and not hopper and is_fp8:
        rows, keys, num_warps, num_stages = 64, 32, 8, 2
    elif width == 256:
        rows, keys, num_warps, num_stages = 64, 32, 8, 3 if hopper or capability == (8, 0) else 2
    elif width == 128 and not hopper:
        # Two programs share an SM; only on sm_80 its memory has room for a third stage of both.
        rows, keys, num_warps, num_stages = 64, 32, 4, 3 if capability == (8, 0) else 2
    elif hopper:
        rows, keys, num_warps, num_stages = 128, 64, 8, 3
    else:
        rows, keys, num_warps, num_stages = 64, 64, 4, 3
    return TileConfig(
        rows=max(rows, next_power_of_2(group)),
        keys=keys,
        num_warps=num_warps,
        num_stages=num_stages,
        programs_per_sm=2 if num_warps == 4 else 1,
    )


def _in_full_precision(width: int, rows: int) -> TileConfig:
    """fp32 is multiplied without tensor cores: bound by registers."""
    return TileConfig(
        rows=rows,
        keys=32 if width <= 32 else 16,
        num_warps=8 if width == 256 else 4,
        num_stages=2,
        programs_per_sm=1,
    )

"""Tile shapes of the attention kernels, chosen from a table.

No run-time tuning: a configuration depends on the model and the device alone, so that results do not change from run to
run, with the batch or with the size of blocks. Those of common models are compiled ahead of time by the tests for
sm_80, sm_89, sm_90, sm_100 and sm_120: they fit shared memory, as many programs share a multiprocessor as the
configuration says, and no registers are spilled, but for up to 40 bytes of prefill on sm_100 and 16 of decodes.
"""

from dataclasses import dataclass
from typing import Protocol

from infer_kernels.gpu import shared_memory_kib
from infer_kernels.integers import next_power_of_2

_BESIDE_TILES = 8
"""KiB of a decode's shared memory for all but keys and values, where it has at most 32 rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """One way to launch an attention kernel.

    Attributes:
        rows: query rows of a tile, a power of two from 16: queries times the query heads of a key-value head.
        keys: keys per iteration, a power of two.
        num_warps: warps of a program.
        num_stages: iterations whose loads are in flight.
        programs_per_sm: programs that share a multiprocessor, which the grid of captured steps counts on: items are
            handed out by number, and those of a program that waits for a place would be computed last and alone. The
            compiler gets `max_registers` for it; `test_ahead_of_time.py` sees that shared memory has the room.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    programs_per_sm: int

    @property
    def max_registers(self) -> int:
        """Registers of a thread, 255 at most, with which so many programs share the 65,536 of a multiprocessor.

        Told of no limit, the compiler aims at some occupancy of its own, and spills for it.
        """
        return min(255, 65_536 // (32 * self.num_warps * self.programs_per_sm) // 8 * 8)


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
        capability: compute capability of the device, such as (9, 0).
    """
    width = next_power_of_2(head_dim)
    rows = max(16, next_power_of_2(group))
    if itemsize == 4:
        return _in_full_precision(width, rows, programs_per_sm=2 if cache_itemsize == 1 else 3)
    num_stages = 3 if rows <= 32 else 2

    def num_programs(keys: int) -> int:
        """Programs whose keys and values in flight share an SM's memory."""
        in_flight = 2 * (num_stages - 1) * keys * width * cache_itemsize // 1024
        return shared_memory_kib(capability) // (in_flight + _BESIDE_TILES)

    keys = 64 if width <= 128 else 32
    if not num_programs(keys):
        keys = 16
    return TileConfig(
        rows=rows,
        keys=keys,
        num_warps=8 if rows > 32 or width == 512 else 4,
        num_stages=num_stages,
        programs_per_sm=min(_programs_without_spills(rows, width, is_fp8=cache_itemsize == 1), num_programs(keys)),
    )


def _programs_without_spills(rows: int, width: int, *, is_fp8: bool) -> int:
    """Programs of a decode that have registers enough on an SM: those of two have all that a thread can have."""
    if rows > 32 or width == 512:
        return 1
    if width <= 64:
        return 3 if is_fp8 else 4
    return 2 if width == 256 or is_fp8 else 3


def prefill_config(
    *, group: int, head_dim: int, itemsize: int, cache_itemsize: int, capability: tuple[int, int]
) -> TileConfig:
    """The configuration of `paged_prefill`; arguments as for `decode_config`."""
    hopper = capability[0] in (9, 10, 11)  # 227 KiB of shared memory and warpgroup matrix products
    has_room = shared_memory_kib(capability) >= 164
    width = next_power_of_2(head_dim)
    if itemsize == 4:
        return _in_full_precision(width, max(16 if width == 512 else 32, next_power_of_2(group)), programs_per_sm=2)
    is_fp8 = cache_itemsize == 1  # codes become numbers in registers, on their way into shared memory
    if width == 256 and capability[0] == 9:
        rows, keys, num_warps, num_stages = 128, 32, 8, 3
    elif width == 512:
        # 64 rows, as many as products of warpgroups have, take more registers than there are.
        rows, keys, num_warps, num_stages = 32, 32, 8, 3 if hopper else 2
    elif width == 128 and not hopper and is_fp8:
        rows, keys, num_warps, num_stages = 64, 32, 8, 2
    elif width == 256:
        rows, keys, num_warps, num_stages = 64, 32, 8, 3 if has_room else 2
    elif width == 128 and not hopper:
        # Two programs share an SM; only on sm_80 and sm_87 its memory has room for a third stage of both.
        rows, keys, num_warps, num_stages = 64, 32, 4, 3 if has_room else 2
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


def _in_full_precision(width: int, rows: int, *, programs_per_sm: int) -> TileConfig:
    """fp32 is multiplied without tensor cores: bound by registers."""
    return TileConfig(
        rows=rows,
        keys=32 if width <= 32 else 16,
        num_warps={256: 8, 512: 16}.get(width, 4),
        num_stages=2,
        programs_per_sm=1 if width >= 256 else programs_per_sm,
    )

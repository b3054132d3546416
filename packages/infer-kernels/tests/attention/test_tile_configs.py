"""Devices that are named nowhere take the tiles of those that they are like."""

import itertools

import pytest

from infer_kernels.attention.triton.tile_configs import ConfigTable, TileConfig, decode_config, prefill_config


def tiles(table: ConfigTable, capability: tuple[int, int]) -> list[TileConfig]:
    """Return the tiles of all heads and dtypes."""
    return [
        table(group=group, head_dim=head_dim, itemsize=itemsize, cache_itemsize=cache_itemsize, capability=capability)
        for group, head_dim, (itemsize, cache_itemsize) in itertools.product(
            (1, 4, 48), (64, 128, 256, 512), ((2, 2), (2, 1), (4, 4))
        )
    ]


@pytest.mark.parametrize("table", [decode_config, prefill_config])
@pytest.mark.parametrize(
    ("capability", "like"),
    [((10, 3), (10, 0)), ((11, 0), (10, 0)), ((10, 7), (10, 0)), ((8, 7), (8, 0)), ((12, 1), (12, 0))],
    ids=str,
)
def test_a_later_gpu_of_one_architecture_has_its_tiles(
    table: ConfigTable, capability: tuple[int, int], like: tuple[int, int]
) -> None:
    assert tiles(table, capability) == tiles(table, like)


def test_decodes_share_a_multiprocessor_as_its_memory_allows() -> None:
    heads = {"group": 4, "head_dim": 128, "itemsize": 2, "cache_itemsize": 2}
    programs = {major: decode_config(**heads, capability=(major, 0)).programs_per_sm for major in (8, 9, 10, 12)}
    assert programs == {8: 2, 9: 3, 10: 3, 12: 1}

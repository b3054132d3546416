"""The KV memory: its shape, its strides, its price."""

from collections.abc import Mapping, Sequence

import pytest
import torch

from infer_cache import KVPool
from infer_kernels import KVScales
from infer_proofs.kernels.devices import ON_GPU

SIZES = {"kv_heads": 4, "block_size": 5, "head_dim": 16}


def pool(
    *,
    group_of_layer: Sequence[int] = (0, 0),
    num_blocks: Sequence[int] = (3,),
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    sizes: Mapping[str, int] | None = None,
) -> KVPool:
    return KVPool(
        group_of_layer=group_of_layer,
        num_blocks=num_blocks,
        dtype=dtype,
        device=torch.device(device),
        scales=None,
        **{**SIZES, **(sizes or {})},
    )


@pytest.mark.covers("kv-cache/block-pool")
def test_a_layers_cache_is_blocks_by_heads_by_tokens_and_starts_at_zero() -> None:
    cache = pool(dtype=torch.bfloat16)
    for tensor in (cache.key_cache(1), cache.value_cache(1)):
        assert tensor.shape == (3, 4, 5, 16)
        assert tensor.dtype == torch.bfloat16
        assert not tensor.any()
    assert (cache.num_layers, cache.num_blocks, cache.block_size) == (2, (3,), 5)


def test_layers_of_a_group_may_have_heads_of_their_own() -> None:
    cache = KVPool(
        group_of_layer=(0, 1, None, 0),
        num_blocks=(3, 2),
        kv_heads=(4, 1, 9, 2),
        block_size=5,
        head_dim=(16, 64, 9, 32),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    shapes = {layer: tuple(cache.value_cache(layer).shape) for layer in cache.layers}
    assert shapes == {0: (3, 4, 5, 16), 1: (2, 1, 5, 64), 3: (3, 2, 5, 32)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_keys_and_values_are_contiguous(dtype: torch.dtype) -> None:
    cache = pool(dtype=dtype)
    assert cache.key_cache(0).is_contiguous()
    assert cache.value_cache(0).is_contiguous()


def test_layers_keys_and_values_share_no_memory() -> None:
    cache = pool()
    cache.key_cache(0).fill_(1)
    cache.value_cache(1).fill_(2)
    assert not cache.key_cache(1).any()
    assert not cache.value_cache(0).any()
    assert (cache.key_cache(0) == 1).all()


@pytest.mark.covers("kv-cache/block-pool")
def test_bytes_per_block_is_what_a_block_takes_of_the_storage() -> None:
    cache = pool(dtype=torch.float16, num_blocks=[7])
    layers = range(cache.num_layers)
    total = sum(cache.key_cache(layer).nbytes + cache.value_cache(layer).nbytes for layer in layers)
    assert total == 7 * KVPool.bytes_per_block(num_layers=2, kv_heads=4, block_size=5, head_dim=16, dtype=torch.float16)


def test_a_pool_of_no_blocks_is_legal() -> None:
    assert pool(num_blocks=[0]).key_cache(0).shape == (0, 4, 5, 16)


def test_each_group_of_layers_has_blocks_of_its_own_number() -> None:
    cache = pool(group_of_layer=[1, 0, 1], num_blocks=[7, 2])
    assert [cache.group(layer) for layer in range(3)] == [1, 0, 1]
    assert [len(cache.key_cache(layer)) for layer in range(3)] == [2, 7, 2]
    assert [len(cache.value_cache(layer)) for layer in range(3)] == [2, 7, 2]
    assert (cache.num_layers, cache.num_blocks) == (3, (7, 2))


def test_layers_of_all_groups_have_memory_of_their_own() -> None:
    cache = pool(group_of_layer=[1, 0, 1, 0], num_blocks=[3, 2])
    tensors = [tensor for layer in range(4) for tensor in (cache.key_cache(layer), cache.value_cache(layer))]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))


@pytest.mark.parametrize(("name", "size"), [("kv_heads", 0), ("block_size", 0), ("head_dim", -16)])
def test_a_size_out_of_range_is_refused_by_name(name: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is {size}"):
        pool(sizes={name: size})


def test_layers_and_blocks_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="`num_layers` is 0"):
        pool(group_of_layer=[])
    with pytest.raises(ValueError, match=r"`num_blocks` is \[3, -1\]"):
        pool(group_of_layer=[0, 1], num_blocks=[3, -1])


@pytest.mark.parametrize(("group_of_layer", "num_blocks"), [([0, 1], [3]), ([-1], [3]), ([0], [])])
def test_a_layer_of_a_group_without_blocks_is_refused(group_of_layer: list[int], num_blocks: list[int]) -> None:
    with pytest.raises(ValueError, match="`group_of_layer` is"):
        pool(group_of_layer=group_of_layer, num_blocks=num_blocks)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_GPU)])
def test_a_head_of_a_block_is_one_piece_on_a_gpu(device: str) -> None:
    cache = pool(dtype=torch.float16, device=device)
    assert cache.key_cache(0).is_contiguous()
    assert cache.value_cache(0).device.type == "cuda"


def test_a_pool_of_eight_bits_takes_half_of_bf16_and_int8_a_scale_for_each_row() -> None:
    sizes = {
        dtype: KVPool.bytes_per_block(num_layers=2, kv_heads=4, block_size=5, head_dim=64, dtype=dtype)
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int8)
    }
    assert sizes[torch.float8_e4m3fn] * 2 == sizes[torch.bfloat16]
    assert sizes[torch.int8] == sizes[torch.float8_e4m3fn] // 64 * 68
    for dtype in (torch.float8_e4m3fn, torch.int8):
        made = KVPool(
            group_of_layer=[0, 0],
            num_blocks=[3],
            kv_heads=4,
            block_size=5,
            head_dim=64,
            dtype=dtype,
            device=torch.device("cpu"),
        )
        taken = sum(made.key_cache(layer).nbytes + made.value_cache(layer).nbytes for layer in (0, 1))
        assert taken == 3 * sizes[dtype]


def test_the_format_names_the_dtype_and_scales_that_are_not_1() -> None:
    def pool_of(dtype: torch.dtype, *scales: KVScales) -> KVPool:
        return KVPool(
            group_of_layer=[0, 0],
            num_blocks=[1],
            kv_heads=1,
            block_size=1,
            head_dim=16,
            dtype=dtype,
            device=torch.device("cpu"),
            scales=scales or None,
        )

    fp8 = torch.float8_e4m3fn
    assert pool_of(torch.int8).kv_format == "int8"
    assert pool_of(fp8).kv_format == pool_of(fp8, KVScales(), KVScales()).kv_format == "float8_e4m3fn"
    assert pool_of(fp8, KVScales(), KVScales(keys=0.5)).kv_format == "float8_e4m3fn [(1.0, 1.0), (0.5, 1.0)]"
    with pytest.raises(ValueError, match=r"`scales` are of 1 layers; pass one for each of 2"):
        pool_of(fp8, KVScales())

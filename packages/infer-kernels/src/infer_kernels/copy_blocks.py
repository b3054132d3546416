"""Copying whole blocks inside a paged cache. Knows blocks; knows no sequence and no reference count.

    k_cache[destination] = k_cache[source]        (v likewise; for each pair)

Bytes moved: 4 * n * kv_heads * block_size * head_dim * itemsize.

Precision: a copy.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.checks import require_device, require_integer, require_rank, require_shape
from infer_kernels.dispatch import takes_triton
from infer_kernels.store_kv import check_cache

_TILE_ELEMENTS = 4096
"""Elements of each cache that a program copies: several per block and head, so that one block keeps a device busy."""


def copy_blocks_reference(
    k_cache: Tensor, v_cache: Tensor, sources: Tensor, destinations: Tensor
) -> tuple[Tensor, Tensor]:
    """Copies of both caches with the blocks copied, one at a time; arguments as for `copy_blocks`."""
    k_copied, v_copied = k_cache.clone(), v_cache.clone()
    for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
        k_copied[destination] = k_cache[source]
        v_copied[destination] = v_cache[source]
    return k_copied, v_copied


@triton.jit(do_not_specialize_on_alignment=["sources", "destinations"])
def _copy_blocks_kernel(
    k_cache: tl.tensor,  # [blocks, kv_heads, block_size, head_dim]
    v_cache: tl.tensor,  # the same shape
    sources: tl.tensor,  # [n]
    destinations: tl.tensor,  # [n]
    kv_heads: tl.tensor,
    head_dim: tl.tensor,
    k_stride_block: tl.tensor,
    k_stride_head: tl.tensor,
    k_stride_token: tl.tensor,
    v_stride_block: tl.tensor,
    v_stride_head: tl.tensor,
    v_stride_token: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,  # of a block, copied by one program
    BLOCK_D: tl.constexpr,
) -> None:
    # Programs of a pair lie side by side, heads first:  pair | head | tokens of the block
    tiles: tl.constexpr = (BLOCK_SIZE + TOKENS - 1) // TOKENS
    program = tl.program_id(0)
    pair = program // (tiles * kv_heads)
    head = (program // tiles % kv_heads).to(tl.int64)
    token = program % tiles * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, BLOCK_D)[None, :]
    mask = (token < BLOCK_SIZE)[:, None] & (column < head_dim)
    source = tl.load(sources + pair).to(tl.int64)
    destination = tl.load(destinations + pair).to(tl.int64)
    k_at = k_cache + head * k_stride_head + token.to(tl.int64)[:, None] * k_stride_token + column
    v_at = v_cache + head * v_stride_head + token.to(tl.int64)[:, None] * v_stride_token + column
    keys = tl.load(k_at + source * k_stride_block, mask=mask)
    values = tl.load(v_at + source * v_stride_block, mask=mask)
    tl.store(k_at + destination * k_stride_block, keys, mask=mask)
    tl.store(v_at + destination * v_stride_block, values, mask=mask)


def copy_blocks_triton(k_cache: Tensor, v_cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Launch the kernel; arguments as for `copy_blocks`, unchecked."""
    _, kv_heads, block_size, head_dim = k_cache.shape
    pairs = sources.shape[0]
    if pairs == 0:
        return
    block_d = triton.next_power_of_2(head_dim)
    tokens = min(triton.next_power_of_2(block_size), max(1, _TILE_ELEMENTS // block_d))
    _copy_blocks_kernel[(pairs * kv_heads * triton.cdiv(block_size, tokens),)](
        k_cache,
        v_cache,
        sources,
        destinations,
        kv_heads,
        head_dim,
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        BLOCK_SIZE=block_size,
        TOKENS=tokens,
        BLOCK_D=block_d,
        num_warps=4,
        enable_fp_fusion=False,
    )


def copy_blocks_torch(k_cache: Tensor, v_cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """The fastest plain PyTorch; arguments as for `copy_blocks`, unchecked."""
    if sources.shape[0] == 0:
        return
    index = destinations.long()
    for cache in (k_cache, v_cache):
        cache.index_copy_(0, index, cache.index_select(0, sources))


def copy_blocks(k_cache: Tensor, v_cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copy whole blocks of keys and values to other blocks of the same caches.

    Args:
        k_cache: [blocks, kv_heads, block_size, head_dim], fp32, bf16 or fp16, any strides but 1 in the last dimension.
        v_cache: like `k_cache`; its strides may differ.
        sources: [n], int32 or int64: the blocks that are read.
        destinations: [n], int32 or int64: the blocks that are written, each at most once, and none of them a source:
            pairs are copied in no particular order. On CUDA neither this nor that all lie inside the cache is checked:
            it would stall the device.

    Raises:
        ValueError: a shape, device or stride does not fit, or (not on CUDA) a block is both source and destination.
        TypeError: a dtype does not fit.
    """
    check_cache(k_cache, v_cache)
    require_rank("sources", sources, "n")
    for name, blocks in (("sources", sources), ("destinations", destinations)):
        require_integer(name, blocks)
        require_device(name, blocks, "k_cache", k_cache.device)
    require_shape("destinations", destinations, sources.shape, "one for each of `sources`")
    if takes_triton(k_cache):
        copy_blocks_triton(k_cache, v_cache, sources.contiguous(), destinations.contiguous())
        return
    if both := sorted(set(sources.tolist()) & set(destinations.tolist())):
        raise ValueError(
            f"`destinations` holds {both}, which `sources` holds too; pass blocks that are written and never read"
        )
    copy_blocks_torch(k_cache, v_cache, sources, destinations)

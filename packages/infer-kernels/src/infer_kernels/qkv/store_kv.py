"""Writing keys and values into a paged cache.

    k_cache[slot // block_size, :, slot % block_size] = k        (v likewise; slot -1 is skipped)

Bytes moved: k and v read and written: 4 * tokens * kv_heads * head_dim * itemsize, less for a cache of eight bits.

Precision: a copy, or a row's codes as `kv_codes.py` defines them.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_float,
    require_integer,
    require_like,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_triton, wants_grad
from infer_kernels.integers import next_power_of_2
from infer_kernels.optional_triton import tl, triton
from infer_kernels.qkv.kv_codes import NO_SCALES, KVScales, encode_rows, head_dim_of


def store_kv_reference(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *, scales: KVScales = NO_SCALES
) -> tuple[Tensor, Tensor]:
    """Copies of both caches with the rows written, one at a time; arguments as for `store_kv`."""
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    block_size = k_cache.shape[2]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, :, slot % block_size] = encode_rows(k[token], k_cache.dtype, scales.keys)
            v_cache[slot // block_size, :, slot % block_size] = encode_rows(v[token], v_cache.dtype, scales.values)
    return k_cache, v_cache


@triton.jit
def encode_fp8(
    x: tl.tensor,  # floats
    scale: tl.tensor,
    cache: tl.tensor,  # of float8_e4m3fn, or of the dtype of `x`
) -> tl.tensor:
    """Return `x` as `cache` holds it: its fp8 codes, or itself."""
    if cache.dtype.element_ty == tl.float8e4nv:
        code = tl.div_rn(x.to(tl.float32), scale)
        # Not `tl.minimum`, which would make a number of NaN.
        code = tl.where(code > 448.0, 448.0, tl.where(code < -448.0, -448.0, code))
        x = code.to(tl.float8e4nv)
    return x


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _store_kv_kernel(
    k_cache: tl.tensor,  # [blocks, kv_heads, block_size, head_dim]
    v_cache: tl.tensor,  # the same shape
    k: tl.tensor,  # [tokens, kv_heads, head_dim]
    v: tl.tensor,  # [tokens, kv_heads, head_dim]
    slots: tl.tensor,  # [tokens]
    k_scale: tl.tensor,  # of an fp8 cache
    v_scale: tl.tensor,
    kv_heads: tl.tensor,
    head_dim: tl.tensor,
    k_cache_stride_block: tl.tensor,
    k_cache_stride_head: tl.tensor,
    k_cache_stride_token: tl.tensor,
    v_cache_stride_block: tl.tensor,
    v_cache_stride_head: tl.tensor,
    v_cache_stride_token: tl.tensor,
    k_stride_token: tl.tensor,
    k_stride_head: tl.tensor,
    v_stride_token: tl.tensor,
    v_stride_head: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    head = tl.arange(0, BLOCK_HEADS).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK_D)[None, :]
    mask = (head < kv_heads) & (column < head_dim)
    keys = tl.load(k + token * k_stride_token + head * k_stride_head + column, mask=mask)
    values = tl.load(v + token * v_stride_token + head * v_stride_head + column, mask=mask)
    k_at = k_cache + block * k_cache_stride_block + offset * k_cache_stride_token
    v_at = v_cache + block * v_cache_stride_block + offset * v_cache_stride_token
    tl.store(k_at + head * k_cache_stride_head + column, encode_fp8(keys, k_scale, k_cache), mask=mask)
    tl.store(v_at + head * v_cache_stride_head + column, encode_fp8(values, v_scale, v_cache), mask=mask)


def store_kv_triton(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *, scales: KVScales = NO_SCALES
) -> None:
    """Launch the kernel; arguments as for `store_kv`, unchecked."""
    tokens, kv_heads, head_dim = k.shape
    if tokens == 0:
        return
    block_heads = next_power_of_2(kv_heads)
    block_d = next_power_of_2(head_dim)
    _store_kv_kernel[(tokens,)](
        k_cache,
        v_cache,
        k,
        v,
        slots,
        scales.keys,
        scales.values,
        kv_heads,
        head_dim,
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        v_cache.stride(0),
        v_cache.stride(1),
        v_cache.stride(2),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        BLOCK_SIZE=k_cache.shape[2],
        BLOCK_HEADS=block_heads,
        BLOCK_D=block_d,
        num_warps=min(8, max(1, block_heads * block_d // 256)),
        enable_fp_fusion=False,
    )


class KVSlots:
    """A step's slots, decoded into blocks and offsets once for all layers.

    Attributes:
        slots: [tokens], as for `store_kv`.
        block_size: tokens of a block.
    """

    __slots__ = ("_places", "block_size", "slots")

    def __init__(self, slots: Tensor, *, block_size: int) -> None:
        """Take slots of a cache with blocks of `block_size` tokens."""
        self.slots = slots
        self.block_size = block_size
        self._places: tuple[Tensor | None, Tensor, Tensor] | None = None

    def places(self) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return (kept, block, offset): the tokens that are stored, None for all, and where, [kept tokens] int64."""
        if self._places is None:
            slots = self.slots.long()
            kept = None
            if slots.numel() and int(slots.min()) < 0:
                kept = (slots >= 0).nonzero().squeeze(1)
                slots = slots[kept]
            self._places = (kept, slots // self.block_size, slots % self.block_size)
        return self._places


def store_kv_torch(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: KVSlots, *, scales: KVScales) -> None:
    """The fastest plain PyTorch; arguments as for `store_kv`, unchecked; the cache's dtype may differ."""
    if wants_grad(k, v):
        k, v = k.detach(), v.detach()
    kept, block, offset = slots.places()
    for x, cache, scale in ((k, k_cache, scales.keys), (v, v_cache, scales.values)):
        rows = x if kept is None else x.index_select(0, kept)
        cache.transpose(1, 2).index_put_((block, offset), encode_rows(rows, cache.dtype, scale))


def check_cache(k_cache: Tensor, v_cache: Tensor) -> None:
    """Raise unless both caches are [blocks, kv_heads, block_size, row width], of one device and a dtype that it has."""
    require_rank("k_cache", k_cache, "blocks, kv_heads, block_size, head_dim")
    if k_cache.dtype == torch.int8:
        if takes_triton(k_cache):
            raise TypeError("`k_cache` has dtype torch.int8; kernels of a GPU take torch.float8_e4m3fn")
        if k_cache.shape[3] % 4 or k_cache.shape[3] <= 4:
            raise ValueError(f"`k_cache` has rows of {k_cache.shape[3]} bytes; pass head_dim + 4, a multiple of 4")
    elif k_cache.dtype != torch.float8_e4m3fn:
        require_float("k_cache", k_cache)
    require_shape("v_cache", v_cache, k_cache.shape, "the shape of `k_cache`")
    require_like("v_cache", v_cache, "k_cache", k_cache)
    if takes_triton(k_cache):
        require_dense_rows("k_cache", k_cache)
        require_dense_rows("v_cache", v_cache)


def require_storable(name: str, heads: Tensor, k_cache: Tensor) -> None:
    """Raise unless `heads`, an argument called `name`, is of a dtype that can be stored, and on the cache's device."""
    if takes_triton(k_cache) and k_cache.dtype != torch.float8_e4m3fn:
        require_like(name, heads, "k_cache", k_cache)
    else:
        require_float(name, heads)
        require_device(name, heads, "k_cache", k_cache.device)


def resolve_slots(slots: Tensor | KVSlots, k_cache: Tensor, *, tokens: int) -> KVSlots:
    """Return `slots` as `KVSlots`, or raise unless there is one for each of `tokens` tokens."""
    block_size = k_cache.shape[2]
    if isinstance(slots, Tensor):
        slots = KVSlots(slots, block_size=block_size)
    elif slots.block_size != block_size:
        raise ValueError(f"`slots` are of blocks of {slots.block_size} tokens but `k_cache` has blocks of {block_size}")
    require_integer("slots", slots.slots)
    require_shape("slots", slots.slots, (tokens,), "one for each token")
    require_device("slots", slots.slots, "k_cache", k_cache.device)
    return slots


def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor | KVSlots,
    *,
    scales: KVScales = NO_SCALES,
) -> None:
    """Write each token's keys and values into its slot of the cache.

    Args:
        k: [tokens, kv_heads, head_dim], of the device of the caches; may be a strided view. For a kernel of their dtype
            too, unless that is of eight bits; a CPU converts.
        v: like `k`.
        k_cache: [blocks, kv_heads, block_size, head_dim], fp32, bf16, fp16 or float8_e4m3fn, any strides, for a kernel
            with 1 in the last dimension. On a CPU also int8 [blocks, kv_heads, block_size, head_dim + 4], see
            `kv_codes.py`.
        v_cache: like `k_cache`; its strides may differ.
        slots: [tokens], int32 or int64: `block * block_size + offset`, each at most once; -1 skips the token. That they
            lie inside the cache is not checked: it would stall the device. What serves several layers of a step is
            wrapped in `KVSlots` once.
        scales: scales of an fp8 cache.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    check_cache(k_cache, v_cache)
    require_rank("k", k, "tokens, kv_heads, head_dim")
    tokens = k.shape[0]
    kv_heads, head_dim = k_cache.shape[1], head_dim_of(k_cache)
    for name, rows in (("k", k), ("v", v)):
        require_shape(name, rows, (tokens, kv_heads, head_dim), "kv_heads and head_dim as of `k_cache`")
        require_storable(name, rows, k_cache)
        require_dense_rows(name, rows)
    slots = resolve_slots(slots, k_cache, tokens=tokens)
    if takes_triton(k_cache):
        store_kv_triton(k, v, k_cache, v_cache, slots.slots.contiguous(), scales=scales)
    else:
        store_kv_torch(k, v, k_cache, v_cache, slots, scales=scales)

"""Writes keys and values into a paged cache; the kernel is that of `qk_norm_rope_store`.

    k_cache[slot // block_size, :, slot % block_size] = k        (v likewise; slot -1 is skipped)

Bytes moved: k and v read and written: 4 * tokens * kv_heads * head_dim * itemsize, less for a cache of eight bits.

Precision: a copy, or a row's codes as `kv_codes.py` defines them.
"""

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
from infer_kernels.optional_triton import tl, triton
from infer_kernels.qkv.kv_codes import NO_SCALES, KVScales, encode_rows


def store_kv_reference(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *, scales: KVScales = NO_SCALES
) -> tuple[Tensor, Tensor]:
    """Copies of both caches with the rows written, one at a time; k and v: [tokens, kv_heads, head_dim]."""
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


class KVSlots:
    """A step's slots, decoded into blocks and offsets once for all layers.

    Attributes:
        slots: [tokens], as for `qk_norm_rope_store`.
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
    """Store in plain PyTorch, unchecked; the cache's dtype may be another one."""
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

"""`KVPool`: the tensors of the KV cache, keys and values of every layer, in blocks."""

import math
import mmap
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from infer_kernels import KVScales, row_width


class KVPool:
    """Keys and values of all layers in blocks, zeros at the start. Layers of a group have equally many blocks.

    Keys and values of a layer are contiguous tensors [blocks, kv_heads, block_size, head_dim]: each head of each block
    is one piece of memory. In int8 a head has its scale behind its elements, see `infer_kernels.row_width`.
    """

    def __init__(
        self,
        *,
        group_of_layer: Sequence[int | None],
        num_blocks: Sequence[int],
        kv_heads: int | Sequence[int],
        block_size: int,
        head_dim: int | Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        scales: Sequence[KVScales] | None = None,
    ) -> None:
        """Allocate the memory, once; groups of no blocks are legal.

        Args:
            group_of_layer: group of each layer; None of a layer that has no keys and values.
            num_blocks: blocks of each layer of a group, by group.
            kv_heads: key and value heads of a layer; several numbers: of each layer.
            block_size: tokens of a block.
            head_dim: elements of a head, likewise.
            dtype: dtype of keys and values: a float type, float8_e4m3fn, or int8 on a CPU.
            device: device of keys and values.
            scales: factors of fp8 codes, by layer; None: 1.

        Raises:
            ValueError: a size is out of range, a layer's group has no number of blocks, or there are not as many
                `scales` as layers.
        """
        num_layers = len(group_of_layer)
        heads, dims = ([each] * num_layers if isinstance(each, int) else [*each] for each in (kv_heads, head_dim))
        sizes = {
            "num_layers": num_layers,
            "kv_heads": min(heads, default=1),
            "block_size": block_size,
            "head_dim": min(dims, default=1),
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"`{name}` is {size}; it must be at least 1.")
        if min(num_blocks, default=0) < 0:
            raise ValueError(f"`num_blocks` is {list(num_blocks)}; each must be at least 0.")
        if not all(group is None or 0 <= group < len(num_blocks) for group in group_of_layer):
            raise ValueError(
                f"`group_of_layer` is {list(group_of_layer)} but `num_blocks` is of {len(num_blocks)} groups; number "
                "the groups from 0."
            )
        self._scales = (KVScales(),) * len(group_of_layer) if scales is None else tuple(scales)
        if len(self._scales) != len(group_of_layer):
            raise ValueError(f"`scales` are of {len(self._scales)} layers; pass one for each of {len(group_of_layer)}.")
        self._dtype = dtype
        self._block_size = block_size
        self._group_of_layer = tuple(group_of_layer)
        self._num_blocks = tuple(num_blocks)

        alike: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        for layer, (own_group, own_heads, own_dim) in enumerate(zip(group_of_layer, heads, dims, strict=True)):
            if own_group is not None:
                alike[own_group, own_heads, own_dim].append(layer)

        def allocate_alike(count: int, group: int, kv_heads: int, head_dim: int) -> Tensor:
            shape = (count, num_blocks[group], kv_heads, block_size, row_width(head_dim, dtype))
            if device.type == "cpu":
                # Fresh pages of the operating system: a page takes memory when it is first written. Small pages,
                # because a block of one layer is far from the same block of the next layer.
                pages = mmap.mmap(-1, max(1, math.prod(shape)) * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                return torch.frombuffer(pages, dtype=dtype)[: math.prod(shape)].view(shape)
            return torch.zeros(shape, dtype=dtype, device=device)

        def allocate() -> dict[int, Tensor]:
            caches = {
                layer: cache
                for kind, layers in alike.items()
                for layer, cache in zip(layers, allocate_alike(len(layers), *kind).unbind(), strict=True)
            }
            return dict(sorted(caches.items()))

        self._key_caches = allocate()
        self._value_caches = allocate()

    @staticmethod
    def bytes_per_block(*, num_layers: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> int:
        """Return the bytes that one block takes: keys and values of all layers, which have heads of one size."""
        return 2 * num_layers * kv_heads * block_size * row_width(head_dim, dtype) * dtype.itemsize

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def num_layers(self) -> int:
        """Layers, with keys and values or without."""
        return len(self._group_of_layer)

    @property
    def device(self) -> torch.device:
        """Device of keys and values."""
        return next(iter(self._key_caches.values())).device

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have keys and values."""
        return tuple(self._key_caches)

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Blocks of each layer of a group, by group."""
        return self._num_blocks

    @property
    def kv_format(self) -> str:
        """Properties on which a block's bytes depend besides its tokens: the dtype, and scales that are not 1."""
        name = str(self._dtype).removeprefix("torch.")
        if all(scales == KVScales() for scales in self._scales):
            return name
        return f"{name} {[(scales.keys, scales.values) for scales in self._scales]}"

    def group(self, layer: int) -> int:
        """Return the group of a layer that has keys and values."""
        group = self._group_of_layer[layer]
        assert group is not None, "the layer has no keys and values"
        return group

    def scales(self, layer: int) -> KVScales:
        """Return the factors of a layer's fp8 codes."""
        return self._scales[layer]

    def key_cache(self, layer: int) -> Tensor:
        """Return a layer's keys, [blocks, kv_heads, block_size, row width]: the memory itself, no copy."""
        return self._key_caches[layer]

    def value_cache(self, layer: int) -> Tensor:
        """Return a layer's values, [blocks, kv_heads, block_size, row width]: the memory itself, no copy."""
        return self._value_caches[layer]

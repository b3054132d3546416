"""The KV memory: one storage for keys and one for values. Knows shapes and strides; knows no sequence."""

import numpy as np
import torch
from torch import Tensor


class KVPool:
    """Keys and values of all layers in blocks, zeros at the start.

    Each layer's cache is [blocks, kv_heads, block_size, head_dim] to look at. In memory the heads are inside the tokens
    on a CPU, so that consecutive blocks are one strided view over all their tokens, and outside on a GPU, so that one
    head of one block is one piece:

        CPU  [blocks, block_size, kv_heads, head_dim]        CUDA  [blocks, kv_heads, block_size, head_dim]
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the memory, once; a pool of no blocks is legal.

        Raises:
            ValueError: a size is out of range.
        """
        sizes = {"num_layers": num_layers, "kv_heads": kv_heads, "block_size": block_size, "head_dim": head_dim}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"`{name}` is {size}; it must be at least 1.")
        if num_blocks < 0:
            raise ValueError(f"`num_blocks` is {num_blocks}; it must be at least 0.")
        self._block_size = block_size

        def allocate() -> tuple[Tensor, ...]:
            if device.type == "cpu":
                shape = (num_layers, num_blocks, block_size, kv_heads, head_dim)
                # NumPy's zeros are the system's untouched pages: memory is taken as blocks are first written.
                storage = torch.from_numpy(np.zeros(shape, dtype=f"i{dtype.itemsize}"))
                return storage.view(dtype).transpose(2, 3).unbind()
            return torch.zeros(
                num_layers, num_blocks, kv_heads, block_size, head_dim, dtype=dtype, device=device
            ).unbind()

        self._key_caches = allocate()
        self._value_caches = allocate()

    @staticmethod
    def bytes_per_block(*, num_layers: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> int:
        """Return the bytes that one block takes: keys and values of all layers."""
        return 2 * num_layers * kv_heads * block_size * head_dim * dtype.itemsize

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def num_layers(self) -> int:
        """Layers that have a cache."""
        return len(self._key_caches)

    @property
    def num_blocks(self) -> int:
        """Blocks of each layer."""
        return self._key_caches[0].shape[0]

    def key_cache(self, layer: int) -> Tensor:
        """Return a layer's keys, [blocks, kv_heads, block_size, head_dim]: the memory itself, no copy."""
        return self._key_caches[layer]

    def value_cache(self, layer: int) -> Tensor:
        """Return a layer's values, [blocks, kv_heads, block_size, head_dim]: the memory itself, no copy."""
        return self._value_caches[layer]

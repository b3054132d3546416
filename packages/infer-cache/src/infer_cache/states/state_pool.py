"""`StatePool`: the tensors of all layers' states, by slot."""

import math
import mmap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from infer_models.layer_states import StateSpec


class StatePool:
    """States of all layers in slots, zeros at the start; a slot has the state of one sequence in every layer."""

    def __init__(
        self,
        specs: "Sequence[StateSpec | None]",
        *,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        matrix_dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate the memory, once.

        Args:
            specs: the state of each layer, None where it has none.
            num_slots: slots, at least 0.
            dtype: the model's, of the inputs that convolutions keep.
            device: device of the states.
            matrix_dtype: dtype of matrices.

        Raises:
            ValueError: `num_slots` is negative.
        """
        if num_slots < 0:
            raise ValueError(f"`num_slots` is {num_slots}; it must be at least 0.")
        self._num_slots = num_slots

        def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            shape = (num_slots, *shape)
            if device.type == "cpu":  # a page takes memory when it is first written
                pages = mmap.mmap(-1, max(1, math.prod(shape)) * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                return torch.frombuffer(pages, dtype=dtype)[: math.prod(shape)].view(shape)
            return torch.zeros(shape, dtype=dtype, device=device)

        self._convolutions = [None if spec is None else allocate(spec.convolution, dtype) for spec in specs]
        self._matrices = [
            None if spec is None or spec.matrices is None else allocate(spec.matrices, matrix_dtype) for spec in specs
        ]

    @staticmethod
    def bytes_per_slot(
        specs: "Sequence[StateSpec | None]", *, dtype: torch.dtype, matrix_dtype: torch.dtype = torch.float32
    ) -> int:
        """Return the bytes that the state of one sequence takes in all layers; arguments as for the class."""
        return sum(
            math.prod(spec.convolution) * dtype.itemsize
            + (0 if spec.matrices is None else math.prod(spec.matrices) * matrix_dtype.itemsize)
            for spec in specs
            if spec is not None
        )

    @property
    def num_slots(self) -> int:
        """Slots of each layer."""
        return self._num_slots

    def tensors(self) -> Iterator[Tensor]:
        """Yield the states of all layers, each [slots, ...]: the memory itself, no copy."""
        yield from (each for each in (*self._convolutions, *self._matrices) if each is not None)

    def convolution(self, layer: int) -> Tensor:
        """Return a layer's last inputs, [slots, width - 1, channels]: the memory itself, no copy.

        Raises:
            ValueError: the layer has no state.
        """
        return _of(self._convolutions, layer)

    def matrices(self, layer: int) -> Tensor:
        """Return a layer's matrices, [slots, heads, key_dim, value_dim]: the memory itself, no copy.

        Raises:
            ValueError: the layer has none.
        """
        return _of(self._matrices, layer)


def _of(tensors: Sequence[Tensor | None], layer: int) -> Tensor:
    tensor = tensors[layer]
    if tensor is None:
        raise ValueError(f"`layer` {layer} has no such state.")
    return tensor

"""Formats of quantized layers: in a checkpoint's files (`StoredFormat`), and in memory (`Storage`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.quantization import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The format of a quantized weight in memory: the fields of a `QuantizedWeight` without its numbers.

    Attributes:
        encoding: encoding of the numbers.
        group_size: inputs that share a scale; None: all of a row.
        has_zeros: each group has a code of zero of its own.
        has_minimums: each group has a minimum, which products of codes and the scale are lessened by.
        scale_dtype: dtype of scales and minimums, but of encodings that have another.
    """

    encoding: Encoding
    group_size: int | None = None
    has_zeros: bool = False
    has_minimums: bool = False
    scale_dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor that a quantized weight consists of.

    Attributes:
        shape: shape of the tensor; None: any, which `decode` checks.
        other_shapes: further shapes that it may have.
        dtypes: dtypes that it may have, as safetensors spell them.
        is_required: a checkpoint must have it.
    """

    shape: tuple[int, ...] | None
    dtypes: tuple[str, ...]
    is_required: bool = True
    other_shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...] | None:
        """All shapes that it may have; None: any."""
        return None if self.shape is None else (self.shape, *self.other_shapes)


class StoredFormat(Protocol):
    """The format of one layer's weight in a checkpoint."""

    @property
    def storage(self) -> Storage | None:
        """Format of the weight that `decode` returns; None: dense fp32, as no kernel multiplies by such weights."""

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:
        """Return the tensors, by their full names, of the layer `name` with a weight [out_features, in_features]."""

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> Tensor | QuantizedWeight:
        """Return the weight of the layer `name`.

        Raises:
            CheckpointError: a tensor has values that no such weight has; the message names the tensor.
        """


class QuantizationScheme(Protocol):
    """The formats of a quantized checkpoint's layers."""

    @property
    def method(self) -> str:
        """The `quant_method` of `config.json`."""

    def format_of(self, name: str) -> StoredFormat | None:
        """Return how the layer `name`, such as `model.layers.0.self_attn.q_proj`, is stored where it is quantized.

        Which layers are, the checkpoint's files say. None: the configuration does not say how.
        """

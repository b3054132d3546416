"""`BlockFormat`: a quantized layer of a GGUF file; which tensors of it keep their codes in memory, and as what."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import gcd
from types import MappingProxyType

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.gguf.block_types import QUANTIZED
from infer_models.quantization.gguf.block_codes import read_blocks
from infer_models.stored_format import Storage, TensorSpec

METHOD = "gguf"
"""The `quant_method` of such checkpoints."""
KINDS, COLUMN_TURNS = "kinds", "column_turns"
"""The fields of layers' types, and of layers whose columns take turns: how many, of how many heads, of what size."""


@cache
def _storage_of(kind: str) -> Storage:
    """Return the format of the weights that `read_blocks` makes of a type, as a block of it has."""
    weight = read_blocks(kind, torch.zeros(1, QUANTIZED[kind].num_bytes, dtype=torch.uint8))
    return Storage(
        encoding=weight.encoding,
        group_size=weight.group_size,
        has_minimums=weight.minimums is not None,
        scale_dtype=torch.float32 if weight.traits.scales else weight.scales.dtype,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """The format of a layer whose weight is one tensor of blocks.

    Attributes:
        kind: type of the tensor, such as `Q4_K`.
        column_turns: in how many turns columns are stored, of how many heads in each, of how many columns each; None:
            they are in the models' order.
    """

    kind: str
    column_turns: tuple[int, int, int] | None = None

    @property
    def storage(self) -> Storage:
        """Format of the weight that `decode` returns; heads that are moved leave the factors of 256 columns."""
        stored = _storage_of(self.kind)
        if self.column_turns is None:
            return stored
        assert stored.group_size is not None
        dtype = torch.float32 if stored.scale_dtype == torch.int8 else stored.scale_dtype
        return replace(stored, group_size=gcd(stored.group_size, self.column_turns[-1]), scale_dtype=dtype)

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:
        """Return the tensor of the layer `name` with a weight [out_features, in_features]."""
        return {f"{name}.weight": TensorSpec(shape=shape, dtypes=(self.kind,))}

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """Return the weight of the layer `name`, or some rows of it.

        Args:
            name: name of the layer.
            shape: [out_features, in_features].
            tensors: by name, uint8 [rows, bytes of a row].

        Raises:
            CheckpointError: a scale is NaN or infinite.
        """
        data = tensors[f"{name}.weight"]
        assert len(data) == shape[0]
        weight = read_blocks(self.kind, data)
        if not _are_finite(weight):
            raise CheckpointError(f"tensor `{name}.weight` has a scale that is NaN or infinite.")
        return weight if self.column_turns is None else _without_turns(weight, self.column_turns)


def _without_turns(weight: QuantizedWeight, turns: tuple[int, int, int]) -> QuantizedWeight:
    """Return a weight whose columns, of heads [turns, heads], are those of heads [heads, turns]."""
    num_turns, num_heads, columns = turns
    if weight.scale_factors is not None:
        weight = weight.with_float_scales()
    weight = weight.with_group_size(gcd(weight.group_size, columns))

    def moved(tensor: Tensor) -> Tensor:
        heads = tensor.reshape(*tensor.shape[:-1], num_turns, num_heads, -1)
        return heads.transpose(-3, -2).reshape(tensor.shape)

    return weight.map_rows(moved)


def _are_finite(weight: QuantizedWeight) -> bool:
    """Whether scales and minimums are numbers."""
    if weight.encoding == "mxfp4":
        return not bool((weight.scales == 255).any())
    are_bytes = weight.scale_factors is not None
    halves = (weight.scale_factors, weight.minimum_factors) if are_bytes else (weight.scales, weight.minimums)
    return all(each is None or bool(torch.isfinite(each).all()) for each in halves)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScheme:
    """The formats of the layers of a GGUF file.

    Attributes:
        kinds: type of each quantized layer's weight.
        column_turns: those of `BlockFormat`, of the layers that have them.
    """

    kinds: Mapping[str, str]
    column_turns: Mapping[str, tuple[int, int, int]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def method(self) -> str:
        """The method that stands in warnings."""
        return METHOD

    def format_of(self, name: str) -> BlockFormat | None:
        """Return how the layer `name` is stored; None: as plain numbers."""
        kind = self.kinds.get(name)
        return None if kind is None else BlockFormat(kind=kind, column_turns=self.column_turns.get(name))


def read_block_scheme(fields: JsonFields) -> BlockScheme:
    """Return the formats of layers whose types are `KINDS`, with columns in the turns of `COLUMN_TURNS`."""
    kinds, turns = fields.nested(KINDS), fields.nested(COLUMN_TURNS)
    found: dict[str, tuple[int, int, int]] = {}
    for name in turns.names:
        num_turns, num_heads, columns = turns.indices(name)
        found[name] = (num_turns, num_heads, columns)
    return BlockScheme(
        kinds=MappingProxyType({name: kinds.text(name) for name in kinds.names}), column_turns=MappingProxyType(found)
    )

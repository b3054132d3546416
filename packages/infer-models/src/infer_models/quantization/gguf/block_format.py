"""`BlockFormat`: a quantized layer of a GGUF file; which tensors of it keep their codes in memory, and as what."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.quantization.gguf.block_codes import read_blocks
from infer_models.stored_format import Storage, TensorSpec

METHOD = "gguf"
"""The `quant_method` of such checkpoints."""
_HALVES, _BYTES = torch.float16, torch.int8
_STORAGES: Mapping[str, Storage] = MappingProxyType(
    {
        "Q4_0": Storage(encoding="int4", group_size=32, scale_dtype=_HALVES),
        "Q4_1": Storage(encoding="int4", group_size=32, scale_dtype=_HALVES, has_minimums=True),
        "Q5_0": Storage(encoding="int6", group_size=32, scale_dtype=_HALVES),
        "Q5_1": Storage(encoding="int6", group_size=32, scale_dtype=_HALVES, has_minimums=True),
        "Q8_0": Storage(encoding="int8", group_size=32, scale_dtype=_HALVES),
        "Q2_K": Storage(encoding="int4", group_size=16, scale_dtype=_BYTES, has_minimums=True),
        "Q3_K": Storage(encoding="int4", group_size=16, scale_dtype=_BYTES),
        "Q4_K": Storage(encoding="int4", group_size=32, scale_dtype=_BYTES, has_minimums=True),
        "Q5_K": Storage(encoding="int6", group_size=32, scale_dtype=_BYTES, has_minimums=True),
        "Q6_K": Storage(encoding="int6", group_size=16, scale_dtype=_BYTES),
        "IQ4_NL": Storage(encoding="iq4", group_size=32, scale_dtype=_HALVES),
        "IQ4_XS": Storage(encoding="iq4", group_size=32, scale_dtype=_BYTES),
        "MXFP4": Storage(encoding="mxfp4", group_size=32),
    }
)
"""Formats of the weights that `read_blocks` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """The format of a layer whose weight is one tensor of blocks.

    Attributes:
        kind: type of the tensor, such as `Q4_K`.
    """

    kind: str

    @property
    def storage(self) -> Storage:
        """Format of the weight that `decode` returns."""
        return _STORAGES[self.kind]

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
        return weight


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
    """

    kinds: Mapping[str, str]

    @property
    def method(self) -> str:
        """The method that stands in warnings."""
        return METHOD

    def format_of(self, name: str) -> BlockFormat | None:
        """Return how the layer `name` is stored; None: as plain numbers."""
        kind = self.kinds.get(name)
        return None if kind is None else BlockFormat(kind=kind)


def read_block_scheme(fields: JsonFields) -> BlockScheme:
    """Return the formats of layers whose types are the fields."""
    return BlockScheme(kinds=MappingProxyType({name: fields.text(name) for name in fields.names}))

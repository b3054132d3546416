"""`BlockFormat`: a quantized layer of a GGUF file; which tensors of it keep their codes in memory, and as what."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.quantization.quantized_weight import INT4_ZERO, pack_pairs
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.quantization.gguf.block_codes import read_codes
from infer_models.stored_format import Storage, TensorSpec

METHOD = "gguf"
"""The `quant_method` of such checkpoints."""
_STORAGES: Mapping[str, Storage] = MappingProxyType(
    {
        "Q4_0": Storage(encoding="int4", group_size=32),
        "Q4_1": Storage(encoding="int4", group_size=32, has_minimums=True),
        "Q5_0": Storage(encoding="int8", group_size=32),
        "Q5_1": Storage(encoding="int8", group_size=32, has_minimums=True),
        "Q8_0": Storage(encoding="int8", group_size=32),
        "Q2_K": Storage(encoding="int4", group_size=16, has_minimums=True),
        "Q3_K": Storage(encoding="int4", group_size=16),
        "Q4_K": Storage(encoding="int4", group_size=32, has_minimums=True),
        "Q5_K": Storage(encoding="int8", group_size=32, has_minimums=True),
        "Q6_K": Storage(encoding="int8", group_size=16),
        "IQ4_NL": Storage(encoding="int8", group_size=32),
        "IQ4_XS": Storage(encoding="int8", group_size=32),
        "MXFP4": Storage(encoding="int8", group_size=32),
    }
)
"""Formats in memory: the same numbers, in eight bits where codes have more than four."""


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
        found = read_codes(self.kind, tensors[f"{name}.weight"])
        for scales in (found.scales, found.minimums):
            if scales is not None and not bool(torch.isfinite(scales).all()):
                raise CheckpointError(f"tensor `{name}.weight` has a scale that is NaN or infinite.")
        is_int4 = self.storage.encoding == "int4"
        codes = found.codes if found.minimums is not None or not is_int4 else found.codes + INT4_ZERO
        return QuantizedWeight(
            encoding=self.storage.encoding,
            values=pack_pairs(codes.view(torch.uint8)) if is_int4 else codes,
            scales=found.scales,
            minimums=found.minimums,
            in_features=shape[1],
            group_size=found.group_size,
        )


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

"""bitsandbytes: NF4 and FP4 in blocks of numbers that share a scale, and int8 with a scale for each row.

Four bits, of a weight that is read row by row as one long row:

    weight                                uint8 [bytes, 1]  two codes a byte, the first in the upper half; or the same
                                                            bytes as another type (`bnb_4bit_quant_storage`)
    weight.quant_map                      fp32 [16]         the number of each code
    weight.absmax                         fp32 [blocks]     the scales; uint8 where they are quantized in their turn:
    weight.nested_quant_map               fp32 [256]
    weight.nested_absmax                  fp32 [blocks of scales]
    weight.quant_state.bitsandbytes__nf4  uint8 [bytes]     JSON: `shape`, `blocksize`, `nested_blocksize` and `_offset`

    number = quant_map[code] * scale of its block
    scale  = nested_quant_map[code] * nested_absmax of its block + nested_offset

Eight bits: weight int8 [out_features, in_features], SCB fp32 [out_features]; number = code * SCB / 127.

Dettmers et al., "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", 2022; "QLoRA: Efficient Finetuning
of Quantized LLMs", 2023.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.integers import cdiv
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.quantization.tensor_values import finite_scales
from infer_models.stored_format import Storage, StoredFormat, TensorSpec

_KINDS = ("nf4", "fp4")
_CODES = 16
_LARGEST_INT8 = 127
_NUMBERS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FourBitFormat:
    """The format of a layer in NF4 or FP4 in a checkpoint; the layer's own `quant_state` has the details."""

    @property
    def storage(self) -> Storage | None:
        """None: no kernel multiplies by such weights."""
        return None

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:  # noqa: ARG002 - of any shape
        """Return the tensors of the layer `name`, whose shapes its `quant_state` tells."""
        weight = f"{name}.weight"
        floats = ("F32", "BF16", "F16")
        specs = {
            weight: TensorSpec(shape=None, dtypes=("U8", "I8", *floats)),
            f"{weight}.quant_map": TensorSpec(shape=(_CODES,), dtypes=floats),
            f"{weight}.absmax": TensorSpec(shape=None, dtypes=("U8", *floats)),
        }
        for kind in _KINDS:
            state = f"{weight}.quant_state.bitsandbytes__{kind}"
            specs[state] = TensorSpec(shape=None, dtypes=("U8",), is_required=False)
        for end in ("nested_quant_map", "nested_absmax"):
            specs[f"{weight}.{end}"] = TensorSpec(shape=None, dtypes=floats, is_required=False)
        return specs

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the numbers of the layer `name`.

        Raises:
            CheckpointError: the state is missing, or tensors are not of the sizes that it says, or scales no numbers.
        """
        weight = f"{name}.weight"
        state = _read_state(weight, tensors)
        if tuple(state.indices("shape")) != shape:
            raise state.invalid("shape", f"{list(shape)}, as `config.json` makes it")
        count, block = math.prod(shape), state.count("blocksize")
        data = tensors[weight].contiguous().view(-1).view(torch.uint8)
        scales = self._scales(weight, state, tensors)
        if len(data) != cdiv(count, 2) or len(scales) != cdiv(count, block):
            raise CheckpointError(
                f"tensor `{weight}` holds {len(data)} bytes and {len(scales)} scales; {list(shape)} numbers in blocks "
                f"of {block} have {cdiv(count, 2)} and {cdiv(count, block)}."
            )
        codes = tensors[f"{weight}.quant_map"].float()
        numbers = torch.empty(count)
        piece = cdiv(_NUMBERS_AT_ONCE, 2 * block) * 2 * block  # whole blocks, and whole bytes
        for start in range(0, count, piece):
            part = numbers[start : start + piece]
            pairs = data[start // 2 : (start + piece) // 2]
            part.copy_(codes[torch.stack([pairs >> 4, pairs & 15], dim=-1).flatten()[: len(part)].int()])
            own = scales[start // block : (start + piece) // block]
            part.mul_(own.repeat_interleave(block)[: len(part)])
        return numbers.view(shape)

    def _scales(self, weight: str, state: JsonFields, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the scale of each block, fp32."""
        name = f"{weight}.absmax"
        scales = tensors[name].view(-1)
        if scales.dtype != torch.uint8:
            return finite_scales(name, scales)
        parts = [f"{weight}.nested_quant_map", f"{weight}.nested_absmax"]
        for part in parts:
            if part not in tensors:
                raise CheckpointError(f"tensor `{part}` is missing, without which `{name}` has no scales.")
        numbers, largest = (finite_scales(part, tensors[part].view(-1)) for part in parts)
        block, offset = state.count("nested_blocksize"), state.value("nested_offset")
        if not isinstance(offset, int | float):
            raise state.invalid("nested_offset", "a number")
        if len(largest) != cdiv(len(scales), block) or len(numbers) != 256:
            raise CheckpointError(
                f"tensor `{parts[1]}` has {len(largest)} scales of {len(scales)} in blocks of {block}."
            )
        return numbers[scales.int()] * largest.repeat_interleave(block)[: len(scales)] + offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Format:
    """The format of a layer in int8 in a checkpoint."""

    @property
    def storage(self) -> Storage:
        """One scale for each row."""
        return Storage(encoding="int8")

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:
        """Return the tensors of the layer `name` with a weight [out_features, in_features]."""
        return {
            f"{name}.weight": TensorSpec(shape=shape, dtypes=("I8",)),
            f"{name}.SCB": TensorSpec(shape=shape[:1], dtypes=("F32", "BF16", "F16")),
            f"{name}.weight_format": TensorSpec(shape=(), dtypes=("U8",), is_required=False),
        }

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """Return the weight of the layer `name`.

        Raises:
            CheckpointError: a scale is NaN or infinite, or the numbers are in an order of another device.
        """
        order = tensors.get(f"{name}.weight_format")
        if order is not None and int(order):
            raise CheckpointError(
                f"tensor `{name}.weight_format` is {int(order)}; only 0, rows in their order, is read."
            )
        scales = finite_scales(f"{name}.SCB", tensors[f"{name}.SCB"])
        return QuantizedWeight(
            encoding="int8",
            values=tensors[f"{name}.weight"],
            scales=(scales / _LARGEST_INT8)[:, None],
            in_features=shape[1],
            group_size=shape[1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BitsAndBytesScheme:
    """Implements `QuantizationScheme`.

    Attributes:
        format: format of all quantized layers.
        method: see `QuantizationScheme`.
    """

    format: FourBitFormat | Int8Format
    method: str = "bitsandbytes"

    def format_of(self, name: str) -> StoredFormat:  # noqa: ARG002 - all layers are stored in one way
        """Return how the layer `name` is stored."""
        return self.format


def read_bitsandbytes(fields: JsonFields) -> BitsAndBytesScheme:
    """Read a `quantization_config`, which only says how many bits there are: the tensors say the rest.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    is_int8 = any(fields.flag(name, default=False) for name in ("load_in_8bit", "_load_in_8bit"))
    return BitsAndBytesScheme(format=Int8Format() if is_int8 else FourBitFormat())


def _read_state(weight: str, tensors: Mapping[str, Tensor]) -> JsonFields:
    for kind in _KINDS:
        name = f"{weight}.quant_state.bitsandbytes__{kind}"
        if name not in tensors:
            continue
        try:
            fields = json.loads(bytes(tensors[name].tolist()))
        except ValueError as error:
            raise CheckpointError(f"tensor `{name}` holds no JSON: {error}.") from error
        if isinstance(fields, dict):
            return JsonFields(Path(name), fields)
    raise CheckpointError(f"tensor `{weight}.quant_state.bitsandbytes__nf4` is missing, which says how it is stored.")

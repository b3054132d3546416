"""Quantizes one weight with the library compressed-tensors, for tests: its tensors and the numbers in them.

The twins are the library's own: it rounds, packs, unpacks and multiplies.
"""

from typing import Any

import torch
from torch import Tensor

from infer_proofs.models.quantized_layers import Packed


def quantize_compressed(weight: Tensor, *, weights: dict[str, Any], layout: str) -> Packed:
    """Return the tensors of a weight [out_features, in_features].

    Args:
        weight: weight in fp32.
        weights: fields of the library's `QuantizationArgs`.
        layout: the library's `CompressionFormat`.
    """
    from compressed_tensors.compressors import BaseCompressor  # noqa: PLC0415 - only tests have it
    from compressed_tensors.quantization import (  # noqa: PLC0415 - only tests have it
        QuantizationArgs,
        QuantizationScheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams  # noqa: PLC0415 - only tests have it

    arguments = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments, format=layout)
    scales, zeros = calculate_qparams(*_extremes(weight, arguments), arguments)
    state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
    compressor: Any = BaseCompressor.get_value_from_registry(layout)
    packed: dict[str, Tensor] = compressor.compress(state, scheme)
    worth: Tensor = compressor.decompress(packed, scheme)["weight"]
    return packed, worth.float().contiguous()


def compressed_config(*, weights: dict[str, Any], layout: str, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `quantization_config` that the library writes for such weights and inputs."""
    from compressed_tensors.quantization import (  # noqa: PLC0415 - only tests have it
        QuantizationConfig,
        QuantizationScheme,
        QuantizationStatus,
    )

    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs, format=layout)
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format=layout, quantization_status=QuantizationStatus.COMPRESSED
    )
    fields: dict[str, Any] = config.model_dump(mode="json")
    return fields


def _extremes(weight: Tensor, arguments: Any) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest number of each rectangle that shares a scale."""
    rows, columns = weight.shape
    match str(getattr(arguments.strategy, "value", arguments.strategy)):
        case "tensor":
            return weight.amin().reshape(1), weight.amax().reshape(1)
        case "channel":
            return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        case "group":
            grouped = weight.view(rows, -1, arguments.group_size)
            return grouped.amin(-1), grouped.amax(-1)
        case "block":
            height, width = arguments.block_structure
            padded = torch.nn.functional.pad(weight, (0, -columns % width, 0, -rows % height))
            blocks = padded.unfold(0, height, height).unfold(1, width, width)
            return blocks.amin((-2, -1)), blocks.amax((-2, -1))
        case other:
            raise ValueError(f"`strategy` is {other!r}; weights have `tensor`, `channel`, `group` or `block`.")

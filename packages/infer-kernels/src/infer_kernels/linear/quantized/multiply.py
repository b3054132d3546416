"""Dense layers whose weights have four to eight bits: which kernel multiplies.

    CPU, packed by `prepack`             C++; inputs are quantized to int8 row by row (`quantization.quantized_rows`)
    CUDA, fp8, capability 8.9 or more    Triton; inputs are quantized to fp8 row by row (`linear_fp8`)
    likewise on sm_90, over 64 rows      the library, of rows quantized so (`linear_fp8_library`); never
                                         where it is invariant
    CUDA otherwise                       Triton; inputs stay as they are (`linear_quantized`)
    likewise, 1,024 rows and more        the library, of weights rounded to bf16 or fp16 once
                                         (`linear_dequantized`); never where it is invariant
    elsewhere, and where Triton has none weights are dequantized in pieces, and multiplied by the library

Which one it is depends on the device and the weight, and on the number of rows only where that is said.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from infer_kernels.arguments import require_device, require_float, require_layer_input
from infer_kernels.cpu.calls import DTYPES
from infer_kernels.cpu.library import library
from infer_kernels.cpu.packed_weight import PackedQuantizedWeight
from infer_kernels.dispatch import TRITON_DEVICES, takes_triton
from infer_kernels.linear.cpu import flat_rows
from infer_kernels.linear.quantized import cpu as cpu_quantized
from infer_kernels.linear.quantized.linear_dequantized import linear_dequantized, takes_dequantized
from infer_kernels.linear.quantized.linear_fp8 import linear_fp8_triton, takes_fp8_products
from infer_kernels.linear.quantized.linear_fp8_library import linear_fp8_library, takes_library_fp8
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_torch, linear_quantized_triton
from infer_kernels.quantization.encodings import ENCODINGS, Encoding
from infer_kernels.quantization.quantized_weight import QuantizedWeight
from infer_kernels.quantization.tile_microscaled import tile_microscaled

Packed = TypeVar("Packed")


def multiply_quantized(
    x: Tensor,
    weight: QuantizedWeight | PackedQuantizedWeight,
    bias: Tensor | None,
    *,
    is_invariant: bool = False,
    semaphores: Tensor | None = None,
) -> Tensor:
    """`linear`, or with `is_invariant` `linear_invariant`, with a quantized weight; no gradient flows.

    `semaphores` are as for `linear_quantized_triton`.
    """
    require_float("x", x)
    require_device("weight", weight.values if isinstance(weight, QuantizedWeight) else weight.panels, "x", x.device)
    require_layer_input(x, bias, in_features=weight.in_features, out_features=weight.out_features)
    if isinstance(weight, PackedQuantizedWeight):
        return cpu_quantized.linear(x, weight, bias)
    flat = flat_rows(x.detach(), weight.in_features)
    out = flat.new_empty(len(flat), weight.out_features)
    if not takes_triton(flat) or not weight.is_for_triton:
        linear_quantized_torch(flat, weight, bias, out=out, is_invariant=is_invariant)
    elif not is_invariant and takes_library_fp8(flat, weight):
        linear_fp8_library(flat, weight, bias, out=out)
    elif _takes_fp8(weight):
        linear_fp8_triton(flat, weight, bias, out=out, is_invariant=is_invariant)
    elif not is_invariant and takes_dequantized(flat, weight):
        linear_dequantized(flat, weight, bias, out=out)
    else:
        linear_quantized_triton(flat, weight, bias, out=out, is_invariant=is_invariant, semaphores=semaphores)
    return out.view(*x.shape[:-1], weight.out_features)


def prepack_quantized(
    weight: QuantizedWeight, *, pack: Callable[[QuantizedWeight], Packed]
) -> QuantizedWeight | Packed:
    """Return what `pack` makes of `weight` where C++ kernels multiply it, and its words or tiles where Triton's do."""
    if weight.device.type in TRITON_DEVICES:
        if not weight.is_for_triton:
            return weight
        if weight.traits.tiled:
            return tile_microscaled(weight)
        is_layer = weight.values.dim() == 2
        return weight if (is_layer and _takes_fp8(weight)) or not weight.can_be_words() else weight.in_words()
    is_served = has_quantized_kernel(
        weight.encoding, group_size=weight.group_size, in_features=weight.in_features, device=weight.device
    )
    return pack(weight) if weight.values.numel() and is_served and _has_panels(weight.device) else weight


def has_quantized_kernel(
    encoding: Encoding,
    *,
    group_size: int | None,
    in_features: int,
    has_minimums: bool = False,
    scale_dtype: torch.dtype = torch.float32,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> bool:
    """Return whether `device` multiplies such weights as they are, without dequantizing them into memory.

    Args:
        encoding: encoding of the weight.
        group_size: inputs that share a scale; None: all of a row.
        in_features: inputs.
        has_minimums: each group has a minimum.
        scale_dtype: dtype of scales and minimums, but of encodings that have another.
        device: where it would be.
        dtype: dtype of the inputs; None: any.
    """
    group_size = group_size or in_features
    if device.type in TRITON_DEVICES:
        has_own = ENCODINGS[encoding].is_for_triton and scale_dtype == torch.float32
        if not has_own or (has_minimums and encoding not in ("int4", "int8")):
            return False
        return group_size % 16 == 0 or group_size >= in_features
    return _has_panels(device, dtype) and cpu_quantized.can_pack(
        encoding, group_size=group_size, in_features=in_features
    )


def _takes_fp8(weight: QuantizedWeight) -> bool:
    """Whether `linear_fp8` multiplies a layer."""
    if weight.encoding != "fp8_e4m3" or weight.order != "rows" or weight.group_size % 32:
        return False
    return takes_fp8_products(weight.device)


def _has_panels(device: torch.device, dtype: torch.dtype | None = None) -> bool:
    """Whether `device` multiplies panels, as C++ kernels do."""
    if device.type != "cpu" or device.type in TRITON_DEVICES:
        return False
    return library(None if dtype is None else DTYPES.get(dtype)) is not None

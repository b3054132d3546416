"""`tile_microscaled`: MXFP4 and NVFP4 in the order of `microscaled_order`, made once, when a model is loaded."""

import torch

from infer_kernels.quantization.microscaled_order import LARGEST_SCALE, tile_codes, tile_scales
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_AT_ONCE = 2**24
"""Numbers that are put in order together: their temporary tensors take nine bytes each."""


def tile_microscaled(weight: QuantizedWeight) -> QuantizedWeight:
    """Return mxfp4 or nvfp4 [..., out_features, in_features] tiled; itself where tiles do not take it.

    These are other groups than of 32 and 16 inputs, as ranks of a tensor-parallel model may have them, scales of mxfp4
    that are NaN or larger than 2, and those of nvfp4 that are NaN or negative. Waits for the device.
    """
    encoding, group_size = weight.traits.tiled, weight.group_size
    is_taken = group_size == weight.traits.tiled_group and weight.scales.numel() > 0
    if encoding is None or not is_taken or bool(_are_not_taken(weight)):
        return weight
    tiled = QuantizedWeight.empty(*weight.shape, encoding=encoding, group_size=group_size, device=weight.device)
    rows, scales, to = weight.values.flatten(0, -2), weight.scales.flatten(0, -2), tiled.values.flatten(0, -2)
    at_once = max(1, _AT_ONCE // weight.in_features)
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        codes = torch.stack([part & 15, part >> 4], dim=-1).flatten(-2)[:, : weight.in_features]
        if weight.encoding == "nvfp4":
            is_nothing = scales[start : start + at_once].float() == 0
            codes = codes.masked_fill(_by_input(is_nothing, weight), 0)
        to[start : start + at_once] = tile_codes(codes)
    groups = weight.scales.shape[-1]
    tiled.scales[..., :groups] = tile_scales(weight.scales) if weight.encoding == "nvfp4" else weight.scales
    tiled.scales[..., groups:] = 0
    if tiled.row_scales is not None and weight.row_scales is not None:
        tiled.row_scales.copy_(weight.row_scales)
    return tiled


def _are_not_taken(weight: QuantizedWeight) -> torch.Tensor:
    """Whether a scale is one that tiles do not have."""
    if weight.encoding == "mxfp4":
        return (weight.scales > LARGEST_SCALE).any()
    return (weight.scales.view(torch.uint8) > 0x7E).any()  # a sign, or NaN


def _by_input(of_groups: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    return of_groups.repeat_interleave(weight.group_size, dim=-1)[:, : weight.in_features]

"""`tile_microscaled`: MXFP4 in the order of `microscaled_order`, made once, when a model is loaded."""

import torch

from infer_kernels.quantization.microscaled_order import LARGEST_SCALE, PADDED_TO, tile_codes
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_AT_ONCE = 2**24
"""Numbers that are put in order together: their temporary tensors take nine bytes each."""


def tile_microscaled(weight: QuantizedWeight) -> QuantizedWeight:
    """Return mxfp4 [..., out_features, in_features] tiled; itself where tiles do not take it. Waits for the device.

    These are groups of less than 32 inputs, as ranks of a tensor-parallel model may have them, and scales that are NaN
    or larger than 2.
    """
    is_taken = weight.encoding == "mxfp4" and weight.group_size == PADDED_TO and weight.scales.numel() > 0
    if not is_taken or bool((weight.scales > LARGEST_SCALE).any()):
        return weight
    tiled = QuantizedWeight.empty(
        *weight.shape, encoding="mxfp4_tiled", group_size=weight.group_size, device=weight.device
    )
    rows, to = weight.values.flatten(0, -2), tiled.values.flatten(0, -2)
    at_once = max(1, _AT_ONCE // weight.in_features)
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        codes = torch.stack([part & 15, part >> 4], dim=-1).flatten(-2)[:, : weight.in_features]
        to[start : start + at_once] = tile_codes(codes)
    tiled.scales[..., : weight.scales.shape[-1]] = weight.scales
    tiled.scales[..., weight.scales.shape[-1] :] = 0
    return tiled

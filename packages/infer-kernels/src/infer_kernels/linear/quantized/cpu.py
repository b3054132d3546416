"""Weights of four to eight bits on a CPU: arguments as the C++ structs of `csrc/linear_quantized.cpp`. Unchecked."""

from struct import Struct
from typing import TypeVar

import torch
from torch import Tensor

from infer_kernels.cpu.calls import empty, run
from infer_kernels.cpu.huge_pages import empty_in_huge_pages
from infer_kernels.cpu.packed_weight import (
    BESIDE,
    ENCODINGS,
    LAYOUT,
    PANEL,
    SCALES,
    PackedQuantizedExperts,
    PackedQuantizedWeight,
    QuantizedPanels,
    layout_arguments,
)
from infer_kernels.integers import cdiv
from infer_kernels.linear.cpu import flat_rows
from infer_kernels.quantization.encodings import FACTOR_INPUTS, SIXES, Encoding
from infer_kernels.quantization.quantized_weight import QuantizedWeight

Packed = TypeVar("Packed", bound=QuantizedPanels)
_LINE = 64
_BITS: dict[Encoding, int] = {"int8": 8, "int6": 6}
"""Bits of a code; other encodings have four."""
_PACK = Struct("PPqPqPqPqPqq" + LAYOUT)
_LINEAR = Struct("PqPqPPq" + LAYOUT)


def can_pack(encoding: Encoding, *, group_size: int, in_features: int) -> bool:
    """Return whether the kernels multiply weights of `encoding` with groups of `group_size`.

    Sums of a row of more inputs than 2**16 may be too large for 32 bits.
    """
    unit = SIXES if encoding == "int6" else 8
    is_whole = group_size % unit == 0 and (in_features % unit == 0 or unit == 8)
    return encoding in ENCODINGS and (group_size >= in_features or is_whole) and in_features <= 1 << 16


def pack(weight: QuantizedWeight) -> PackedQuantizedWeight:
    """Return a packed copy of `weight` [out_features, in_features]."""
    panels = _empty_panels(weight, weight.out_features)
    _pack_into(panels, weight)
    return _describe(PackedQuantizedWeight, panels, weight)


def pack_experts(weight: QuantizedWeight) -> PackedQuantizedExperts:
    """Return a packed copy of `weight` [experts, out_features, in_features]."""
    experts = weight.shape[0]
    panels = _empty_panels(weight, experts, weight.out_features)
    for expert in range(experts):
        _pack_into(panels[expert], weight.item(expert))
    return _describe(PackedQuantizedExperts, panels, weight)


def linear(x: Tensor, weight: PackedQuantizedWeight, bias: Tensor | None) -> Tensor:
    """Return x [..., in_features], quantized row by row, @ weight.T + bias."""
    flat = flat_rows(x, weight.in_features)
    out = empty((len(flat), weight.out_features), x.dtype)
    arguments = _LINEAR.pack(
        out.data_ptr(),
        out.stride(0),
        flat.data_ptr(),
        flat.stride(0),
        weight.panels.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        weight.out_features,
        *layout_arguments(weight),
    )
    run("linear_quantized", x.dtype, len(flat), arguments, work=weight.panels.numel(), panels=weight.panels)
    return out.view(*x.shape[:-1], weight.out_features)


def _describe(kind: type[Packed], panels: Tensor, weight: QuantizedWeight) -> Packed:
    """Return `panels` with what `weight` is."""
    return kind(
        panels=panels,
        out_features=weight.out_features,
        in_features=weight.in_features,
        encoding=weight.encoding,
        group_size=weight.group_size,
        beside=_beside(weight),
        scales=SCALES[_scale_dtype(weight)],
    )


def _empty_panels(weight: QuantizedWeight, *rows: int) -> Tensor:
    """Return memory for the panels of `weight`, [..., out_features, in_features] with these `rows`."""
    *experts, out_features = rows
    return empty_in_huge_pages((*experts, cdiv(out_features, PANEL), _panel_bytes(weight)), torch.uint8)


def _panel_bytes(weight: QuantizedWeight) -> int:
    """Return the bytes of a panel: `QuantizedLayout::panel_bytes` in `csrc/quantized_layout.h`."""
    inputs, group_size = weight.in_features, weight.group_size
    groups = cdiv(inputs, group_size)
    step = _LINE if groups == 1 or group_size % _LINE == 0 else 8
    last = inputs - (groups - 1) * group_size
    padded = (groups - 1) * cdiv(min(group_size, inputs), step) * step + cdiv(last, step) * step
    bits = _BITS.get(weight.encoding, 4)
    scale_bytes, beside = _scale_dtype(weight).itemsize, _beside(weight)
    beside_bytes = {BESIDE["nothing"]: 0, BESIDE["zeros"]: 2, BESIDE["minimums"]: scale_bytes}[beside]
    factors = (weight.scale_factors, weight.minimum_factors)
    factor_bytes = sum(2 * cdiv(inputs, FACTOR_INPUTS) for each in factors if each is not None)
    return PANEL * (padded * bits // 8 + groups * (scale_bytes + beside_bytes) + factor_bytes)


def _beside(weight: QuantizedWeight) -> int:
    """Return what the groups of `weight` have beside their scales."""
    if weight.minimums is not None:
        return BESIDE["minimums"]
    return BESIDE["nothing" if weight.zeros is None else "zeros"]


def _scale_dtype(weight: QuantizedWeight) -> torch.dtype:
    """Return the dtype of scales in panels: fp32 of encodings whose scales are bytes without a factor."""
    return weight.scales.dtype if weight.scales.dtype in SCALES else torch.float32


def _pack_into(panels: Tensor, weight: QuantizedWeight) -> None:
    scales = weight.scale_numbers if weight.scales.dtype not in SCALES else weight.scales
    beside = weight.zeros if weight.minimums is None else weight.minimums
    tensors = [
        each if each is None or each.stride(-1) == 1 or each.shape[-1] == 1 else each.contiguous()
        for each in (weight.values, scales, beside, weight.scale_factors, weight.minimum_factors)
    ]
    places = [
        place
        for each in tensors
        for place in ((0, 0) if each is None else (each.data_ptr(), each.stride(0) * each.element_size()))
    ]
    arguments = _PACK.pack(
        panels.data_ptr(),
        *places,
        weight.out_features,
        weight.in_features,
        weight.group_size,
        ENCODINGS[weight.encoding],
        _beside(weight),
        SCALES[_scale_dtype(weight)],
    )
    run("pack_quantized", None, len(panels), arguments, work=panels.numel())

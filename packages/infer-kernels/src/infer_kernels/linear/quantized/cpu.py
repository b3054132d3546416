"""Weights of four and eight bits on a CPU: arguments as the C++ structs of `csrc/linear_quantized.cpp`. Unchecked."""

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
    PackedQuantizedExperts,
    PackedQuantizedWeight,
    QuantizedPanels,
    layout_arguments,
)
from infer_kernels.integers import cdiv
from infer_kernels.linear.cpu import flat_rows
from infer_kernels.quantization.quantized_weight import Encoding, QuantizedWeight

Packed = TypeVar("Packed", bound=QuantizedPanels)
_LINE = 64
_SCALE_BYTES = {BESIDE["nothing"]: 4, BESIDE["zeros"]: 6, BESIDE["minimums"]: 8}
"""Bytes of an output's scale and of what a group has beside it."""
_PACK = Struct("PPqPqPqq" + LAYOUT)
_LINEAR = Struct("PqPqPPq" + LAYOUT)


def can_pack(encoding: Encoding, *, group_size: int, in_features: int) -> bool:
    """Return whether the kernels multiply weights of `encoding` with groups of `group_size`.

    Sums of a row of more inputs than 2**16 may be too large for 32 bits.
    """
    return encoding in ENCODINGS and (group_size >= in_features or group_size % 8 == 0) and in_features <= 1 << 16


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
    )


def _empty_panels(weight: QuantizedWeight, *rows: int) -> Tensor:
    """Return memory for the panels of `weight`, [..., out_features, in_features] with these `rows`."""
    *experts, out_features = rows
    return empty_in_huge_pages((*experts, cdiv(out_features, PANEL), _panel_bytes(weight)), torch.uint8)


def _panel_bytes(weight: QuantizedWeight) -> int:
    """Return the bytes of a panel: `QuantizedLayout::panel_bytes` in `csrc/quantized.h`."""
    inputs, group_size = weight.in_features, weight.group_size
    groups = cdiv(inputs, group_size)
    step = _LINE if groups == 1 or group_size % _LINE == 0 else 8
    last = inputs - (groups - 1) * group_size
    padded = (groups - 1) * cdiv(min(group_size, inputs), step) * step + cdiv(last, step) * step
    code_bytes = padded * PANEL // (1 if weight.encoding == "int8" else 2)
    return code_bytes + groups * PANEL * _SCALE_BYTES[_beside(weight)]


def _beside(weight: QuantizedWeight) -> int:
    """Return what the groups of `weight` have beside their scales."""
    if weight.minimums is not None:
        return BESIDE["minimums"]
    return BESIDE["nothing" if weight.zeros is None else "zeros"]


def _pack_into(panels: Tensor, weight: QuantizedWeight) -> None:
    values, scales, beside = (
        each if each is None or each.stride(-1) == 1 or each.shape[-1] == 1 else each.contiguous()
        for each in (weight.values, weight.scale_numbers, weight.zeros if weight.minimums is None else weight.minimums)
    )
    assert values is not None
    assert scales is not None
    arguments = _PACK.pack(
        panels.data_ptr(),
        values.data_ptr(),
        values.stride(0),
        scales.data_ptr(),
        scales.stride(0),
        0 if beside is None else beside.data_ptr(),
        0 if beside is None else beside.stride(0),
        weight.out_features,
        weight.in_features,
        weight.group_size,
        ENCODINGS[weight.encoding],
        _beside(weight),
    )
    run("pack_quantized", None, len(panels), arguments, work=panels.numel())

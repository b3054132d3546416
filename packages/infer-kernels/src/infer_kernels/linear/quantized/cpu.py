"""Weights of four to eight bits on a CPU: the kernels of `csrc/linear_quantized.cpp`. Unchecked."""

import torch
from torch import Tensor

from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import ask, empty, run
from infer_kernels.cpu.huge_pages import empty_in_huge_pages
from infer_kernels.cpu.packed_weight import PANEL, PackedQuantizedExperts, PackedQuantizedWeight, QuantizedLayout
from infer_kernels.integers import cdiv
from infer_kernels.linear.cpu import flat_rows
from infer_kernels.quantization.encodings import ENCODINGS, Encoding, panel_kinds
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_PANELS = tuple(panel_kinds())
_SCALES = {torch.float32: 0, torch.float16: 1, torch.int8: 2}
"""`ScaleType` of dtypes; panels have fp32 scales of encodings whose own are others."""
_LAYOUT = Arguments("QuantizedLayout")
_PACK = Arguments("PackQuantized")
_LINEAR = Arguments("LinearQuantized")


def can_pack(encoding: Encoding, *, group_size: int, in_features: int) -> bool:
    """Return whether the kernels multiply weights of `encoding` with groups of `group_size`.

    Sums of a row of more inputs than 2**16 may be too large for 32 bits.
    """
    traits = ENCODINGS[encoding]
    unit = max(8, traits.codes_together)
    is_whole = group_size % unit == 0 and (in_features % unit == 0 or unit == 8)
    return traits.panel is not None and (group_size >= in_features or is_whole) and in_features <= 1 << 16


def pack(weight: QuantizedWeight) -> PackedQuantizedWeight:
    """Return a packed copy of `weight` [out_features, in_features]."""
    layout = _layout(weight)
    panels = _empty_panels(layout, weight.out_features)
    _pack_into(panels, weight, layout)
    return PackedQuantizedWeight(
        panels=panels, out_features=weight.out_features, in_features=weight.in_features, layout=layout
    )


def pack_experts(weight: QuantizedWeight) -> PackedQuantizedExperts:
    """Return a packed copy of `weight` [experts, out_features, in_features]."""
    layout = _layout(weight)
    panels = _empty_panels(layout, weight.shape[0], weight.out_features)
    for expert, of_expert in enumerate(panels):
        _pack_into(of_expert, weight.item(expert), layout)
    return PackedQuantizedExperts(
        panels=panels, out_features=weight.out_features, in_features=weight.in_features, layout=layout
    )


def linear(x: Tensor, weight: PackedQuantizedWeight, bias: Tensor | None) -> Tensor:
    """Return x [..., in_features], quantized row by row, @ weight.T + bias."""
    flat = flat_rows(x, weight.in_features)
    out = empty((len(flat), weight.out_features), x.dtype)
    arguments = _LINEAR.pack(
        out=out, x=flat, panels=weight.panels, bias=bias, outputs=weight.out_features, layout=weight.layout
    )
    run("linear_quantized", x.dtype, len(flat), arguments, work=weight.panels.numel(), panels=weight.panels)
    return out.view(*x.shape[:-1], weight.out_features)


def _empty_panels(layout: QuantizedLayout, *rows: int) -> Tensor:
    """Return memory for the panels of a weight with these `rows`, [..., out_features]."""
    *experts, out_features = rows
    panel_bytes = ask("panel_bytes", _LAYOUT.pack(**layout._asdict()))
    return empty_in_huge_pages((*experts, cdiv(out_features, PANEL), panel_bytes), torch.uint8)


def _layout(weight: QuantizedWeight) -> QuantizedLayout:
    panel = ENCODINGS[weight.encoding].panel
    assert panel is not None, f"C++ kernels do not multiply {weight.encoding}"
    return QuantizedLayout(
        inputs=weight.in_features,
        group_size=weight.group_size,
        encoding=_PANELS.index(panel.name),
        beside=2 if weight.minimums is not None else 0 if weight.zeros is None else 1,
        scales=_SCALES.get(weight.scales.dtype, 0),
    )


def _pack_into(panels: Tensor, weight: QuantizedWeight, layout: QuantizedLayout) -> None:
    given = (
        weight.values,
        weight.scales if weight.scales.dtype in _SCALES else weight.scale_numbers,
        weight.zeros if weight.minimums is None else weight.minimums,
        weight.scale_factors,
        weight.minimum_factors,
    )
    values, scales, beside, factors, minimum_factors = (
        each if each is None or each.stride(-1) == 1 or each.shape[-1] == 1 else each.contiguous() for each in given
    )
    arguments = _PACK.pack(
        packed=panels,
        values=values,
        scales=scales,
        beside=beside,
        factors=factors,
        minimum_factors=minimum_factors,
        outputs=weight.out_features,
        layout=layout,
    )
    run("pack_quantized", None, len(panels), arguments, work=panels.numel())

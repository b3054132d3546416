"""Copies weights, whole or in part, into memory that may store numbers in another way."""

from collections.abc import Sequence

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight, quantize_fp8, quantize_int4, quantize_int8

_NUMBERS_AT_ONCE = 1 << 20


def assign(target: Tensor | QuantizedWeight, source: Tensor | QuantizedWeight) -> None:
    """Copy `source` [..., in_features] into `target`, quantizing or dequantizing where they are stored differently.

    That takes memory for about a million numbers.
    """
    if isinstance(target, Tensor) and isinstance(source, Tensor):
        target.copy_(source)
        return
    if isinstance(target, QuantizedWeight) and isinstance(source, QuantizedWeight):
        is_wider = target.encoding in source.traits.becomes
        if is_wider and source.zeros is None and _divide(target, source):
            source = source.as_encoding(target.encoding)
        if _are_alike(target, source):
            target.copy_(source)
            return
    if len(source.shape) > 2:
        for index in range(source.shape[0]):
            assign(item_of(target, index), item_of(source, index))
        return
    num_rows = max(1, _NUMBERS_AT_ONCE // source.shape[-1])
    for start in range(0, source.shape[0], num_rows):
        size = min(num_rows, source.shape[0] - start)
        rows = select_rows(source, start, size)
        numbers = rows.dequantize() if isinstance(rows, QuantizedWeight) else rows
        into = select_rows(target, start, size)
        if isinstance(into, Tensor):
            into.copy_(numbers)
        else:
            into.copy_(_quantize(numbers.to(into.device), into))


def select_rows(weight: Tensor | QuantizedWeight, start: int, size: int) -> Tensor | QuantizedWeight:
    """Return a view of `size` rows of a weight [rows, ...], from `start` on."""
    return weight.rows(start, size) if isinstance(weight, QuantizedWeight) else weight[start : start + size]


def split_rows(weight: Tensor | QuantizedWeight, sizes: Sequence[int]) -> list[Tensor | QuantizedWeight]:
    """Return views of the parts of a weight [rows, ...], which have so many rows each."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [select_rows(weight, start, size) for start, size in zip(starts, sizes, strict=True)]


def item_of(weight: Tensor | QuantizedWeight, index: int) -> Tensor | QuantizedWeight:
    """Return the item of that index of a weight [items, ...]."""
    return weight.item(index) if isinstance(weight, QuantizedWeight) else weight[index]


def _divide(target: QuantizedWeight, source: QuantizedWeight) -> bool:
    """Whether groups of `target` divide those of `source`."""
    return source.group_size % target.group_size == 0 or source.scales.shape[-1] == 1


def _are_alike(target: QuantizedWeight, source: QuantizedWeight) -> bool:
    """Whether `target` can hold the codes of `source`."""
    has_place = target.zeros is not None or source.zeros is None
    if target.minimums is None or target.encoding == "int4":  # whose codes of zero depend on them
        has_place = has_place and (target.minimums is None) == (source.minimums is None)
    is_same = target.encoding == source.encoding and target.scales.dtype in (source.scales.dtype, torch.float32)
    return is_same and _divide(target, source) and has_place


def _quantize(numbers: Tensor, like: QuantizedWeight) -> QuantizedWeight:
    """Quantize numbers [rows, in_features] as `like` is.

    Raises:
        ValueError: nothing is ever quantized so.
    """
    is_by_row = like.group_size >= like.in_features
    match like.encoding:
        case "int8" if is_by_row:
            return quantize_int8(numbers)
        case "fp8_e4m3" if is_by_row:
            return quantize_fp8(numbers)
        case "int4":
            return quantize_int4(numbers, group_size=like.group_size)
        case _:
            raise ValueError(f"Weights are not quantized to {like.encoding} with groups of {like.group_size}.")

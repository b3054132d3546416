"""The memory of a number that a kernel streams: a weight, or keys and values."""

import re
from typing import get_args

import torch

from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_kernels.quantization import Encoding, QuantizedWeight

_ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)


def streamed_bits(case: LaunchCase) -> float | None:
    """Return bits of a number, all that groups have included, by the case's label; None: its kernel streams nothing."""
    if case.op in ("paged_decode", "paged_prefill"):
        return 8.0 if "fp8 cache" in case.label else 8.0 * case.dtype.itemsize
    stored = re.search(rf"\b({'|'.join(_ENCODINGS)}), (?:rows|groups of (\d+))(, zeros|, minimums)?", case.label)
    if stored is None:
        return 8.0 * case.dtype.itemsize
    encoding = next(each for each in _ENCODINGS if each == stored[1])
    weight = QuantizedWeight.empty(
        256,
        4096,
        encoding=encoding,
        group_size=None if stored[2] is None else int(stored[2]),
        has_zeros=stored[3] == ", zeros",
        has_minimums=stored[3] == ", minimums",
        device=torch.device("cpu"),
    )
    return weight.num_bytes * 8 / (256 * 4096)

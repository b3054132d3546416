"""Dense layers with quantized weights at many rows: weights dequantized into a scratch, which the library multiplies.

    y[:, piece] = x @ w[piece].T + bias[piece],  w = round((code - zero) * scale - minimum) to the dtype of x

`linear_quantized` makes the numbers of a weight anew for each 128 rows, and its products wait for them. Counted for 128
rows, 128 outputs and 64 inputs, in cycles of a multiprocessor: on sm_90 380 of instructions and 1,024 of tensor cores,
on sm_80 1,050 and 1,024. The library multiplies while it loads; a number is dequantized once, in about 20 instructions,
1,300 cycles for as many numbers. At 85% of the library's peak that is worth it from 900 rows on on sm_90, and from 200
on on sm_80; nobody has measured it.

Bytes moved: the weight once, 4 for each of its numbers, and the library's products.

Precision: unlike in `linear_quantized`, a number of the weight is rounded to the dtype of x before it is multiplied:
an error of 2^-9 of each weight at most in bf16 and 2^-12 in fp16, as of a checkpoint that is stored in that dtype; what
is beyond 65,504 is infinite in fp16. Then the library's precision, one rounding. A row's bits depend on the number of
rows: batch-invariant layers are not computed so.
"""

import torch
from torch import Tensor

from infer_kernels.embedding import embedding_quantized_triton
from infer_kernels.quantization.quantized_weight import QuantizedWeight

LEAST_ROWS = 1024
"""Rows of x from which on a weight is dequantized once."""
SCRATCH = 2**25
"""Numbers that are dequantized at once: 64 MiB. An LM head has some ten times as many."""


def takes_dequantized(x: Tensor, weight: QuantizedWeight) -> bool:
    """Whether x [rows, in_features] has so many rows, of bf16 or fp16, that `weight` is dequantized once for them."""
    is_even = weight.group_size % 2 == 0 or weight.scales.shape[-1] == 1
    is_served = is_even and not weight.traits.is_tiled
    return len(x) >= LEAST_ROWS and x.dtype.itemsize == 2 and is_served


def linear_dequantized(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, *, out: Tensor) -> Tensor:
    """Dequantize as many outputs as the scratch holds and multiply them, until all are; unchecked.

    Args:
        x: [rows, in_features], bf16 or fp16, stride 1 in the last dimension.
        weight: [out_features, in_features], of any order and any encoding that is not tiled; groups of an even number
            of inputs, or rows.
        bias: [out_features] of the dtype of `x`, or None.
        out: [rows, out_features], like `x`.

    Returns:
        `out`.
    """
    piece = max(1, SCRATCH // max(1, weight.in_features))
    ids = torch.arange(min(piece, weight.out_features), dtype=torch.int32, device=x.device)
    for start in range(0, weight.out_features, piece):
        size = min(piece, weight.out_features - start)
        numbers = embedding_quantized_triton(ids[:size], weight.rows(start, size), dtype=x.dtype)
        part = None if bias is None else bias[start : start + size]
        target = out[:, start : start + size]
        if part is None:
            torch.mm(x, numbers.T, out=target)
        else:
            torch.addmm(part, x, numbers.T, out=target)
    return out

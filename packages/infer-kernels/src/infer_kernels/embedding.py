"""Embeddings: rows of a table, times a number.

    y = weight[ids] * scale

Bytes moved: tokens * hidden * 2 * itemsize, of a quantized table less. Precision: one rounding; a quantized table's
numbers are computed in fp32.
"""

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.checks import require_dense_rows, require_float, require_integer, require_rank
from infer_kernels.cpu import ops, quantized_ops
from infer_kernels.cpu.calls import is_recording
from infer_kernels.cpu.packed_weight import PackedQuantizedWeight
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.quantization.embedding_quantized import embedding_quantized_torch, embedding_quantized_triton
from infer_kernels.quantization.quantized_weight import TILED, QuantizedWeight


def embedding_reference(ids: Tensor, weight: Tensor, *, scale: float = 1.0) -> Tensor:
    """`weight[ids] * scale` in plain fp32 PyTorch; arguments as for `embedding`. Differentiable."""
    return (weight[ids.long()].float() * scale).to(weight.dtype)


def embedding(ids: Tensor, weight: Tensor, *, scale: float = 1.0) -> Tensor:
    """The row of each token id.

    Args:
        ids: [tokens], int32 or int64.
        weight: [rows, hidden], fp32, bf16 or fp16.
        scale: multiplies the rows.

    Returns:
        [tokens, hidden], like `weight`. Differentiable.

    Raises:
        ValueError: a shape or stride does not fit.
        TypeError: a dtype does not fit.
        IndexError: an id is not a row of `weight`; a captured step gives NaN instead.
    """
    require_rank("ids", ids, "tokens")
    require_integer("ids", ids)
    require_rank("weight", weight, "rows, hidden")
    require_float("weight", weight)
    if not takes_cpu_kernel(weight):
        rows = functional.embedding(ids, weight)
        return rows if scale == 1.0 else rows * scale
    require_dense_rows("weight", weight)
    _require_ids(ids, weight.shape[0])
    return ops.embedding(ids, weight, scale)


def embedding_quantized(
    ids: Tensor, weight: QuantizedWeight | PackedQuantizedWeight, *, scale: float = 1.0, dtype: torch.dtype
) -> Tensor:
    """The row of each token id in a quantized table.

    Args:
        ids: [tokens], int32 or int64.
        weight: [rows, hidden]; may come from `prepack`.
        scale: multiplies the rows.
        dtype: of the result: fp32, bf16 or fp16.

    Returns:
        [tokens, hidden].

    Raises:
        ValueError: a shape does not fit.
        TypeError: a dtype does not fit.
        IndexError: an id is not a row of `weight`; a captured step gives NaN instead.
    """
    require_rank("ids", ids, "tokens")
    require_integer("ids", ids)
    if isinstance(weight, PackedQuantizedWeight):
        _require_ids(ids, weight.out_features)
        return quantized_ops.embedding(ids, weight, scale, dtype)
    takes_kernel = takes_triton(weight.values) and weight.encoding not in TILED
    look_up = embedding_quantized_triton if takes_kernel else embedding_quantized_torch
    return look_up(ids, weight, dtype=dtype, scale=scale)


def _require_ids(ids: Tensor, num_rows: int) -> None:
    """Raise `IndexError` unless all of `ids` are rows; while a step is recorded, they are not known."""
    if len(ids) and not is_recording():
        least, most = (int(bound) for bound in ids.aminmax())
        if least < 0 or most >= num_rows:
            raise IndexError(f"`ids` are from {least} to {most}; pass rows of `weight`: 0 to {num_rows - 1}")

"""Embeddings: rows of a table, times a number.

    y = weight[ids] * scale

Bytes moved: tokens * hidden * 2 * itemsize. Precision: one rounding.
"""

from torch import Tensor
from torch.nn import functional

from infer_kernels.checks import require_dense_rows, require_float, require_integer, require_rank
from infer_kernels.cpu import ops
from infer_kernels.cpu.calls import is_recording
from infer_kernels.dispatch import takes_cpu_kernel


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
    if len(ids) and not is_recording():
        least, most = (int(bound) for bound in ids.aminmax())
        if least < 0 or most >= weight.shape[0]:
            raise IndexError(f"`ids` are from {least} to {most}; pass rows of `weight`: 0 to {weight.shape[0] - 1}")
    return ops.embedding(ids, weight, scale)

"""Rows of a table by token id; those of quantized tables are in `quantized/`."""

from collections.abc import Iterator
from functools import partial

import torch

from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.op_call import OpCall
from infer_kernels.checks.self_check import ModelOps, SelfCheck, draw

MAX_ROWS = 4096
SHAPES = ((1, 1), (5, 17), (300, 1000))
"""Odd ones: [vocab, hidden]."""


def embedding_call(num_rows: int, hidden: int, dtype: torch.dtype, *, scale: float) -> OpCall:
    """Return a call with ids at both ends of a table [num_rows, hidden], and between them."""
    ids = torch.tensor([0, num_rows - 1, num_rows // 2, 0], dtype=torch.int32)
    rounded_scale = torch.tensor(scale, dtype=dtype).item()
    return OpCall(
        op="embedding",
        label=f"{dtype}, {num_rows} rows of {hidden}, scale {scale}",
        tensors=(ids, draw(num_rows, hidden, dtype=dtype)),
        options={"scale": rounded_scale},
    )


def embedding_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the check of a model's embedding."""
    yield SelfCheck(op="embedding", label="ids at both ends of the table", run=partial(_check, ops))


def embedding_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield tables of odd shapes, with a scale and without."""
    for num_rows, hidden in SHAPES:
        for scale in (1.0, 33.9):
            yield embedding_call(num_rows, hidden, dtype, scale=scale)


def _check(ops: ModelOps, device: torch.device) -> None:
    num_rows = min(ops.vocab_size, MAX_ROWS)
    embedding_call(num_rows, ops.hidden_size, ops.dtype, scale=ops.embedding_scale).compare(device)


EMBEDDING = OpCases(ops=("embedding",), checks=embedding_checks, calls=embedding_calls)

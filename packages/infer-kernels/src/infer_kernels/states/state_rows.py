"""`StateRows`: which rows of a batch belong to which sequence, and where its state is read and written."""

from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_dtype,
    require_rank,
    require_shape,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRows:
    """The sequences of a step, and the slots of their states.

    A sequence's state is read in one slot and written into another, so that a step that fails can be computed again and
    what it has read can be kept, or into the same one, so that it takes one slot alone. No slot is written twice, but
    for -1, and none is read by a sequence and written by another, with one exception.

    The exception: rows of one sequence may be given as several, which leave a state each. Each but the first reads the
    slot that the one before it writes, each but the last has rows, and none writes the slot that the first one reads.

    Attributes:
        query_start: [seqs + 1] int32: rows `query_start[i]` to `query_start[i + 1]` belong to sequence i, which may
            have none. What ops return for other rows may be anything.
        read: [seqs] int32: the slot of the state before these rows; -1: the sequence begins, its state is zeros.
        write: [seqs] int32: the slot of the state after these rows; -1: it is not kept.
    """

    query_start: Tensor
    read: Tensor
    write: Tensor

    def __post_init__(self) -> None:
        """Check shapes, dtypes and devices.

        Raises:
            ValueError: a shape, device or stride does not fit.
            TypeError: a dtype is not int32.
        """
        require_rank("read", self.read, "seqs")
        seqs = self.num_seqs
        require_shape("write", self.write, (seqs,), "as many as `read`")
        require_shape("query_start", self.query_start, (seqs + 1,), "one more than `read`")
        for name in ("query_start", "read", "write"):
            tensor = getattr(self, name)
            require_dtype(name, tensor, torch.int32)
            require_device(name, tensor, "read", self.read.device)
            require_dense_rows(name, tensor)

    @property
    def num_seqs(self) -> int:
        """Number of sequences; in a captured step the most of a replay."""
        return self.read.shape[0]

    def require_device(self, name: str, device: torch.device) -> None:
        """Raise `ValueError` unless the rows are on `device`, where the argument called `name` is."""
        require_device("rows", self.read, name, device)


def require_matrices(state: Tensor, name: str, device: torch.device) -> None:
    """Raise unless `state`, matrices of every slot, is dense, fp32 or bf16, and on `device`, where `name` is."""
    if state.dtype != torch.bfloat16:
        require_dtype("state", state, torch.float32)
    require_device("state", state, name, device)
    require_dense_rows("state", state)

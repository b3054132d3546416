"""`StateRows`: which rows of a batch belong to which sequence, and where its state is read and written."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRows:
    """The sequences of a step, and the slots of their states.

    A step reads the state before its tokens in one slot and writes the state after them into another, so that a step
    that fails can be computed again, and what it has read can be kept. No slot is read and written in one step, and
    none is written twice, but for -1.

    Attributes:
        query_start: [seqs + 1] int32: rows `query_start[i]` to `query_start[i + 1]` belong to sequence i, which may
            have none. What ops return for other rows may be anything.
        read: [seqs] int32: the slot of the state before these rows; -1: the sequence begins, its state is zeros.
        write: [seqs] int32: the slot of the state after these rows; -1: it is not kept.
    """

    query_start: Tensor
    read: Tensor
    write: Tensor

"""The beginning and the end of sequences that go on from what the ones before them write, for kernels."""

from typing import NamedTuple

from infer_kernels.optional_triton import tl, triton


class StateSequences(NamedTuple):
    """Pointers to the rows and slots of sequences, as `StateRows` has them.

    Attributes:
        query_start: [seqs + 1].
        read: [seqs].
        write: [seqs].
    """

    query_start: tl.tensor
    read: tl.tensor
    write: tl.tensor


@triton.jit
def beginning(
    sequences: StateSequences,
    seq: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The first row of the sequence with which `seq` begins, the slot that is read there, -1: zeros, and its number.

    So each of them is computed from there on, and none waits for what another one writes.
    """
    first, slot = tl.load(sequences.query_start + seq), tl.load(sequences.read + seq)
    before = tl.load(sequences.write + seq - 1, mask=seq > 0, other=-1)
    while (slot >= 0) & (slot == before):
        seq -= 1
        first, slot = tl.load(sequences.query_start + seq), tl.load(sequences.read + seq)
        before = tl.load(sequences.write + seq - 1, mask=seq > 0, other=-1)
    return first, slot, seq


@triton.jit
def ending(
    sequences: StateSequences,
    seq: tl.tensor,
    num_seqs: tl.tensor,
) -> tl.tensor:
    """The row after those of the last sequence that goes on from `seq`."""
    slot = tl.load(sequences.write + seq)
    after = tl.load(sequences.read + seq + 1, mask=seq + 1 < num_seqs, other=-1)
    while (slot >= 0) & (slot == after):
        seq += 1
        slot = tl.load(sequences.write + seq)
        after = tl.load(sequences.read + seq + 1, mask=seq + 1 < num_seqs, other=-1)
    return tl.load(sequences.query_start + seq + 1)

"""The beginning of a sequence that goes on from what the ones before it write, for kernels."""

from infer_kernels.optional_triton import tl, triton


@triton.jit
def beginning(
    query_start: tl.tensor,  # [seqs + 1]
    read: tl.tensor,  # [seqs]
    write: tl.tensor,  # [seqs]
    seq: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """The first row of the sequence with which `seq` begins, and the slot that is read there; -1: zeros.

    So each of them is computed from there on, and none waits for what another one writes.
    """
    first, slot = tl.load(query_start + seq), tl.load(read + seq)
    before = tl.load(write + seq - 1, mask=seq > 0, other=-1)
    while (slot >= 0) & (slot == before):
        seq -= 1
        first, slot = tl.load(query_start + seq), tl.load(read + seq)
        before = tl.load(write + seq - 1, mask=seq > 0, other=-1)
    return first, slot

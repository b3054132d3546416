"""`BatchParts`: where the inputs of a batch lie in a buffer.

    parts      input ids │ positions │ slots of each group │ logits indices │ sequences: query starts, lengths, phases,
    elements     rows    │   rows    │       rows          │    sequences   │ rows of their block tables

The sequences are there only if the device reads them. Where a part lies depends on the shape of the batch alone, so
that a captured step finds it.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_engine.model_runner.forward_batch import BatchShape


class BatchParts:
    """Views of the parts of a batch, on the host as arrays and on the device as tensors, all int32.

    Attributes:
        shape: of the batch.
        size: elements of all parts.
        input_ids: [rows], on the host; so are those below.
        position_ids: [rows].
        slots: [groups, rows].
        logits_indices: [seqs].
        query_start: [seqs + 1], or None like those below if the device does not read the sequences.
        seq_lens: [seqs].
        is_prefill: [seqs].
        block_rows: [seqs].
        on_device: the tensors of these parts: ids, positions, each group's slots, logits indices, and the sequences'.
    """

    __slots__ = (
        "block_rows",
        "input_ids",
        "is_prefill",
        "logits_indices",
        "on_device",
        "position_ids",
        "query_start",
        "seq_lens",
        "shape",
        "size",
        "slots",
    )

    query_start: npt.NDArray[np.int32] | None
    seq_lens: npt.NDArray[np.int32] | None
    is_prefill: npt.NDArray[np.int32] | None
    block_rows: npt.NDArray[np.int32] | None

    def __init__(
        self, host: Tensor, device: Tensor, *, shape: BatchShape, num_groups: int, has_sequences: bool
    ) -> None:
        """View the beginnings of `host` and `device`, int32 buffers of equal size."""
        rows, seqs = shape.num_tokens, shape.num_seqs
        sizes = [rows] * (2 + num_groups) + [seqs]
        if has_sequences:
            sizes += [seqs + 1, seqs, seqs, seqs]
        ends = np.cumsum(sizes).tolist()
        self.shape = shape
        self.size: int = ends[-1]
        array: npt.NDArray[np.int32] = host.numpy()
        pieces = [array[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        self.input_ids, self.position_ids = pieces[:2]
        self.slots = array[2 * rows : (2 + num_groups) * rows].reshape(num_groups, rows)
        self.logits_indices = pieces[2 + num_groups]
        self.query_start, self.seq_lens, self.is_prefill, self.block_rows = pieces[3 + num_groups :] or (None,) * 4
        self.on_device: tuple[Tensor, ...] = torch.split(device[: self.size], sizes)

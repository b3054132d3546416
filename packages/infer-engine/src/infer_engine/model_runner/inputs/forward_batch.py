"""`ForwardBatch`: the inputs of a forward pass as one flat batch of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_cache import StateMove
from infer_kernels import DeviceMetadata, StateRows

if TYPE_CHECKING:
    from infer_engine.model_runner.inputs.staged_step import StagedStep


class BatchShape(NamedTuple):
    """The size of a batch, padding included.

    Attributes:
        num_tokens: rows of the model's input.
        num_seqs: sequences that these rows belong to.
        is_decode_only: whether each sequence has one row, after its prompt, that is stored and sampled.
    """

    num_tokens: int
    num_seqs: int
    is_decode_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInputs:
    """A batch as a device reads it. All tensors are int32 and on the device.

    A batch that is padded to the shape of a captured step has more rows than tokens. They are not stored and attend to
    nothing; what is computed for them may be anything.

    Attributes:
        shape: its size.
        input_ids: [rows]. A pending token, which the host does not know, is `-1 - Request.pending_row`.
        position_ids: [rows].
        slots: by group of layers, [rows]: the slot of each token's keys and values, `block * block_size + offset`; -1
            for rows that are not stored: padding, and tokens whose keys and values are cached.
        metadata: by group of layers, the sequences, padding included; None if the device reads none.
        state_rows: the sequences and the slots of their states, padding included; None if the model has no states.
    """

    shape: BatchShape
    input_ids: Tensor
    position_ids: Tensor
    slots: tuple[Tensor, ...]
    metadata: tuple[DeviceMetadata, ...] | None
    state_rows: StateRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch(DeviceInputs):
    """The inputs of a forward pass. Tensors on the host have no padding.

    Attributes:
        num_tokens: its tokens, without padding.
        logits_indices: [sampled] int32 on the device: the rows whose logits are sampled.
        query_start: [seqs + 1] int32 on the host: rows `query_start[i]` to `query_start[i + 1]` belong to sequence i.
        seq_lens: [seqs] int32 on the host: length of each sequence after this step.
        total_len: the sum of all lengths.
        is_prefill: [seqs] bool on the host: whether a sequence's rows are prompt tokens or a recomputation.
        gather_block_tables: returns, by group of layers, [seqs, columns] int32 on the host. Valid until the next batch.
        has_pending_tokens: whether any of `input_ids` is below 0.
        stage: returns what another rank needs to stage the same step. Valid until the next batch.
    """

    num_tokens: int
    logits_indices: Tensor
    query_start: Tensor
    seq_lens: Tensor
    total_len: int
    is_prefill: Tensor
    gather_block_tables: Callable[[], tuple[Tensor, ...]]
    has_pending_tokens: bool
    stage: Callable[[], "StagedStep"]

    @property
    def is_decode_only(self) -> bool:
        """Whether each sequence has one row, after its prompt, that is stored and sampled."""
        return self.shape.is_decode_only


class BatchParts:
    """Views of the parts of a batch in one buffer, on the host as arrays and on the device as tensors, all int32.

    parts      input ids │ positions │ slots of each group │ logits indices │ sequences: query starts, lengths, phases,
    elements     rows    │   rows    │       rows          │    sequences   │ rows of their block tables; their states

    The sequences are there only if the device reads them, the states, which begin with query starts of their own, only
    if the model has some. Where a part lies depends on the shape of the batch alone, so
    that a captured step finds it.

    Attributes:
        size: elements of all parts.
        input_ids: [rows], on the host; so are those below.
        position_ids: [rows].
        slots: [groups, rows].
        logits_indices: [seqs].
        query_start: [seqs + 1], or None like those below if the device does not read the sequences.
        seq_lens: [seqs].
        is_prefill: [seqs].
        block_rows: [seqs].
        state_starts: [seqs + 1], or None like those below if the model has no states.
        state_reads: [seqs].
        state_writes: [seqs].
        logits_indices_on_device: the tensor of that part.
        inputs: what the device reads.
    """

    __slots__ = (
        "block_rows",
        "input_ids",
        "inputs",
        "is_prefill",
        "logits_indices",
        "logits_indices_on_device",
        "position_ids",
        "query_start",
        "seq_lens",
        "size",
        "slots",
        "state_reads",
        "state_starts",
        "state_writes",
    )

    query_start: npt.NDArray[np.int32] | None
    seq_lens: npt.NDArray[np.int32] | None
    is_prefill: npt.NDArray[np.int32] | None
    block_rows: npt.NDArray[np.int32] | None
    state_starts: npt.NDArray[np.int32] | None
    state_reads: npt.NDArray[np.int32] | None
    state_writes: npt.NDArray[np.int32] | None

    def __init__(
        self,
        host: Tensor,
        device: Tensor,
        *,
        shape: BatchShape,
        num_groups: int,
        tables_on_device: tuple[Tensor, ...] | None,
        has_states: bool = False,
    ) -> None:
        """View the beginnings of `host` and `device`, int32 buffers of equal size.

        The device reads the sequences, and their blocks in `tables_on_device`, unless that is None.
        """
        rows, seqs = shape.num_tokens, shape.num_seqs
        sizes = [rows] * (2 + num_groups) + [seqs]
        if tables_on_device is not None:
            sizes += [seqs + 1, seqs, seqs, seqs]
        of_states = slice(len(sizes), len(sizes) + 3)
        if has_states:
            sizes += [seqs + 1, seqs, seqs]
        ends = np.cumsum(sizes).tolist()
        self.size: int = ends[-1]
        array: npt.NDArray[np.int32] = host.numpy()
        pieces = [array[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        self.input_ids, self.position_ids = pieces[:2]
        self.slots = array[2 * rows : (2 + num_groups) * rows].reshape(num_groups, rows)
        self.logits_indices = pieces[2 + num_groups]
        of_sequences = slice(3 + num_groups, of_states.start)
        self.query_start, self.seq_lens, self.is_prefill, self.block_rows = pieces[of_sequences] or (None,) * 4
        self.state_starts, self.state_reads, self.state_writes = pieces[of_states] or (None,) * 3
        on_device = torch.split(device[: self.size], sizes)
        self.logits_indices_on_device = on_device[2 + num_groups]
        metadata = None
        if tables_on_device is not None:
            query_start, seq_lens, is_prefill, block_rows = on_device[of_sequences]
            metadata = tuple(
                DeviceMetadata(
                    query_start=query_start,
                    seq_lens=seq_lens,
                    is_prefill=is_prefill,
                    block_rows=block_rows,
                    block_table=table,
                )
                for table in tables_on_device
            )
        self.inputs = DeviceInputs(
            shape=shape,
            input_ids=on_device[0],
            position_ids=on_device[1],
            slots=on_device[2 : 2 + num_groups],
            metadata=metadata,
            state_rows=_state_rows(*on_device[of_states]) if has_states else None,
        )

    @property
    def shape(self) -> BatchShape:
        """Shape of the batch, padding included."""
        return self.inputs.shape

    def write_states(self, query_start: npt.NDArray[np.int32], moves: Sequence[StateMove]) -> None:
        """Write the slots of the states of a batch's sequences; none where `moves` is empty, and none of padding."""
        if self.state_starts is None:
            return
        assert self.state_reads is not None
        assert self.state_writes is not None
        self.state_starts[: len(query_start)] = query_start
        self.state_starts[len(query_start) :] = query_start[-1]
        for part in (self.state_reads, self.state_writes):
            part[len(moves) :] = -1
        if moves:
            self.state_reads[: len(moves)], self.state_writes[: len(moves)] = np.array(moves, np.int32).T


def _state_rows(query_start: Tensor, read: Tensor, write: Tensor) -> StateRows:
    return StateRows(query_start=query_start, read=read, write=write)

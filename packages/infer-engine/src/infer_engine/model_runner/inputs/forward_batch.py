"""`ForwardBatch`: the inputs of a forward pass as one flat batch of tokens; `BatchParts`: where they lie."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_engine.request import StepRow
from infer_kernels import DeviceMetadata
from infer_models import ModelConfig
from infer_models.layer_states import STATE_SLOTS

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPart:
    """An optional part of a batch, some numbers for each of its sequences, which is declared in `ROW_PARTS` alone.

    They are written for each row of a step and for padding, copied to the device, staged for other ranks, and copied
    into captured steps, with the rest of a batch. A layer of the model reads them as `KVCacheView.numbers(name)`.

    Attributes:
        name: its name.
        num_columns: numbers of each sequence.
        padding: each number of a sequence of padding.
        read: returns the numbers of a row of a step.
        is_in: returns whether batches of a model have the part.
    """

    name: str
    num_columns: int
    padding: int
    read: Callable[[StepRow], Sequence[int]]
    is_in: Callable[[ModelConfig], bool]


STATES = RowPart(
    name=STATE_SLOTS,
    num_columns=2,
    padding=-1,
    read=attrgetter("state_move"),
    is_in=lambda config: any(spec is not None for spec in config.states),
)
"""The slots of states that are read, and those that are written."""

ROW_PARTS = (STATES,)
"""All optional parts that there are."""


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
        row_parts: the optional parts that the model has, each number of the sequences [seqs], padding included.
        row_starts: [seqs + 1]: the rows of each sequence, none of padding; None if there are no such parts.
    """

    shape: BatchShape
    input_ids: Tensor
    position_ids: Tensor
    slots: tuple[Tensor, ...]
    metadata: tuple[DeviceMetadata, ...] | None
    row_parts: Mapping[RowPart, tuple[Tensor, ...]] = field(default_factory=dict)
    row_starts: Tensor | None = None


class StagedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that a step copies to the device, with which another rank stages the same step; numbers are int32.

    Attributes:
        shape: size of the batch, padding included.
        num_tokens: rows without padding.
        num_seqs: sequences without padding.
        num_sampled: rows whose logits are sampled.
        has_pending_tokens: whether only rank 0's device knows some token ids.
        parts: the parts of the batch, as `BatchParts` divides them.
        elements: int64: elements of the block tables that have changed.
        values: what they have become.
    """

    shape: BatchShape
    num_tokens: int
    num_seqs: int
    num_sampled: int
    has_pending_tokens: bool
    parts: bytes
    elements: bytes
    values: bytes


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
    stage: Callable[[], StagedStep]

    @property
    def is_decode_only(self) -> bool:
        """Whether each sequence has one row, after its prompt, that is stored and sampled."""
        return self.shape.is_decode_only


class BatchParts:
    """Views of the parts of a batch in one buffer, on the host as arrays and on the device as tensors, all int32.

    parts      input ids │ positions │ slots of each group │ logits indices │ sequences: query starts, lengths, phases,
    elements     rows    │   rows    │       rows          │    sequences   │ rows of their block tables; optional parts

    The sequences are there only if the device reads them, the optional parts, which begin with query starts of their
    own, only if the model has some. Where a part lies depends on the shape of the batch alone, so that a captured step
    finds it.

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
        row_starts: [seqs + 1], or None if there are no optional parts.
        row_parts: the optional parts, each number of the sequences [seqs].
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
        "row_parts",
        "row_starts",
        "seq_lens",
        "size",
        "slots",
    )

    query_start: npt.NDArray[np.int32] | None
    seq_lens: npt.NDArray[np.int32] | None
    is_prefill: npt.NDArray[np.int32] | None
    block_rows: npt.NDArray[np.int32] | None
    row_starts: npt.NDArray[np.int32] | None

    def __init__(
        self,
        host: Tensor,
        device: Tensor,
        *,
        shape: BatchShape,
        num_groups: int,
        tables_on_device: tuple[Tensor, ...] | None,
        row_parts: Sequence[RowPart] = (),
    ) -> None:
        """View the beginnings of `host` and `device`, int32 buffers of equal size; `row_parts` are the optional parts.

        The device reads the sequences, and their blocks in `tables_on_device`, unless that is None.
        """
        rows, seqs = shape.num_tokens, shape.num_seqs
        sizes = [rows] * (2 + num_groups) + [seqs]
        if tables_on_device is not None:
            sizes += [seqs + 1, seqs, seqs, seqs]
        first_optional = len(sizes)
        if row_parts:
            sizes += [seqs + 1, *(seqs for part in row_parts for _ in range(part.num_columns))]
        ends = np.cumsum(sizes).tolist()
        self.size: int = ends[-1]
        array: npt.NDArray[np.int32] = host.numpy()
        pieces = [array[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        self.input_ids, self.position_ids = pieces[:2]
        self.slots = array[2 * rows : (2 + num_groups) * rows].reshape(num_groups, rows)
        self.logits_indices = pieces[2 + num_groups]
        of_sequences = slice(3 + num_groups, first_optional)
        self.query_start, self.seq_lens, self.is_prefill, self.block_rows = pieces[of_sequences] or (None,) * 4
        self.row_starts = pieces[first_optional] if row_parts else None
        self.row_parts = _by_part(row_parts, pieces[first_optional + 1 :])
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
            row_parts=_by_part(row_parts, on_device[first_optional + 1 :]),
            row_starts=on_device[first_optional] if row_parts else None,
        )

    @property
    def shape(self) -> BatchShape:
        """Shape of the batch, padding included."""
        return self.inputs.shape

    def write_optional(self, query_start: npt.NDArray[np.int32], rows: Sequence[StepRow]) -> None:
        """Write the optional parts of a batch of `rows`, or of no row but padding."""
        if self.row_starts is None:
            return
        self.row_starts[: len(query_start)] = query_start
        self.row_starts[len(query_start) :] = query_start[-1]
        for part, columns in self.row_parts.items():
            read = chain.from_iterable(map(part.read, rows))
            numbers = np.fromiter(read, np.int32).reshape(-1, part.num_columns)
            for column, values in zip(columns, numbers.T, strict=True):
                column[: len(rows)] = values
                column[len(rows) :] = part.padding


def _by_part(row_parts: Iterable[RowPart], columns: Iterable[T]) -> Mapping[RowPart, tuple[T, ...]]:
    """Return the columns of each part, which lie one after the other."""
    left = iter(columns)
    return {part: tuple(islice(left, part.num_columns)) for part in row_parts}

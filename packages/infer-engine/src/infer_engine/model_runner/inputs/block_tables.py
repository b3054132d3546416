"""`BlockTables`: the block tables of the running requests, by their rows, on the host and on the device.

A scheduler changes them by edits. The copy on a GPU is changed in place by the same edits, so that a step copies what
has changed, not what it reads.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_engine.scheduling import RowEdit


class BlockTables:
    """By group of layers, [rows, columns] int32: the blocks of each row's request, in order.

    Attributes:
        on_host: [groups, rows, columns].
        on_device: the same on the device, by group; None if the device reads none.
    """

    def __init__(
        self, *, num_groups: int, max_rows: int, max_seq_len: int, block_size: int, device: torch.device | None
    ) -> None:
        """Allocate tables of sequences of up to `max_seq_len` tokens, on `device` too unless it is None."""
        # Attention kernels prefetch one block id after a sequence's last one, so rows have one more column.
        shape = (num_groups, max_rows, -(-max_seq_len // block_size) + 1)
        self.on_host: npt.NDArray[np.int32] = np.zeros(shape, dtype=np.int32)
        self.on_device: tuple[Tensor, ...] | None = None
        self._flat: Tensor | None = None
        if device is not None:
            tables = torch.zeros(shape, dtype=torch.int32, device=device)
            self._flat = tables.view(-1)
            self.on_device = tables.unbind()

    def apply(self, edits: Sequence[RowEdit]) -> npt.NDArray[np.int64]:
        """Apply `edits` on the host in their order; return the changed elements, which the device lacks, [edits].

        They are counted over all tables as one vector. An element that is edited twice is there twice.
        """
        tables = self.on_host
        changed: list[int] = []
        _, num_rows, num_columns = tables.shape
        for row, edit in edits:
            count = len(edit.block_ids)
            tables[edit.group, row, edit.column : edit.column + count] = edit.block_ids
            first = (edit.group * num_rows + row) * num_columns + edit.column
            changed += range(first, first + count)
        return np.array(changed, np.int64)

    def set(self, elements: npt.NDArray[np.int64], values: npt.NDArray[np.int32]) -> None:
        """Set elements on the host, which another rank's `apply` has changed."""
        self.on_host.reshape(-1)[elements] = values

    def read(self, elements: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the values of elements on the host."""
        return self.on_host.reshape(-1).take(elements)

    def write_on_device(self, elements: Tensor, values: Tensor) -> None:
        """Set elements of the device's tables: [edits] int64, there, to values [edits] int32."""
        assert self._flat is not None
        self._flat.scatter_(0, elements, values)

    def gather(self, rows: npt.NDArray[np.integer], num_columns: int) -> tuple[Tensor, ...]:
        """Return, by group, the first `num_columns` columns of `rows`, on the host."""
        return tuple(torch.from_numpy(table[rows, :num_columns]) for table in self.on_host)

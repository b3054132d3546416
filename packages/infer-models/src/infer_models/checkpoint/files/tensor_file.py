"""`TensorFile`: an open file of tensors, whatever its format, and the bytes of its tensors.

It is read, not mapped: a file that shrinks or a disk that fails is then an error with a name instead of a signal, and
no more of the file is in memory than the tensor at hand.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

import torch

from infer_kernels import QuantizedWeight
from infer_models.errors import CheckpointError
from infer_models.file_faults import unreadable
from infer_models.weights import FLOATS, WeightSlice, assign, select_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from torch import Tensor

_OF_ONE_RANK = "empty ones are what one rank of a divided training (ZeRO 3, FSDP) saves: gather the weights, then save"
_STAGING_BYTES = 32 * 2**20
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.uint8, "U16": torch.uint16,
    "U32": torch.uint32, "U64": torch.uint64, "C64": torch.complex64,
}  # fmt: skip
"""Dtypes by their names in safetensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """The place of a tensor, or of a part of one, in a file.

    Attributes:
        name: name in the file.
        dtype: dtype as the format spells it, such as `BF16`.
        shape: sizes of the dimensions.
        start: offset of the first byte from the start of the file.
        num_bytes: bytes of all elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int

    @property
    def stored_type(self) -> str:
        """The type that is stored, where numbers of `dtype` are made of it while they are read; otherwise `dtype`."""
        return self.dtype

    @property
    def rows_together(self) -> int:
        """Rows that can only be read together: `rows` takes multiples of them."""
        return 1

    @property
    def column_turns(self) -> tuple[int, int, int]:
        """In how many turns the columns are stored, of how many heads in each, of how many columns each."""
        return 1, 1, self.shape[-1]

    def item(self, index: int) -> "StoredTensor":
        """Return the place of item `index` along the first dimension."""
        num_bytes = self.num_bytes // self.shape[0]
        start = self.start + index * num_bytes
        return replace(self, name=f"{self.name}[{index}]", shape=self.shape[1:], start=start, num_bytes=num_bytes)

    def rows(self, first: int, size: int) -> "StoredTensor":
        """Return the place of `size` rows, from `first` on."""
        row_bytes = self.num_bytes // self.shape[0]
        return replace(
            self,
            name=f"{self.name}[{first}:{first + size}]",
            shape=(size, *self.shape[1:]),
            start=self.start + first * row_bytes,
            num_bytes=size * row_bytes,
        )


class TensorFile(ABC):
    """An open file whose header was checked against its size. A context manager.

    Attributes:
        path: path of the file.
        tensors: its tensors by name.
    """

    def __init__(self, path: Path) -> None:
        """Open the file and read its header.

        Raises:
            CheckpointError: the file is missing, unreadable, truncated or of another format; the message names the
                tensor that does not fit, where it is one.
        """
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb", buffering=0)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self.tensors: Mapping[str, StoredTensor] = MappingProxyType(self._read_header())
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def check(self, stored: StoredTensor, shapes: "Collection[tuple[int, ...]]", dtypes: "Collection[str]") -> None:
        """Raise unless a tensor has one of the shapes, of one number any, and one of the dtypes.

        Raises:
            CheckpointError: it has others.
        """
        if stored.shape not in shapes and not (math.prod(stored.shape) == 1 and () in shapes):
            allowed = " or ".join(str(list(shape)) for shape in shapes)
            cause = "" if stored.num_bytes else f"; {_OF_ONE_RANK}"
            raise CheckpointError(
                f"{self.path}: tensor `{stored.name}` has shape {list(stored.shape)} but `config.json` makes it "
                f"{allowed}{cause}."
            )
        if stored.dtype not in dtypes:
            raise CheckpointError(
                f"{self.path}: tensor `{stored.name}` is {stored.dtype}; it must be one of {', '.join(dtypes)}."
            )

    def read_into(self, stored: StoredTensor, wanted: WeightSlice) -> None:
        """Copy a part of a tensor into its target, converting to its device and storage, 32 MiB at a time.

        Of rows that are wanted in part, the whole is read.

        Raises:
            CheckpointError: as `check`, or the file cannot be read.
        """
        self.check(stored, [wanted.shape], wanted.dtypes)
        dtype = _DTYPES[stored.dtype]
        rows, *columns = wanted.shares
        is_quantized = isinstance(wanted.target, QuantizedWeight)
        # A tensor of which whole rows are wanted is one row of so many elements: pieces may end anywhere.
        is_flat = not is_quantized and all(share.size == share.total for share in columns)
        row_items = 1 if is_flat else columns[0].total
        items_of_row = math.prod(share.total for share in columns)
        num_bytes = rows.size * items_of_row * dtype.itemsize
        piece_bytes = max(1, _STAGING_BYTES // (row_items * dtype.itemsize)) * row_items * dtype.itemsize
        staging = torch.empty(min(num_bytes, piece_bytes), dtype=torch.uint8)
        target = wanted.target.view(-1) if isinstance(wanted.target, torch.Tensor) and is_flat else wanted.target
        self._file.seek(stored.start + rows.start * items_of_row * dtype.itemsize)
        for done in range(0, num_bytes, piece_bytes):
            piece = staging[: num_bytes - done]
            self._fill(piece.numpy().data, f"tensor `{stored.name}`")
            read = piece.view(dtype)
            if not is_flat:
                read = read.view(-1, row_items)[:, columns[0].start : columns[0].start + columns[0].size]
            first = done // (row_items * dtype.itemsize)
            assign(select_rows(target, first, len(read)), read)

    def read(self, stored: StoredTensor) -> "Tensor":
        """Return a tensor as it is stored.

        Raises:
            CheckpointError: the file cannot be read.
        """
        data = torch.empty(stored.num_bytes, dtype=torch.uint8)
        self._file.seek(stored.start)
        self._fill(data.numpy().data, f"tensor `{stored.name}`")
        return data.view(_DTYPES[stored.dtype]).view(stored.shape)

    def items(self, stored: StoredTensor) -> "Iterator[Tensor]":
        """Yield the items of a tensor along its first dimension, as they are stored.

        Raises:
            CheckpointError: the file cannot be read.
        """
        for index in range(stored.shape[0]):
            yield self.read(stored.item(index))

    def number(self, stored: StoredTensor) -> float:
        """Return the one number of a tensor, a float of any shape with one element.

        Raises:
            CheckpointError: it has more numbers or none, or is of another dtype, or the file cannot be read.
        """
        if math.prod(stored.shape) != 1 or stored.dtype not in FLOATS:
            raise CheckpointError(
                f"{self.path}: tensor `{stored.name}` is {stored.dtype} {list(stored.shape)}; it must be one number, "
                f"of one of {', '.join(FLOATS)}."
            )
        return float(self.read(stored))

    @abstractmethod
    def _read_header(self) -> "dict[str, StoredTensor]":
        """Read the header of the open file and return the places of its tensors."""

    def _fill(self, buffer: memoryview, what: str) -> None:
        done = 0
        while done < len(buffer):
            try:
                count = self._file.readinto(buffer[done:])  # type: ignore[attr-defined]  # raw files have it
            except OSError as error:
                raise CheckpointError(f"{self.path}: {what} cannot be read: {error.strerror}.") from error
            if not count:
                raise CheckpointError(f"{self.path} ended while {what} was read: the file is being changed.")
            done += count

"""`read_header`: what a GGUF file says of itself, its metadata and the places of its tensors.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: a magic number, a version, counts, the metadata as pairs of a
key and a typed value, the tensors' names, shapes, types and offsets, and after padding their data. Everything is
little-endian. No count and no length is believed before it was compared with the bytes that are left.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from infer_models.errors import CheckpointError
from infer_models.file_faults import fault_of_content, unreadable
from infer_models.gguf.block_types import BLOCK_TYPES, OTHER_TYPES

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_MAX_HEADER_BYTES = 256 << 20
_MAX_ALIGNMENT = 1 << 16
_MAX_KEY_BYTES = (1 << 16) - 1
_MAX_DIMENSIONS = 4
_MAX_TENSORS = 1 << 20
_READ_BYTES = 1 << 22
_STRING, _ARRAY, _FLOAT32 = 8, 9, 6
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values but strings and arrays, as `struct` spells them."""

Scalar = bool | int | float | str


class GgufArray(NamedTuple):
    """An array of the metadata, whose items are read when they are asked for.

    Attributes:
        kind: type of the items, a number of the format.
        num_items: number of items.
        data: bytes of the items.
    """

    kind: int
    num_items: int
    data: bytes

    @property
    def holds_texts(self) -> bool:
        """Whether its items are strings."""
        return self.kind == _STRING

    def items(self) -> list[Scalar]:
        """Return the items; bytes of a string that are no UTF-8 become replacement characters."""
        if self.kind != _STRING:
            return list(struct.unpack(f"<{self.num_items}{_NUMBERS[self.kind]}", self.data))
        found: list[Scalar] = []
        at = 0
        for _ in range(self.num_items):
            (length,) = struct.unpack_from("<Q", self.data, at)
            found.append(self.data[at + 8 : at + 8 + length].decode("utf-8", errors="replace"))
            at += 8 + length
        return found

    def first(self, num_items: int) -> "GgufArray":
        """Return the array of the first items."""
        if self.kind != _STRING:
            return GgufArray(self.kind, num_items, self.data[: num_items * struct.calcsize(_NUMBERS[self.kind])])
        end = 0
        for _ in range(num_items):
            end += 8 + int.from_bytes(self.data[end : end + 8], "little")
        return GgufArray(self.kind, num_items, self.data[:end])


class TensorPlace(NamedTuple):
    """A tensor of a file.

    Attributes:
        path: path of the file.
        kind: name of its type.
        shape: sizes of the dimensions, that of a row's numbers last.
        start: offset of the first byte from the start of the file.
        num_bytes: bytes of all blocks.
    """

    path: Path
    kind: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The metadata of a file, or of all files of a model.

    Attributes:
        path: path of the file, of several that of the first one.
        metadata: values by key.
        tensors: places of the tensors by name.
    """

    path: Path
    metadata: Mapping[str, Scalar | GgufArray]
    tensors: Mapping[str, TensorPlace]


def read_header(path: Path) -> GgufHeader:
    """Read the header of a file.

    Raises:
        CheckpointError: the file cannot be read, is no GGUF file that is read here, or is damaged; one line that names
            the key or the tensor.
    """
    try:
        stat = path.stat()
        return _read(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise unreadable(path, error) from error


@lru_cache(maxsize=4)
def _read(path: Path, num_bytes: int, changed_at: int) -> GgufHeader:
    """Read a header; those of files that have not changed are kept."""
    del changed_at
    with path.open("rb") as file:
        return _Reader(path, file, num_bytes).header()


def shortest(number: float) -> float:
    """Return the shortest decimal number that is this one in fp32, such as 1e-5, as a `config.json` has it."""
    in_fp32 = struct.pack("<f", number)
    decimals = (float(f"{number:.{digits}g}") for digits in range(6, 9) if math.isfinite(number))
    return next((each for each in decimals if struct.pack("<f", each) == in_fp32), number)


class _Reader:
    """Reads a header from its start to its end."""

    def __init__(self, path: Path, file: BinaryIO, file_bytes: int) -> None:
        self._path = path
        self._file = file
        self._file_bytes = file_bytes
        self._data = b""
        self._base = 0  # offset of `_data` in the file
        self._at = 0  # offset in `_data`

    def header(self) -> GgufHeader:
        self._check_version()
        num_tensors, num_values = self._number("Q", "the counts"), self._number("Q", "the counts")
        if num_tensors > _MAX_TENSORS or num_values > self._left():
            raise self._damaged(f"announces {num_tensors} tensors and {num_values} values")
        metadata: dict[str, Scalar | GgufArray] = {}
        for _ in range(num_values):
            key = self._text("a key", most=_MAX_KEY_BYTES)
            if key in metadata:
                raise self._damaged(f"has the key `{key[:80]}` twice")
            metadata[key] = self._value(f"`{key[:80]}`")
        infos = [self._tensor() for _ in range(num_tensors)]
        return GgufHeader(path=self._path, metadata=metadata, tensors=self._places(infos, self._alignment(metadata)))

    def _check_version(self) -> None:
        magic = self._take(min(4, self._file_bytes), "the magic number")
        if magic != MAGIC:
            fault = fault_of_content(self._path) or "is no GGUF file: it does not begin with `GGUF`"
            raise CheckpointError(f"{self._path} {fault}.")
        version = self._number("I", "the version")
        if version in _VERSIONS:
            return
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise CheckpointError(f"{self._path} is a big-endian GGUF file; only little-endian ones are read.")
        known = " and ".join(map(str, _VERSIONS))
        raise CheckpointError(f"{self._path} is GGUF version {version}; {known} are read: convert the model again.")

    def _alignment(self, metadata: Mapping[str, Scalar | GgufArray]) -> int:
        value = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
        if isinstance(value, int) and 0 < value <= _MAX_ALIGNMENT and not value & (value - 1):
            return int(value)
        raise self._damaged(f"has a `{_ALIGNMENT}` that is no power of two up to {_MAX_ALIGNMENT}: {value!r:.40}")

    def _value(self, what: str) -> Scalar | GgufArray:
        kind = self._number("I", what)
        if kind == _FLOAT32:
            return shortest(self._number(_NUMBERS[kind], what))
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind], what)
        if kind == _STRING:
            return self._text(what)
        if kind != _ARRAY:
            raise self._damaged(f"gives {what} the unknown type {kind}")
        kind, count = self._number("I", what), self._number("Q", what)
        if kind in _NUMBERS:
            return GgufArray(kind, count, self._take(count * struct.calcsize(f"<{_NUMBERS[kind]}"), what))
        if kind != _STRING:
            raise self._damaged(f"makes {what} an array of arrays, or of the unknown type {kind}")
        return GgufArray(kind, count, self._texts(count, what))

    def _texts(self, count: int, what: str) -> bytes:
        """Return the bytes of `count` strings."""
        if count > self._left() // 8:
            raise self._damaged(f"gives {what} {count} items, more than the file has room for")
        pieces: list[bytes] = []
        start = at = self._at
        for _ in range(count):
            end = at + 8
            if end <= len(self._data):
                end += int.from_bytes(self._data[at:end], "little")
            if end > len(self._data):  # what was read ends within this string
                self._at = start
                pieces.append(self._take(at - start, what))
                length = self._take(8, what)
                pieces += [length, self._take(int.from_bytes(length, "little"), what)]
                start = end = self._at
            at = end
        self._at = start
        return b"".join([*pieces, self._take(at - start, what)])

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Return a tensor's name, type, shape, offset in the data and bytes."""
        name = self._text("a tensor's name", most=_MAX_KEY_BYTES)
        what = f"tensor `{name[:80]}`"
        dimensions = self._number("I", what)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"gives {what} {dimensions} dimensions")
        shape = tuple(self._number("Q", what) for _ in range(dimensions))[::-1]
        number, offset = self._number("I", what), self._number("Q", what)
        if number not in BLOCK_TYPES:
            named = OTHER_TYPES.get(number, f"number {number}")
            read = ", ".join(each.name for each in BLOCK_TYPES.values())
            raise CheckpointError(f"{self._path}: {what} is of type {named}, which is not read; {read} are.")
        kind = BLOCK_TYPES[number]
        if 0 in shape or shape[-1] % kind.numbers:
            raise self._damaged(f"gives {what} the shape {list(shape)}, whose rows are no blocks of {kind.numbers}")
        return name, kind.name, shape, offset, math.prod(shape) // kind.numbers * kind.num_bytes

    def _places(
        self, infos: list[tuple[str, str, tuple[int, ...], int, int]], alignment: int
    ) -> Mapping[str, TensorPlace]:
        data_start = -(-(self._base + self._at) // alignment) * alignment
        places: dict[str, TensorPlace] = {}
        for name, kind, shape, offset, num_bytes in infos:
            start, what = data_start + offset, f"tensor `{name[:80]}`"
            if name in places:
                raise self._damaged(f"has {what} twice")
            if offset % alignment:
                raise self._damaged(f"puts {what} at {offset}, which is no multiple of {alignment}")
            if start + num_bytes > self._file_bytes:
                raise CheckpointError(
                    f"{self._path} is truncated: it has {self._file_bytes} bytes, and {what} ends at "
                    f"{start + num_bytes}."
                )
            places[name] = TensorPlace(self._path, kind, shape, start, num_bytes)
        return places

    def _number(self, form: str, what: str) -> int:
        """Return a number; of the forms of `struct` all but floats are whole ones."""
        (value,) = struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}"), what))
        return value  # type: ignore[no-any-return]

    def _text(self, what: str, *, most: int = _MAX_HEADER_BYTES) -> str:
        length = self._number("Q", what)
        if length > most:
            raise self._damaged(f"gives {what} {length} bytes")
        return self._take(length, what).decode("utf-8", errors="replace")

    def _left(self) -> int:
        """Return the bytes of the file that are still to be read, or that a header may still have."""
        return min(self._file_bytes, _MAX_HEADER_BYTES) - self._base - self._at

    def _take(self, size: int, what: str) -> bytes:
        """Return the next bytes."""
        if size > self._left():
            if self._base + self._at + size <= self._file_bytes:
                raise self._damaged(f"has a header of more than {_MAX_HEADER_BYTES >> 20} MiB")
            raise CheckpointError(
                f"{self._path} is truncated or damaged: it has {self._file_bytes} bytes, and {what} would end beyond."
            )
        if size > len(self._data) - self._at:
            rest = self._data[self._at :]
            self._base += self._at
            self._data = rest + self._file.read(max(_READ_BYTES, size - len(rest)))
            self._at = 0
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise CheckpointError(f"{self._path} ended while {what} was read: the file is being changed.")
        self._at += size
        return taken

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} is no whole GGUF file: it {what}.")

"""Reads a GGUF file: its fields, and its tensors as fp32. Of quantized types it reads Q4_1 and Q8_0.

It shares nothing with `infer_models.gguf`, which a test compares with it on the real file.

    "GGUF", version, number of tensors, number of fields
    fields: name, type, value
    tensors: name, dimensions (the innermost first), type, offset
    padding to a multiple of the alignment
    data

Blocks of 32 numbers, little-endian:

    Q4_1    d fp16, m fp16, 16 bytes q    number i = q[i] % 16 * d + m, number 16 + i = q[i] // 16 * d + m
    Q8_0    d fp16, 32 int8 q             number i = q[i] * d
"""

import math
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.float32]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_F32, _Q4_1, _Q8_0 = 0, 3, 8
_BLOCK = 32
_BLOCK_BYTES = {_F32: 4 * _BLOCK, _Q4_1: 20, _Q8_0: 34}


class _Place(NamedTuple):
    """Where a tensor lies: its shape, [..., innermost], its type, and its first byte."""

    shape: tuple[int, ...]
    kind: int
    start: int


class GGUFFile:
    """A file in memory.

    Attributes:
        fields: values by name: numbers, texts, and lists of them.
        names: names of the tensors, in the file's order.
    """

    def __init__(self, path: Path) -> None:
        """Read the file at `path`.

        Raises:
            ValueError: it is no GGUF file of version 3.
        """
        self._bytes = path.read_bytes()
        self._at = 0
        if self._bytes[:4] != b"GGUF" or self._bytes[4] != 3:
            raise ValueError(f"`{path}` is no GGUF file of version 3")
        self._at = 8
        num_tensors, num_fields = self._scalars("QQ")
        self.fields: dict[str, Any] = {}
        for _ in range(num_fields):
            name = self._text()
            self.fields[name] = self._value(*self._scalars("I"))
        heads = [self._tensor_head() for _ in range(num_tensors)]
        alignment = self.fields.get("general.alignment", 32)
        data = -(-self._at // alignment) * alignment
        self._places = {name: _Place(shape, kind, data + offset) for name, shape, kind, offset in heads}
        self.names = tuple(self._places)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor's numbers, fp32.

        Raises:
            ValueError: it is of a type that is not read.
        """
        shape, kind, start = self._places[name]
        if kind not in _BLOCK_BYTES:
            raise ValueError(f"`{name}` has type {kind}; only F32 (0), Q4_1 (3) and Q8_0 (8) are read")
        count = math.prod(shape)
        if kind == _F32:
            numbers = np.frombuffer(self._bytes, "<f4", count, start)
        else:
            num_blocks, width = count // _BLOCK, _BLOCK_BYTES[kind]
            blocks = np.frombuffer(self._bytes, np.uint8, num_blocks * width, start).reshape(num_blocks, width)
            numbers = _q4_1(blocks) if kind == _Q4_1 else _q8_0(blocks)
        return torch.from_numpy(numbers.reshape(shape).astype(np.float32))

    def _tensor_head(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        (num_dimensions,) = self._scalars("I")
        shape = self._scalars("Q" * num_dimensions)[::-1]
        kind, offset = self._scalars("IQ")
        return name, shape, kind, offset

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            item, length = self._scalars("IQ")
            return [self._value(item) for _ in range(length)]
        return self._scalars(_SCALARS[kind])[0]

    def _text(self) -> str:
        (length,) = self._scalars("Q")
        self._at += length
        return self._bytes[self._at - length : self._at].decode("utf-8")

    def _scalars(self, kinds: str) -> tuple[Any, ...]:
        struct = Struct("<" + kinds)
        self._at += struct.size
        return struct.unpack_from(self._bytes, self._at - struct.size)


def _q4_1(blocks: NDArray[np.uint8]) -> Numbers:
    """Return [blocks, 32] numbers of [blocks, 20] bytes."""
    scale, least = _halves(blocks[:, :2]), _halves(blocks[:, 2:4])
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    numbers: Numbers = codes * scale + least
    return numbers


def _q8_0(blocks: NDArray[np.uint8]) -> Numbers:
    """Return [blocks, 32] numbers of [blocks, 34] bytes."""
    codes: Numbers = blocks[:, 2:].view(np.int8).astype(np.float32)
    return codes * _halves(blocks[:, :2])


def _halves(pairs: NDArray[np.uint8]) -> Numbers:
    """Return [blocks, 1] numbers of [blocks, 2] bytes that are fp16."""
    return np.ascontiguousarray(pairs).view("<f2").astype(np.float32)

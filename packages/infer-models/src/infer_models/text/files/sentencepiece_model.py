"""Reads `tokenizer.model` of SentencePiece: the fields of its protobuf message that a tokenizer is made of.

```
field = tag << 3 | wire type       wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes
model = 1: piece {1: text, 2: score, 3: kind}...   2: trainer {3, 35, 40, 45}   3: normalizer {2, 3}
```
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from infer_models.errors import CheckpointError
from infer_models.text.files.reading import one_line

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""The character that stands for a blank in pieces."""
UNIGRAM, BPE = 1, 2
"""The kinds of models that a tokenizer can be made of."""


class PieceKind(IntEnum):
    """Meaning of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token of the vocabulary, whose id is its place."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """The contents of the file.

    Attributes:
        pieces: the vocabulary in order.
        kind: `UNIGRAM` or `BPE`, or another one that no tokenizer is made of.
        unknown_id: the id of the unknown token.
        has_byte_fallback: characters that are not in the vocabulary become bytes.
        normalization: the compiled table of how texts are normalized; empty where they are not.
        adds_first_space: a space is put before a text.
        merges: pairs of pieces that become one, in order, of `BPE`; None: those of which pieces consist.
    """

    pieces: tuple[Piece, ...]
    kind: int
    unknown_id: int
    has_byte_fallback: bool
    normalization: bytes
    adds_first_space: bool
    merges: Sequence[tuple[str, str]] | None = None


def read_sentencepiece_model(path: Path) -> SentencePieceModel:
    """Read the file at `path`.

    Raises:
        CheckpointError: it cannot be read, or is of another kind.
    """
    try:
        fields = list(_fields(path.read_bytes()))
        trainer = _last_of(fields, 2)
        normalizer = _last_of(fields, 3)
        pieces = tuple(_piece(value) for number, value in fields if number == 1 and isinstance(value, bytes))
        normalization = normalizer.get(2, b"")
        model = SentencePieceModel(
            pieces=pieces,
            kind=_number(trainer.get(3, UNIGRAM)),
            unknown_id=_number(trainer.get(40, 0)),
            has_byte_fallback=bool(trainer.get(35, 0)),
            normalization=normalization if isinstance(normalization, bytes) else b"",
            adds_first_space=bool(normalizer.get(3, 1)),
        )
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {one_line(error)}") from error
    except (ValueError, IndexError, struct.error) as error:
        raise _not_sentencepiece(path) from error
    if not pieces:
        raise _not_sentencepiece(path)
    return model


def _not_sentencepiece(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is no SentencePiece model (tiktoken's have that name too); add the `tokenizer.json` that "
        "`transformers` saves for this model."
    )


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    text, score = fields.get(1, b""), fields.get(2, b"\0\0\0\0")
    if not isinstance(text, bytes) or not isinstance(score, bytes):
        raise ValueError("a piece has fields of other types")  # noqa: TRY004 - the file is wrong, not its reader
    return Piece(text=text.decode(), score=struct.unpack("<f", score)[0], kind=_number(fields.get(3, PieceKind.NORMAL)))


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number is stored as bytes")  # noqa: TRY004 - the file is wrong, not its reader
    return value


def _last_of(fields: list[tuple[int, int | bytes]], wanted: int) -> dict[int, int | bytes]:
    found = [value for number, value in fields if number == wanted and isinstance(value, bytes)]
    return dict(_fields(found[-1])) if found else {}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a message."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        match tag & 7:
            case 0:
                value, place = _varint(data, place)
                yield tag >> 3, value
            case 1 | 2 | 5 as wire_type:
                length = {1: 8, 5: 4}.get(wire_type, 0)
                if wire_type == 2:
                    length, place = _varint(data, place)
                if place + length > len(data):
                    raise ValueError("a field goes beyond the end")
                yield tag >> 3, data[place : place + length]
                place += length
            case wire_type:
                raise ValueError(f"there is no wire type {wire_type}")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:  # otherwise another byte follows
            return value, place

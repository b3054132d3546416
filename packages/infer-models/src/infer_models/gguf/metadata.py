"""`Metadata`: values of a GGUF file's metadata, read with their types checked; and `read_factors`, of small tensors."""

import logging
import struct
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

from infer_models.errors import CheckpointError
from infer_models.file_faults import unreadable
from infer_models.gguf.header import GgufArray, GgufHeader, Scalar, shortest

ARCHITECTURE = "general.architecture"
ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS = (
    "rope_freqs.weight",
    "rope_factors_short.weight",
    "rope_factors_long.weight",
)
"""Tensors that belong to the configuration: factors of the frequencies of positions."""
_MAX_FACTORS = 1 << 12
_MAX_NAMED = 5
TOKENIZER = "tokenizer.ggml."
"""What keys of tokenizers begin with."""
_MEANINGLESS = (
    *(".vocab_size", ".tensor_data_layout", ".pooling_type", ".rope.scaling.finetuned", ".rope.dimension_sections"),
    *(".vision.", ".audio.", ".mm.", ".ssm."),
    *("add_sep_token", "added_tokens", "cls_token_id", "fim_", "middle_token_id", "prefix_token_id"),
    *("suffix_token_id", "token_type_count"),
    *("eos_token_id", "eot_token_id", "eom_token_id", "suppress_tokens"),  # read with what is generated
    *("add_space_prefix", "merges", "pre", "scores"),  # of tokenizers of another kind
)
"""Beginnings of keys, after the architecture or `TOKENIZER`, that change nothing where nobody reads them."""

logger = logging.getLogger("infer_models")


class Metadata:
    """The metadata of a file; keys that begin with a dot are of its architecture.

    Every reader raises `CheckpointError` naming the file, the key, its value and the allowed values.
    """

    def __init__(self, header: GgufHeader) -> None:
        """Read the metadata of `header`.

        Raises:
            CheckpointError: the file does not name its architecture.
        """
        self.path = header.path
        self._values = header.metadata
        self._asked: set[str] = set()
        self.architecture = self.text(ARCHITECTURE)

    def __contains__(self, key: str) -> bool:
        """Return whether there is a value."""
        return self._full(key) in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.invalid(key, "a string")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 0; of an array whose items are all the same, that one."""
        value = self._get(key, default)
        return self._whole(key, self._only(key, set(value.items())) if _holds_numbers(value) else value)

    def count_of_layer(self, key: str, layer: int, default: int) -> int:
        """Return a whole number of at least 0 that an array has for each layer; of no array that of all layers."""
        value = self._get(key, default)
        if not _holds_numbers(value):
            return self._whole(key, value)
        if layer >= value.num_items:
            raise self.invalid(key, f"numbers of all layers, also of layer {layer}")
        return self._whole(key, value.items()[layer])

    def count_but_zeros(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 0; of an array the one that its items, but zeros, all are."""
        value = self._get(key, default)
        return self._whole(key, self._only(key, set(value.items()) - {0}) if _holds_numbers(value) else value)

    def _only(self, key: str, items: set[Scalar]) -> Scalar:
        if len(items) != 1:
            raise self.invalid(key, "one number for all layers: layers of different sizes are not read")
        return items.pop()

    def _whole(self, key: str, value: Scalar | GgufArray) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.invalid(key, "a whole number of at least 0")
        return value

    def optional_count(self, key: str) -> int | None:
        """Return a whole number above 0, or None where there is none, or 0."""
        return (self.count(key) or None) if key in self else None

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(key, "a number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Return a number, or None where there is none."""
        return self.number(key) if key in self else None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.invalid(key, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """Return the strings of an array."""
        value = self._get(key, None)
        if not isinstance(value, GgufArray) or not value.holds_texts:
            raise self.invalid(key, "an array of strings")
        return [str(each) for each in value.items()]

    def numbers(self, key: str) -> list[Scalar]:
        """Return the numbers, or flags, of an array."""
        value = self._get(key, None)
        if not isinstance(value, GgufArray) or value.holds_texts:
            raise self.invalid(key, "an array of numbers")
        return value.items()

    def data(self, key: str) -> bytes:
        """Return the bytes of an array of numbers."""
        value = self._get(key, None)
        if not isinstance(value, GgufArray) or value.holds_texts:
            raise self.invalid(key, "an array of numbers")
        return value.data

    def is_array(self, key: str) -> bool:
        """Return whether there is an array."""
        return isinstance(self._values.get(self._full(key)), GgufArray)

    def invalid(self, key: str, allowed: str) -> CheckpointError:
        """Return the error that names the allowed values of a key."""
        value = self._values.get(self._full(key))
        shown = f"an array of {value.num_items}" if isinstance(value, GgufArray) else f"{value!r:.80}"
        return CheckpointError(f"{self.path}: `{self._full(key)}` is {shown}; it must be {allowed}.")

    def warn_of_unread(self, prefix: str) -> None:
        """Name the keys that begin with `prefix`, the architecture or `TOKENIZER`, and that nobody has asked for."""
        unread = (key for key in self._values if key.startswith(prefix) and key not in self._asked)
        named = [key for key in unread if not key.removeprefix(prefix).startswith(_MEANINGLESS)]
        if named:
            _warn_of(self.path, tuple(named))

    def _full(self, key: str) -> str:
        full = f"{self.architecture}{key}" if key.startswith(".") else key
        self._asked.add(full)
        return full

    def _get(self, key: str, default: Scalar | None) -> Scalar | GgufArray:
        value = self._values.get(self._full(key), default)
        if value is None:
            raise CheckpointError(f"{self.path}: the metadata has no `{self._full(key)}`.")
        return value


@lru_cache(maxsize=64)
def _warn_of(path: Path, keys: tuple[str, ...]) -> None:
    """Name keys of a file once."""
    shown = ", ".join(f"`{key}`" for key in keys[:_MAX_NAMED])
    more = f" and {len(keys) - _MAX_NAMED} more" if len(keys) > _MAX_NAMED else ""
    logger.warning("%s: the metadata has %s%s, which nothing here reads", path, shown, more)


def _holds_numbers(value: Scalar | GgufArray) -> TypeGuard[GgufArray]:
    return isinstance(value, GgufArray) and not value.holds_texts


def read_factors(header: GgufHeader, name: str) -> list[float]:
    """Return the numbers of a small fp32 tensor.

    Raises:
        CheckpointError: it is missing, of another type or large, or the file cannot be read.
    """
    place = header.tensors.get(name)
    if place is None or place.kind != "F32" or len(place.shape) != 1 or place.shape[0] > _MAX_FACTORS:
        raise CheckpointError(f"{header.path}: tensor `{name}` is missing, or no row of fp32 numbers.")
    try:
        with place.path.open("rb") as file:
            file.seek(place.start)
            data = file.read(place.num_bytes)
    except OSError as error:
        raise unreadable(place.path, error) from error
    if len(data) < place.num_bytes:
        raise CheckpointError(f"{place.path} ended while tensor `{name}` was read: the file is being changed.")
    return [shortest(each) for each in struct.unpack(f"<{place.shape[0]}f", data)]

"""Reads a JSON object field by field, and checks each field's type."""

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from infer_models.asked_fields import AskedFields
from infer_models.errors import CheckpointError
from infer_models.file_faults import fault_of_content, unreadable


class JsonFields:
    """A JSON object whose fields are read with their types checked; a field that is null counts as absent.

    Every reader raises `CheckpointError` naming the file, the field, its value and the allowed values. What nobody asks
    for, of these fields or of others that were made of them, is `unread`.
    """

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        """Read `fields`, found in the file `path`; `AskedFields` note what is asked for."""
        self.path = path
        held = fields if isinstance(fields, AskedFields) else AskedFields(fields)
        values = held.as_dict()
        self._fields = held.replaced({name: value for name, value in values.items() if value is not None})
        self._nulls = frozenset(name for name, value in values.items() if value is None)

    @classmethod
    def from_file(cls, path: Path) -> "JsonFields":
        """Read a file that holds one JSON object.

        Raises:
            CheckpointError: the file is missing, unreadable or holds something else.
        """
        try:
            fields = json.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise unreadable(path, error) from None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} {fault_of_content(path) or f'is not valid JSON: {error}'}.") from error
        if not isinstance(fields, dict):
            raise CheckpointError(f"{path} holds a JSON {type(fields).__name__}; it must hold an object.")
        return cls(path, fields)

    def __contains__(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return name in self._fields

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are not null, unchecked."""
        return self._fields.as_dict()

    @property
    def unread(self) -> Mapping[str, Any]:
        """The fields that are not null and that nobody has asked for, by their names with those of objects before."""
        return self._fields.unread

    def pass_over(self) -> None:
        """Count all fields as read: others are read in their place."""
        self._fields.pass_over()

    def is_unread(self, name: str) -> bool:
        """Return whether the field is there and nobody has asked for it."""
        return self._fields.prefix + name in self.unread

    def is_null(self, name: str) -> bool:
        """Return whether the field is there and null, where a family means something by that."""
        return name in self._nulls

    def with_defaults(self, defaults: Mapping[str, Any]) -> "JsonFields":
        """Return these fields and those of `defaults` that are not there, not even as null."""
        held = {**defaults, **dict.fromkeys(self._nulls), **self._fields.as_dict()}
        return JsonFields(self.path, self._fields.replaced(held))

    def with_fields(self, other: "JsonFields", names: Collection[str]) -> "JsonFields":
        """Return these fields and those of `other` called `names`, which win over fields of the same name."""
        taken = {name: other._fields[name] for name in names if name in other}
        held = {**dict.fromkeys(self._nulls), **self._fields.as_dict(), **taken}
        return JsonFields(self.path, self._fields.replaced(held))

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.invalid(name, "a whole number of at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        value = self._get(name, default)
        if not _is_positive(value):
            raise self.invalid(name, "a number above 0")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Return a finite number above 0, or None where the field is absent."""
        return self.number(name) if name in self else None

    def optional_count(self, name: str) -> int | None:
        """Return a whole number of at least 1, or None where the field is absent."""
        return self.count(name) if name in self else None

    def numbers(self, name: str) -> list[float]:
        """Return a list of finite numbers above 0."""
        values = self._get(name, None)
        if not isinstance(values, list) or not all(_is_positive(value) for value in values):
            raise self.invalid(name, "a list of numbers above 0")
        return [float(value) for value in values]

    def indices(self, name: str) -> list[int]:
        """Return a list of whole numbers of at least 0, such as layers; an empty one where the field is absent."""
        values = self._get(name, [])
        if not isinstance(values, list) or not all(isinstance(each, int) and each >= 0 for each in values):
            raise self.invalid(name, "a list of whole numbers of at least 0")
        return values

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.invalid(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.invalid(name, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings."""
        value = self._get(name, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.invalid(name, "a list of strings")
        return value

    def whole_number(self, name: str, default: int | None = None) -> int:
        """Return a whole number, which may be negative."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, "a whole number")
        return value

    def value(self, name: str) -> Any:
        """Return the value of a field that may have several types, unchecked; None where it is absent."""
        return self._fields.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields that are not null."""
        return tuple(self._fields)

    def text_values(self) -> list[str]:
        """Return all values, which are strings."""
        return [self.text(name) for name in self._fields]

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return token ids given as one or a list, in order and without repeats; none where the field is absent."""
        value = self._fields.get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.invalid(name, "a token id or a list of them")
        return tuple(dict.fromkeys(ids))

    def nested(self, name: str) -> "JsonFields":
        """Return the fields of an object in this one; no fields where it is absent."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.invalid(name, "an object")
        return JsonFields(self.path, self._fields.nested(name))

    def invalid(self, name: str, allowed: str) -> CheckpointError:
        """Return the error that names the allowed values of the field."""
        value = repr(self.as_dict().get(name))
        shown = value if len(value) <= 80 else f"{value[:80]}..."
        return CheckpointError(f"{self.path}: `{self._fields.prefix}{name}` is {shown}; it must be {allowed}.")

    def _get(self, name: str, default: Any) -> Any:
        value = self._fields.get(name, default)
        if value is None:
            raise CheckpointError(f"{self.path}: `{self._fields.prefix}{name}` is missing.")
        return value


def _is_positive(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value) and value > 0

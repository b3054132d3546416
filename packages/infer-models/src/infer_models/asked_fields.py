"""`AskedFields`: the fields of a JSON object, which note the names that a reader asked for."""

from collections.abc import Iterator, Mapping
from typing import Any


class AskedFields(Mapping[str, Any]):
    """The fields of an object that was read from a file; those that nobody asks for are `unread`.

    A field is asked for by its value or by whether it is there, not by going through the names.
    """

    def __init__(self, fields: Mapping[str, Any], *, asked: set[str] | None = None, prefix: str = "") -> None:
        """Hold `fields`, found under the dotted `prefix`; names with it go to `asked`, which may be shared."""
        self._fields = fields
        self._asked = set() if asked is None else asked
        self.prefix = prefix

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field, which counts as read."""
        self._asked.add(self.prefix + name)
        return self._fields[name]

    def __contains__(self, name: object) -> bool:
        """Return whether the field is there; it counts as read."""
        self._asked.add(f"{self.prefix}{name}")
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._fields)

    def __len__(self) -> int:
        """Return how many fields there are."""
        return len(self._fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, none of which counts as read by that."""
        return dict(self._fields)

    def replaced(self, fields: Mapping[str, Any]) -> "AskedFields":
        """Return other fields in the place of these: what is asked of them is asked of these."""
        return AskedFields(fields, asked=self._asked, prefix=self.prefix)

    def nested(self, name: str) -> "AskedFields":
        """Return the fields of an object in this one, each asked for on its own; none where it is absent."""
        value = self.get(name) or {}
        prefix = f"{self.prefix}{name}."
        self._asked.add(prefix)
        return AskedFields(value, asked=self._asked, prefix=prefix)

    def pass_over(self) -> None:
        """Count all fields as read: others are read in their place."""
        self._asked |= {self.prefix + name for name in self._fields}

    @property
    def unread(self) -> Mapping[str, Any]:
        """The fields that nobody has asked for, by their names with prefixes."""
        found: dict[str, Any] = {}
        for name, value in self._fields.items():
            full = self.prefix + name
            if full not in self._asked:
                found[full] = value
            elif f"{full}." in self._asked and isinstance(value, dict):
                found |= self.nested(name).unread
        return found

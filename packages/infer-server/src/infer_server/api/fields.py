"""Declares the fields of request bodies: what the OpenAPI document says of each, and which values are supported."""

import functools
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import msgspec

from infer_engine.protocol.sampling import SAMPLING_FIELDS
from infer_server.api.validation import unsupported


class _Restriction(NamedTuple):
    """The values that a restricted field accepts besides null, and which one an error message proposes."""

    allowed: tuple[object, ...]
    send: str

    def allows(self, value: object) -> bool:
        """Return whether `value` is one of those; false is no 0 and true no 1."""
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.allowed)


def described(description: str, **schema: Any) -> msgspec.Meta:
    """Return the annotation of a field for the OpenAPI document; `schema` is documentation only, it is not checked."""
    return msgspec.Meta(description=description, extra_json_schema=schema)


def restricted(description: str, *, allow: tuple[object, ...] = (), send: str = "null") -> msgspec.Meta:
    """Return the annotation of a field that accepts null and `allow` only: values with which it has no effect.

    `check_restricted` refuses other values, and its message proposes to send `send`.
    """
    restriction = {"restriction": _Restriction(allow, send)}
    return msgspec.Meta(description=description, extra_json_schema={"enum": [None, *allow]}, extra=restriction)


def check_restricted(body: msgspec.Struct, *, prefix: str = "") -> None:
    """Refuse a `body` in which a restricted field has another value than those allowed.

    `prefix` is put before the names of fields, for structs inside a body.

    Raises:
        ApiError: 400, `unsupported_value`.
    """
    values_of, nothing, restrictions = _checked(type(body))
    values = values_of(body)
    if values == nothing:  # most bodies
        return
    for (name, restriction), value in zip(restrictions, values, strict=True):
        if value is not None and not restriction.allows(value):
            raise unsupported(prefix + name, value, send=restriction.send)


@functools.cache
def restricted_names(struct: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names of the restricted fields of `struct`."""
    return frozenset(name for name, _ in _restrictions(struct))


@functools.cache
def _checked(
    struct: type[msgspec.Struct],
) -> tuple[Callable[[msgspec.Struct], tuple[object, ...]], tuple[None, ...], tuple[tuple[str, _Restriction], ...]]:
    """Return what reads the restricted fields of a `struct`, their values if they are left out, and the fields."""
    restrictions = _restrictions(struct)
    names = [name for name, _ in restrictions]
    if len(names) > 1:
        return attrgetter(*names), (None,) * len(names), restrictions
    return (lambda body: tuple(getattr(body, name) for name in names)), (None,) * len(names), restrictions


@functools.cache
def _restrictions(struct: type[msgspec.Struct]) -> tuple[tuple[str, _Restriction], ...]:
    """Return the names of the restricted fields of `struct`, with their restrictions."""
    return tuple(
        (field.name, restriction)
        for field in msgspec.structs.fields(struct)
        for restriction in _restrictions_in(field.type)
    )


def _restrictions_in(kind: Any) -> Iterator[_Restriction]:
    for metadata in get_args(kind)[1:]:
        if isinstance(metadata, msgspec.Meta) and metadata.extra and "restriction" in metadata.extra:
            yield metadata.extra["restriction"]


def spellings_in(body: msgspec.Struct, name: str) -> dict[str, int]:
    """Return the numbers that `body` gives for the field `name`, by place, that which counts first."""
    found = {}
    for place in SAMPLING_FIELDS[name].spellings:
        first, _, inner = place.partition(".")
        value = getattr(body, first, None)
        value = getattr(value, inner, None) if inner else value
        if value is not None and first not in restricted_names(type(body)):
            found[place] = value
    return found

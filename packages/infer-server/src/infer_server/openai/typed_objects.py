"""Decodes objects whose shape depends on their own `type`: the items of an input, the tools, the choice among them.

They are decoded after the body, one by one: those of types that are not supported may have any fields, and are dropped.
"""

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec

from infer_server.errors import ApiError
from infer_server.http.places import validation_error

T = TypeVar("T", bound=msgspec.Struct)


def decode_object(value: dict[str, Any], struct: type[T], *, at: str) -> T:
    """Return `value` as a `struct`; `at` is its place in the body.

    Raises:
        ApiError: 400: a field is missing or has the wrong type; the error names its place.
    """
    try:
        return msgspec.convert(value, struct, strict=True)
    except msgspec.ValidationError as error:
        raise validation_error(error, at=at) from None


def object_type(value: dict[str, Any], *, at: str) -> str | None:
    """Return the `type` of `value`, None if there is none; `at` is its place in the body.

    Raises:
        ApiError: 400: it is not a text.
    """
    kind = value.get("type")
    if kind is not None and not isinstance(kind, str):
        raise ApiError(400, f"`{at}.type` is not a text; send one.", code="invalid_type", param=f"{at}.type")
    return kind


def dropped_object(supported: Collection[str]) -> dict[str, Any]:
    """Return the JSON Schema of the objects whose type is none of `supported`."""
    return {
        "type": "object",
        "description": "Any other type is accepted without effect.",
        "properties": {"type": {"type": "string", "not": {"enum": sorted(supported)}}},
        "required": ["type"],
    }

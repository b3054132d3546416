"""The `text` field of a response: what the text looks like, and the `StructuredOutputs` that it makes."""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import StructuredOutputs
from infer_engine.protocol.structured_outputs import Whitespace
from infer_server.api.fields import described
from infer_server.api.validation import wrong_value
from infer_server.errors import shorten
from infer_server.openai.structured_outputs import STRICT, WHITESPACE

_TYPES = ("text", "json_object", "json_schema")


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Any text, a JSON object, or JSON that matches a schema."""

    type: Annotated[str, described("`json_schema` needs `schema`.", enum=list(_TYPES))]
    name: Annotated[str | None, described("Accepted without effect.")] = None
    description: Annotated[str | None, described("Accepted without effect.")] = None
    schema: Annotated[dict[str, Any] | None, described("A JSON Schema (draft 2020-12).")] = None
    strict: Annotated[bool | None, described(STRICT)] = None
    whitespace: Annotated[Whitespace | None, described(WHITESPACE)] = None


class TextField(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The form of the text."""

    format: Annotated[TextFormat | None, described("Any text if left out.")] = None
    verbosity: Annotated[Any, described("Accepted without effect.")] = None


ANY_TEXT = TextFormat(type="text")


def structured_outputs(text: TextField | None) -> StructuredOutputs | None:
    """Return what the text must look like; None if it may be anything.

    Raises:
        ApiError: 400: the format is unknown, or has no schema though it needs one.
    """
    wanted = text.format if text else None
    match wanted:
        case None | TextFormat(type="text"):
            return None
        case TextFormat(type="json_object", schema=dict() as schema) if schema:
            return StructuredOutputs(
                json={"type": "object"} | schema, strict=bool(wanted.strict), whitespace=wanted.whitespace
            )
        case TextFormat(type="json_object"):
            return StructuredOutputs(json_object=True, whitespace=wanted.whitespace)
        case TextFormat(type="json_schema", schema=None):
            raise wrong_value("text.format", "`text.format.schema` is missing; send it with the type `json_schema`.")
        case TextFormat(type="json_schema"):
            return StructuredOutputs(json=wanted.schema, strict=bool(wanted.strict), whitespace=wanted.whitespace)
        case _:
            raise wrong_value(
                "text.format", f"`text.format.type` is {shorten(wanted.type, 40)!r}; send one of {', '.join(_TYPES)}."
            )


def format_place(text: TextField | None) -> tuple[str, str]:
    """Return where a body says what the text looks like, and the field of that place; the tools if it does not."""
    if structured_outputs(text) is None:
        return "tools", "tools"  # whose arguments have a grammar
    return "text.format.schema", "text.format"

"""The `text` field of a response: what the text looks like, and the `StructuredOutputs` that it makes."""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import InvalidRequestError, StructuredOutputs
from infer_engine.protocol.structured_outputs import Whitespace
from infer_server.api.fields import described
from infer_server.api.validation import out_of_range, refused_format
from infer_server.errors import ApiError, shorten
from infer_server.openai.structured_outputs import STRICT, WHITESPACE

_TYPES = ("text", "json_object", "json_schema")
_SCHEMA = "text.format.schema"


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Any text, a JSON object, or JSON that matches a schema."""

    type: Annotated[str, described("`json_schema` needs `schema`.", enum=list(_TYPES))]
    name: Annotated[str | None, described("Accepted without effect.")] = None
    description: Annotated[str | None, described("Accepted without effect.")] = None
    schema: Annotated[dict[str, Any] | None, described("A JSON Schema (draft 2020-12).")] = None
    strict: Annotated[bool | None, described(STRICT)] = None
    whitespace: Annotated[Whitespace | None, described(WHITESPACE)] = None


class TextField(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the text looks like."""

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
            raise out_of_range("text.format", "`text.format.schema` is missing; send it with the type `json_schema`.")
        case TextFormat(type="json_schema"):
            return StructuredOutputs(json=wanted.schema, strict=bool(wanted.strict), whitespace=wanted.whitespace)
        case _:
            raise out_of_range(
                "text.format", f"`text.format.type` is {shorten(wanted.type, 40)!r}; send one of {', '.join(_TYPES)}."
            )


def refusal_of(error: InvalidRequestError, text: TextField | None, *, has_tools: bool) -> ApiError | None:
    """Return the error for structured output that the engine refuses; None if it refuses something else."""
    if error.param != "structured_outputs":
        return None
    if has_tools and structured_outputs(text) is None:  # their grammar is structured output too
        return refused_format(error.message, path="tools")
    return refused_format(error.message, path=_SCHEMA, param="text.format")

"""The fields by which clients ask for structured output, and the `StructuredOutputs` that they make.

OpenAI's `response_format`, vLLM's `structured_outputs`, llama.cpp's `grammar` and `json_schema`: at most one of them.
"""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import InvalidRequestError, StructuredOutputs
from infer_engine.protocol.structured_outputs import MAX_CHARACTERS, MAX_CHOICES_OF_TEXT
from infer_server.errors import ApiError, shorten
from infer_server.openai.fields import described, restricted
from infer_server.openai.validation import out_of_range, refused_format

TEXT_LENGTHS = {"minLength": 1, "maxLength": MAX_CHARACTERS}


_TYPES = ("text", "json_object", "json_schema")


class JSONSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schema, and what OpenAI's clients say about it; it is always kept, whatever `strict` says."""

    schema: Annotated[dict[str, Any], described("A JSON Schema (draft 2020-12).")]
    name: Annotated[str | None, described("Accepted without effect.")] = None
    description: Annotated[str | None, described("Accepted without effect.")] = None
    strict: Annotated[bool | None, described("Accepted without effect: the schema is always kept.")] = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the text looks like, as OpenAI's clients say it."""

    type: Annotated[str, described("Any text, a JSON object, or JSON that matches a schema.", enum=list(_TYPES))]
    json_schema: Annotated[JSONSchemaFormat | None, described("The schema of the type `json_schema`.")] = None


class StructuredOutputsField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the text looks like, as vLLM's clients say it: exactly one of the fields but the last."""

    json: Annotated[Any, described("A JSON Schema (draft 2020-12), or its text.")] = None
    json_object: Annotated[bool | None, described("True: any JSON object.")] = None
    regex: Annotated[str | None, described("A regular expression that the whole text matches.", **TEXT_LENGTHS)] = None
    choice: Annotated[
        list[str] | None, described("The text is one of these.", minItems=1, maxItems=MAX_CHOICES_OF_TEXT)
    ] = None
    grammar: Annotated[str | None, described("A grammar in Lark's syntax or llama.cpp's GBNF.", **TEXT_LENGTHS)] = None
    structural_tag: Annotated[Any, described("Free text with parts that match schemas, between tags.")] = None
    whitespace_pattern: Annotated[
        str | None, described("A regular expression for the whitespace between the tokens of JSON.", **TEXT_LENGTHS)
    ] = None


def guided(name: str) -> msgspec.Meta:
    """Return the annotation of a field of older vLLM, in whose place `structured_outputs` has the field `name`."""
    return restricted("Only null.", send=f"`structured_outputs` with `{name}`")


def structured_outputs_of(
    *,
    structured_outputs: StructuredOutputsField | None,
    grammar: str | None,
    json_schema: Any,
    response_format: ResponseFormat | None,
) -> StructuredOutputs | None:
    """Return what the text must look like; None if it may be anything.

    Raises:
        ApiError: 400: more than one field is given, or a value is wrong.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    if structured_outputs is not None:
        found.append(("structured_outputs", msgspec.structs.asdict(structured_outputs)))
    if grammar is not None:
        found.append(("grammar", {"grammar": grammar}))
    if json_schema is not None:
        found.append(("json_schema", {"json": json_schema}))
    if response_format is not None and (wanted := _of_response_format(response_format)) is not None:
        found.append(("response_format", wanted))
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(f"`{name}`" for name, _ in found)
        raise out_of_range(found[1][0], f"{names} are given; send only one of them.")
    [(name, wanted)] = found
    try:
        return StructuredOutputs(**wanted)
    except ValueError as error:
        raise _wrong(name, str(error)) from None


def refusal_of(error: InvalidRequestError, *, body: msgspec.Struct) -> ApiError | None:
    """Return the error for structured output that the engine refuses; None if it refuses something else of `body`."""
    if error.param != "structured_outputs":
        return None
    names = ("structured_outputs", "grammar", "json_schema", "response_format")
    given = next((name for name in names if getattr(body, name, None) is not None), None)
    if given is None:  # the grammar of the tools
        return refused_format(error.message, path="tools")
    return _wrong(given, error.message)


def _of_response_format(response_format: ResponseFormat) -> dict[str, Any] | None:
    if response_format.type not in _TYPES:
        raise out_of_range(
            "response_format",
            f"`response_format.type` is {shorten(response_format.type, 40)!r}; send one of {', '.join(_TYPES)}.",
        )
    if (response_format.type == "json_schema") != (response_format.json_schema is not None):
        raise out_of_range(
            "response_format", "`response_format.json_schema` belongs to the type `json_schema`; send both, or neither."
        )
    match response_format:
        case ResponseFormat(json_schema=JSONSchemaFormat(schema=schema)):
            return {"json": schema}
        case ResponseFormat(type="json_object"):
            return {"json_object": True}
        case _:
            return None


def _wrong(field: str, message: str) -> ApiError:
    path = "response_format.json_schema.schema" if field == "response_format" else field
    return refused_format(message, path=path, param=field)

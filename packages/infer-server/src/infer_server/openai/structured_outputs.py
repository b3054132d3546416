"""The fields by which clients ask for structured output, and the `StructuredOutputs` that they make.

OpenAI's `response_format`, also in the words of TGI, SGLang and hosted services, vLLM's `structured_outputs` and its
older `guided_*`, llama.cpp's `grammar` and `json_schema`: at most one of them.
"""

from typing import Annotated, Any, Literal

import msgspec

from infer_engine.protocol import StructuredOutputs
from infer_engine.protocol.structured_outputs import KINDS, MAX_CHARACTERS, MAX_CHOICES_OF_TEXT, Whitespace
from infer_server.api.fields import described
from infer_server.api.sampling_fields import SamplingFields
from infer_server.api.validation import code_of, conflict, refused_format, unsupported, wrong_value
from infer_server.errors import ApiError, shorten

TEXT_LENGTHS = {"minLength": 1, "maxLength": MAX_CHARACTERS}

# Fields whose value is all of an attribute of `StructuredOutputs`.
_WHOLE_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
}

STRICT = "True: a schema that cannot be kept in full is refused. Otherwise what cannot be kept of it is left out."
WHITESPACE = (
    "Between the tokens of JSON. `compact`: at most one blank, after a comma or a colon. `any`: line breaks and "
    "indentation too. Left out: as the server is set."
)

# The fields of a format in which what its type needs may stand.
_PLACES = {
    "text": (),
    "json_object": ("schema", "value"),
    "json_schema": ("json_schema", "schema", "value"),
    "json": ("value", "schema"),
    "regex": ("value", "pattern"),
    "grammar": ("grammar", "value"),
    "structural_tag": ("structures", "format"),
}
_FIELDS = sorted({name for places in _PLACES.values() for name in places})


class JSONSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schema, and what OpenAI's clients say about it."""

    schema: Annotated[dict[str, Any], described("A JSON Schema (draft 2020-12).")]
    name: Annotated[str | None, described("Accepted without effect.")] = None
    description: Annotated[str | None, described("Accepted without effect.")] = None
    strict: Annotated[bool | None, described(STRICT)] = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of the text, as OpenAI's clients say it, and those of other servers."""

    type: Annotated[
        str,
        described(
            "Any text, a JSON object, or JSON that matches a schema. Others are those of TGI, vLLM and SGLang.",
            enum=list(_PLACES),
        ),
    ]
    json_schema: Annotated[JSONSchemaFormat | None, described("The schema of the type `json_schema`.")] = None
    schema: Annotated[
        dict[str, Any] | None, described("The schema itself, as llama.cpp's clients send it, also with `json_object`.")
    ] = None
    value: Annotated[Any, described("The schema or the expression, as TGI's clients send it.")] = None
    pattern: Annotated[str | None, described("The expression of the type `regex`.")] = None
    grammar: Annotated[str | None, described("The grammar of the type `grammar`, in GBNF or Lark.")] = None
    structures: Annotated[list[Any] | None, described("Of the type `structural_tag`: begin, schema and end.")] = None
    triggers: Annotated[list[str] | None, described("With `structures`: how their beginnings begin.")] = None
    format: Annotated[dict[str, Any] | None, described("`triggered_tags`, in vLLM's newer words.")] = None
    name: Annotated[str | None, described("Accepted without effect.")] = None
    description: Annotated[str | None, described("Accepted without effect.")] = None
    strict: Annotated[bool | None, described(STRICT)] = None
    whitespace: Annotated[Whitespace | None, described(WHITESPACE)] = None


class StructuredOutputsField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of the text, as vLLM's clients say it: exactly one of the first six fields."""

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
    whitespace: Annotated[Whitespace | None, described(WHITESPACE)] = None
    strict: Annotated[bool | None, described("False: what cannot be kept of a schema is left out, not refused.")] = None
    disable_any_whitespace: Annotated[bool | None, described("True: `whitespace` is `compact`.")] = None
    disable_fallback: Annotated[bool | None, described("Accepted without effect: there is one engine.")] = None
    disable_additional_properties: Annotated[
        Literal[False] | None, described("Only false; send `additionalProperties` false in the schema.")
    ] = None


class FormatFields(SamplingFields, frozen=True, kw_only=True):
    """The fields that say what the text looks like."""

    response_format: Annotated[ResponseFormat | None, described("What the text looks like.")] = None
    structured_outputs: Annotated[
        StructuredOutputsField | None, described("What the text looks like, in vLLM's words.")
    ] = None
    grammar: Annotated[
        str | None, described("A grammar in GBNF or Lark, as llama.cpp's clients send it.", **TEXT_LENGTHS)
    ] = None
    json_schema: Annotated[Any, described("A JSON Schema, as llama.cpp's clients send it.")] = None
    guided_json: Annotated[Any, described("`structured_outputs.json` of older vLLM.")] = None
    guided_regex: Annotated[str | None, described("`structured_outputs.regex` of older vLLM.", **TEXT_LENGTHS)] = None
    guided_choice: Annotated[
        list[str] | None,
        described("`structured_outputs.choice` of older vLLM.", minItems=1, maxItems=MAX_CHOICES_OF_TEXT),
    ] = None
    guided_grammar: Annotated[str | None, described("`structured_outputs.grammar` of older vLLM.", **TEXT_LENGTHS)] = (
        None
    )
    guided_whitespace_pattern: Annotated[
        str | None, described("The whitespace of JSON, as older vLLM takes it.", **TEXT_LENGTHS)
    ] = None


def structured_outputs_of(body: FormatFields) -> StructuredOutputs | None:
    """Return what the text must look like; None if it may be anything.

    Raises:
        ApiError: 400: more than one field is given, or a value is wrong.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    if body.structured_outputs is not None:
        found.append(("structured_outputs", _of_field(body.structured_outputs)))
    for name, kind in _WHOLE_FIELDS.items():
        if (value := getattr(body, name)) is not None:
            found.append((name, {kind: value}))
    if body.response_format is not None and (wanted := _wanted_by(body.response_format)) is not None:
        found.append(("response_format", wanted))
    pattern = body.guided_whitespace_pattern
    if pattern is not None:
        _check("guided_whitespace_pattern", {"json_object": True, "whitespace_pattern": pattern})
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(f"`{name}`" for name, _ in found)
        raise conflict(found[1][0], f"{names} are given; send only one of them.")
    [(name, wanted)] = found
    if pattern is not None and not {"json", "json_object"}.isdisjoint(wanted):
        wanted = {"whitespace_pattern": pattern} | wanted
    return _check(name, wanted)


def format_place(body: FormatFields) -> tuple[str, str]:
    """Return where `body` says what the text looks like, and the field of that place; the tools if no field does."""
    for name in ("structured_outputs", *_WHOLE_FIELDS):
        if getattr(body, name) is not None:
            return name, name
    place = None if body.response_format is None else _place_in(body.response_format)
    return ("tools", "tools") if place is None else (place, "response_format")  # arguments of tools have a grammar


def _check(name: str, wanted: dict[str, Any]) -> StructuredOutputs:
    try:
        return StructuredOutputs(**wanted)
    except ValueError as error:
        raise refused_format(str(error), path=name, code=code_of(error)) from None


def _of_field(field: StructuredOutputsField) -> dict[str, Any]:
    """Return the attributes that vLLM's field has for `StructuredOutputs`."""
    wanted = {kind: getattr(field, kind) for kind in (*KINDS, "whitespace_pattern")}
    compact = "compact" if field.disable_any_whitespace else None
    return wanted | {"whitespace": field.whitespace or compact, "strict": field.strict is not False}


def _wanted_by(response_format: ResponseFormat) -> dict[str, Any] | None:
    """Return the attributes of the `StructuredOutputs` that a format stands for; None of any text.

    Raises:
        ApiError: 400: the type is unknown, or what it needs is missing, given twice, or that of another type.
    """
    kind = response_format.type
    if kind not in _PLACES:
        words = ", ".join(_PLACES)
        raise _refused(f"`response_format.type` is {shorten(kind, 40)!r}; send one of {words}.")
    name, value = _given(response_format)
    if value is None and kind not in ("text", "json_object"):
        raise _refused(f"`response_format.{_PLACES[kind][0]}` is missing; send it with the type `{kind}`.")
    wrapped = _wrapped(name, value)
    value = value if wrapped is None else wrapped.schema
    strict = response_format.strict if wrapped is None else wrapped.strict
    json = {"whitespace": response_format.whitespace, "strict": bool(strict)}
    match kind:
        case "text":
            return None
        case "json_object" if not value:
            return json | {"json_object": True}
        case "json_object":
            return json | {"json": {"type": "object"} | value if isinstance(value, dict) else value}
        case "json" | "json_schema":
            return json | {"json": value}
        case "structural_tag":
            return {kind: _tags(response_format)}
        case _:
            return {kind: value}


def _place_in(response_format: ResponseFormat) -> str | None:
    """Return the path in a body of what a format asks for; None of a word that needs nothing else."""
    name, value = _given(response_format)
    if not name:
        return None
    return f"response_format.{name}.schema" if _wrapped(name, value) is not None else f"response_format.{name}"


def _given(response_format: ResponseFormat) -> tuple[str, Any]:
    """Return the field with what the type needs, and its value; "" and None where there is none."""
    given = {name: value for name in _FIELDS if (value := getattr(response_format, name)) is not None}
    kind = response_format.type
    for name in given.keys() - {*_PLACES[kind]}:
        owner = next(each for each, places in _PLACES.items() if name in places)
        raise _refused(f"`response_format.{name}` belongs to the type `{owner}`; send both, or neither.")
    if len(given) > 1:
        names = " and ".join(f"`{name}`" for name in given)
        raise _refused(f"`response_format` has {names}; send only one of them.")
    return next(iter(given.items()), ("", None))


def _wrapped(name: str, value: Any) -> JSONSchemaFormat | None:
    """Return the object around a schema in the field `name`, which TGI's clients send as `value`; None without one."""
    if name != "value" or not isinstance(value, dict) or "schema" not in value:
        return value if isinstance(value, JSONSchemaFormat) else None
    try:
        return msgspec.convert(value, JSONSchemaFormat)
    except msgspec.ValidationError:
        return None


def _tags(response_format: ResponseFormat) -> dict[str, Any]:
    """Return tags in the shape of the engine; the newer one has other names for the same."""
    newer = response_format.format
    if newer is None:
        return {"structures": response_format.structures, "triggers": response_format.triggers or []}
    kind, tags = newer.get("type"), newer.get("tags")
    if kind != "triggered_tags" or not isinstance(tags, list) or newer.keys() - {"type", "tags", "triggers"}:
        raise unsupported("response_format.format", newer, send="`triggered_tags` with `triggers` and `tags` alone")
    return {"structures": [_structure(tag) for tag in tags], "triggers": newer.get("triggers", [])}


def _structure(tag: Any) -> dict[str, Any]:
    match tag:
        case {"begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end}:
            return {"begin": begin, "schema": schema, "end": end}
        case _:
            raise unsupported("response_format.format", tag, send="tags whose `content` is a `json_schema`")


def _refused(message: str) -> ApiError:
    return wrong_value("response_format", message)

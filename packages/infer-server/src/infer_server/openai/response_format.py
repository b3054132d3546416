"""`response_format`: what the text looks like in OpenAI's words, and in those of TGI, vLLM, SGLang and hosted services.

Each way has one schema, one expression, one grammar or tags; where it stands is a row of `_PLACES`.
"""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol.structured_outputs import Whitespace
from infer_server.api.fields import described
from infer_server.api.validation import out_of_range, unsupported
from infer_server.errors import ApiError, shorten

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
    """What the text looks like, as OpenAI's clients say it, and those of other servers."""

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


def wanted_by(response_format: ResponseFormat) -> dict[str, Any] | None:
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
            return json | {"json": value if wrapped is None else wrapped.schema}
        case "structural_tag":
            return {kind: _tags(response_format)}
        case _:
            return {kind: value}


def place_in(response_format: ResponseFormat) -> str | None:
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
    return out_of_range("response_format", message)

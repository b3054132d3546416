"""The JSON Schema of a tool's arguments, as far as it can be kept."""

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from infer_engine.chat.arguments.parameter_types import ALL_TYPES, type_of, types_of
from infer_engine.protocol import Tool
from infer_engine.structured.grammar_text import read_schema
from infer_engine.structured.json_schema.ends import check_ends
from infer_engine.structured.json_schema.places import places_of
from infer_engine.structured.json_schema.widening import exactly, whatever_it_is

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

_ANY = ""
_JSON_TYPES = {
    **dict.fromkeys(("object", "dict", "map", "mapping", "hashmap"), "object"),
    **dict.fromkeys(("array", "list", "tuple", "set", "arraylist"), "array"),
    **dict.fromkeys(("string", "str", "char"), "string"),
    **dict.fromkeys(("number", "float", "double", "decimal"), "number"),
    **dict.fromkeys(("integer", "int", "long", "short"), "integer"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("null", "none", "nonetype"), "null"),
    "any": _ANY,
}
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA = ("const", "enum", "default", "example", "examples")

_COUNTED = ("Length", "Items", "Properties")

_ABOUT_MORE_PROPERTIES = frozenset(
    (
        *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties"),
        *("dependentSchemas", "dependentRequired", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef"),
    )
)


@functools.lru_cache(maxsize=256)  # agents send the same tools with every request
def schema_of_encoded(encoded_tool: bytes) -> Mapping[str, Any]:
    """Return what `arguments_schema` does for a tool that is given as JSON; it must not be changed.

    Raises:
        ValueError: as in `arguments_schema`.
    """
    return arguments_schema(msgspec.json.decode(encoded_tool, type=Tool))


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the checked schema of an object that `tool` takes.

    Where a schema names properties and says nothing of others, there are no others: tools do not know them, and small
    models would make them up without end.

    Of a tool that is not strict, a part that cannot be kept becomes a wider one: agents send schemas with keywords that
    no grammar has, and check the arguments themselves. Arguments are an object, whatever it says.

    Raises:
        ValueError: the tool is strict, and its schema is not that of an object, or cannot be kept.
    """
    if tool.parameters is None:
        return _NO_ARGUMENTS
    try:
        schema = _closed(_schema_of_object(tool.parameters, strict=tool.strict))
        if tool.strict:
            return read_schema(schema, "tools", exactly)
        schema = _possible(read_schema(schema, "tools", whatever_it_is))
        check_ends(schema)
    except (ValueError, RecursionError) as error:
        if tool.strict:
            raise ValueError(f"`tools`: the parameters of `{tool.name}` cannot be kept: {error}") from None
        return {"type": "object"}
    return schema


def _schema_of_object(parameters: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    schema: dict[str, Any] = _with_json_types(parameters)
    given = schema.get("type") or "object"  # clients write null where there are no parameters
    if strict and given != "object" and not (isinstance(given, list) and "object" in given):
        raise ValueError("they are not of the type `object`; tools take objects.")
    return schema | {"type": "object"}


def _with_json_types(schema: Any) -> Any:
    """Return `schema` with JSON's names of types in place of Python's and Java's, which many tools have."""
    if isinstance(schema, list):
        return [_with_json_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "type":
            names = [_json_type(each) for each in value] if isinstance(value, list) else _json_type(value)
            if _ANY not in (names if isinstance(names, list) else [names]):
                found[keyword] = names
        elif keyword in _SCHEMAS_BY_NAME and isinstance(value, dict):
            found[keyword] = {name: _with_json_types(each) for name, each in value.items()}
        else:
            found[keyword] = value if keyword in _DATA else _with_json_types(value)
    return found


def _json_type(name: Any) -> Any:
    return _JSON_TYPES.get(name.partition("[")[0].strip().lower(), name) if isinstance(name, str) else name


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` without properties that it does not name, unless one of its keywords may be about those."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not _ABOUT_MORE_PROPERTIES.isdisjoint(schema):
        return schema
    has_all = set(_texts(schema.get("required"))) <= properties.keys()
    return schema | {"additionalProperties": False} if has_all else schema


def _possible(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` without what contradicts itself, such as names that an object requires and forbids."""
    for each, _ in places_of(schema):
        if isinstance(each, dict):
            _leave_out_constants_of_other_types(each)
            _leave_out_empty_ranges(each)
        if isinstance(each, dict) and each.get("additionalProperties") is False and "patternProperties" not in each:
            listed = each.get("properties", {})
            if not set(each.get("required", [])) <= set(listed):
                each["required"] = [name for name in each["required"] if name in listed]
    return schema


def _leave_out_constants_of_other_types(schema: dict[str, Any]) -> None:
    types = types_of({"type": schema["type"]}, schema) if "type" in schema else ALL_TYPES
    if "enum" in schema and types.isdisjoint(type_of(value) for value in schema["enum"]):
        del schema["enum"]
    if "const" in schema and type_of(schema["const"]) not in types:
        del schema["const"]


def _leave_out_empty_ranges(schema: dict[str, Any]) -> None:
    for least, most in (("minimum", "maximum"), *((f"min{word}", f"max{word}") for word in _COUNTED)):
        if least in schema and most in schema and schema[least] > schema[most]:
            del schema[least], schema[most]


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []

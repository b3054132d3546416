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
    no grammar has, and check the arguments themselves.

    Raises:
        ValueError: the schema is not that of an object; or the tool is strict, and it cannot be kept.
    """
    if tool.parameters is None:
        return _NO_ARGUMENTS
    given = tool.parameters.get("type") or "object"  # clients write null where there are no parameters
    if given != "object" and not (isinstance(given, list) and "object" in given):
        raise ValueError(f"`tools`: the parameters of `{tool.name}` are not of the type `object`; tools take objects.")
    schema = _closed(tool.parameters | {"type": "object"})
    try:
        if tool.strict:
            return read_schema(schema, "tools", exactly)
        schema = _possible(read_schema(schema, "tools", whatever_it_is))
        check_ends(schema)
    except (ValueError, RecursionError) as error:
        if tool.strict:
            raise ValueError(f"`tools`: the parameters of `{tool.name}` cannot be kept: {error}") from None
        return {"type": "object"}
    return schema


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

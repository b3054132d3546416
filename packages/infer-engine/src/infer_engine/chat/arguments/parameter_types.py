"""`ParameterTypes`: which JSON types the parameters of tools may have, by their schemas. Imports no grammar library."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from infer_engine.protocol import Tool

TEXT = "string"
ALL_TYPES = frozenset((TEXT, "number", "boolean", "null", "object", "array"))

_MAX_HOPS = 16
"""Most references and combinations that are followed; what is behind more may be anything."""


class ParameterTypes:
    """The types of the parameters of one conversation's tools."""

    __slots__ = ("_roots", "_tools", "_types")

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Look into the schemas of `tools` when a parameter is asked for."""
        self._tools = {tool.name: tool for tool in tools}
        self._roots: dict[str, Mapping[str, Any]] = {}
        self._types: dict[tuple[str, str], frozenset[str]] = {}

    def of(self, tool_name: str, parameter: str) -> frozenset[str]:
        """Return the types that a parameter may have; all where the tool says nothing of it."""
        key = (tool_name, parameter)
        if key in self._types:
            return self._types[key]
        root = self._root(tool_name)
        types = types_of(schema_of_parameter(root, parameter), root) or ALL_TYPES
        if parameter in resolved(root, root).get("properties", {}):  # others may be any number
            self._types[key] = types
        return types

    def is_text(self, tool_name: str, parameter: str, value: str) -> bool:
        """Return whether a parameter's schema lists `value` as a text."""
        root = self._root(tool_name)
        return value in listed_texts(schema_of_parameter(root, parameter), root)

    def _root(self, tool_name: str) -> Mapping[str, Any]:
        """Return the checked schema of a tool's arguments; that of anything where there is no such tool."""
        if tool_name not in self._tools:
            return {}
        if tool_name not in self._roots:
            # It imports the grammar library.
            from infer_engine.chat.arguments.tool_schemas import schema_of_encoded  # noqa: PLC0415

            self._roots[tool_name] = schema_of_encoded(msgspec.json.encode(self._tools[tool_name]))
        return self._roots[tool_name]


def schema_of_parameter(root: Mapping[str, Any], parameter: str) -> Any:
    """Return what the schema of arguments says of a parameter; True: nothing."""
    properties = resolved(root, root).get("properties", {})
    return properties[parameter] if parameter in properties else root.get("additionalProperties", True)


def resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `schema` refers to among the definitions of `root`, or `schema` itself; {} for what is none."""
    for _ in range(_MAX_HOPS):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            break
        _, _, place = reference.partition("#/")
        kind, _, name = place.partition("/")
        named = root.get(kind) if kind in ("$defs", "definitions") else None
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        schema = named.get(name, {}) if isinstance(named, dict) else {}
    return schema if isinstance(schema, dict) else {}


def types_of(schema: Any, root: Mapping[str, Any], hops: int = 0) -> frozenset[str]:
    """Return the types of the values that match `schema`, and perhaps more; integers are numbers."""
    if schema is False:
        return frozenset()
    if not isinstance(schema, dict) or hops > _MAX_HOPS:
        return ALL_TYPES
    schema = resolved(schema, root)
    types = ALL_TYPES
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types &= {"number" if name == "integer" else name for name in named}
    if "const" in schema:
        types &= {type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        types &= {type_of(value) for value in schema["enum"]}
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            types &= frozenset().union(*(types_of(each, root, hops + 1) for each in schema[word]))
    if isinstance(schema.get("allOf"), list):
        types = types.intersection(*(types_of(each, root, hops + 1) for each in schema["allOf"]))
    return types


def type_of(value: object) -> str:
    """Return the JSON type of a value as `json` reads it."""
    match value:
        case bool():
            return "boolean"
        case str():
            return TEXT
        case int() | float():
            return "number"
        case None:
            return "null"
        case _:
            return "array" if isinstance(value, list) else "object"


def listed_texts(schema: Any, root: Mapping[str, Any], hops: int = 0) -> frozenset[str]:
    """Return the texts that `schema` lists as values."""
    if not isinstance(schema, dict) or hops > _MAX_HOPS:
        return frozenset()
    schema = resolved(schema, root)
    values = [schema.get("const"), *(schema["enum"] if isinstance(schema.get("enum"), list) else ())]
    found = frozenset(value for value in values if isinstance(value, str))
    branches = [each for word in ("anyOf", "oneOf", "allOf") for each in schema.get(word) or ()]
    return found.union(*(listed_texts(each, root, hops + 1) for each in branches))


def read_json(text: str) -> tuple[str | None, str]:
    """Return the type of the JSON text `text`, None if it is not JSON, and the text without white space around it."""
    text = text.strip()
    try:
        return type_of(_DECODER.decode(text)), text
    except (ValueError, RecursionError):
        return None, text


def _refuse(name: str) -> object:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse)
"""Reads JSON, which has no NaN and no infinite numbers."""

"""The JSON Schema of a tool's arguments, as far as it can be kept."""

from typing import Any

from infer_engine.protocol import Tool
from infer_engine.structured.grammar_text import read_schema

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

_ABOUT_MORE_PROPERTIES = frozenset(
    (
        *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties"),
        *("dependentSchemas", "dependentRequired", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef"),
    )
)


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
    given = tool.parameters.get("type", "object")
    if given != "object" and not (isinstance(given, list) and "object" in given):
        raise ValueError(f"`tools`: the parameters of `{tool.name}` are not of the type `object`; tools take objects.")
    schema = _closed(tool.parameters | {"type": "object"})
    try:
        return read_schema(schema, "tools")
    except (ValueError, RecursionError) as error:
        if tool.strict:
            raise ValueError(f"`tools`: the parameters of `{tool.name}` cannot be kept: {error}") from None
    return _widened(schema)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` without properties that it does not name, unless one of its keywords may be about those."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not _ABOUT_MORE_PROPERTIES.isdisjoint(schema):
        return schema
    has_all = set(_texts(schema.get("required"))) <= properties.keys()
    return schema | {"additionalProperties": False} if has_all else schema


def _widened(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that can be kept and allows all that `schema` does."""
    properties = schema.get("properties")
    if isinstance(properties, dict):
        widened: dict[str, Any] = {
            "type": "object",
            "properties": {name: _kept_or_wider(value) for name, value in properties.items()},
            "required": [name for name in _texts(schema.get("required")) if name in properties],
        }
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            widened["additionalProperties"] = False
        if (kept := _kept(widened)) is not None:
            return kept
    return {"type": "object"}


def _kept_or_wider(schema: Any) -> Any:
    """Return `schema` if it can be kept on its own, or a wider one."""
    if (kept := _kept(schema)) is not None:
        return kept
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            return _widened(schema)
        if schema.get("type") == "array" and "prefixItems" not in schema:
            return {"type": "array", "items": _kept_or_wider(schema.get("items", True))}
        if (kept := _kept({"type": schema["type"]} if "type" in schema else {})) is not None:
            return kept
    return {}


def _kept(schema: Any) -> dict[str, Any] | None:
    try:
        return read_schema(schema, "tools")
    except (ValueError, RecursionError):
        return None


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []

"""`respelled`: a schema's keywords in the words of draft 2020-12, where other dialects have a word for the same.

Drafts 4 to 2019-09, OpenAPI 3.0, and keywords that say what another one says better. Each means the same as before.
"""

import json
from typing import Any

MAX_COPIED = 100_000
"""Characters of the schemas that stand for those of the names of `propertyNames`."""
_UUIDS = tuple(f"uuid{version}" for version in range(1, 9))
"""Pydantic's; `uuid` says a little less."""
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf")
_ABOUT_MORE = (*_IN_PLACE, "if", "then", "else", "not", "dependentSchemas", "$dynamicRef", "$recursiveRef")


def respelled(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `schema`, of which nothing is checked; the schemas inside stay as they are.

    `definitions` are the `$defs` of the whole.
    """
    schema = dict(schema)
    _read_tuples(schema)
    _read_bounds(schema)
    _read_unevaluated(schema)
    _read_names(schema, definitions)
    _read_unique(schema)
    if schema.get("format") in _UUIDS:
        schema["format"] = "uuid"
    return _read_null(schema)


def _read_tuples(schema: dict[str, Any]) -> None:
    """Draft 2019-09: a list of `items`, and `additionalItems` for the others."""
    more = schema.pop("additionalItems", True)
    items = schema.get("items")
    if isinstance(items, list) and "prefixItems" not in schema:
        schema["items"] = more
        if items:
            schema["prefixItems"] = items


def _read_bounds(schema: dict[str, Any]) -> None:
    """Draft 4: `exclusiveMinimum` is true or false, beside `minimum`."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool):
            is_exclusive = schema.pop(exclusive)
            if is_exclusive and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _read_unevaluated(schema: dict[str, Any]) -> None:
    """Unevaluated is the same as additional where no other schema applies in the same place."""
    for unevaluated, additional in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if unevaluated in schema and additional not in schema and not any(word in schema for word in _ABOUT_MORE):
            if unevaluated == "unevaluatedItems" and "contains" in schema:
                continue
            schema[additional] = schema.pop(unevaluated)


def _read_names(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """`propertyNames`: all names are texts; of a few names each is listed; a pattern of names has its own keyword."""
    names = schema.get("propertyNames")
    if isinstance(names, dict) and set(names) == {"$ref"} and isinstance(names["$ref"], str):
        names = definitions.get(names["$ref"].removeprefix("#/$defs/"))
    if names is True or (isinstance(names, dict) and not set(names) - {"type", "title", "description"}):
        if names is True or names.get("type", "string") == "string":
            del schema["propertyNames"]
        return
    if not isinstance(names, dict) or "properties" in schema or "patternProperties" in schema:
        return
    inner = schema.get("additionalProperties", True)
    words = set(names) - {"type", "title", "description"}
    if words == {"pattern"} and isinstance(names["pattern"], str):
        schema["patternProperties"] = {names["pattern"]: inner}
    elif words in ({"enum"}, {"const"}):
        listed = names["enum"] if "enum" in names else [names["const"]]
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            return
        copied = json.dumps(inner)
        if len(copied) * len(listed) > MAX_COPIED or "propertyNames" in copied:
            return
        schema["properties"] = dict.fromkeys(listed, inner)
    else:
        return
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def _read_unique(schema: dict[str, Any]) -> None:
    """A list of different values out of some is not longer than these are many."""
    items = schema.get("items")
    if schema.get("uniqueItems") is True and isinstance(items, dict) and "prefixItems" not in schema:
        values = items.get("enum", [True, False] if items.get("type") == "boolean" else None)
        most = schema.get("maxItems")
        if isinstance(values, list) and values and (most is None or (isinstance(most, int) and most > len(values))):
            schema["maxItems"] = len(values)


def _read_null(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI 3.0: `nullable` true allows null beside the `type`, or beside what the schema refers to."""
    if schema.pop("nullable", False) is not True:
        return schema
    kind = schema.get("type")
    if kind is not None:
        kinds = kind if isinstance(kind, list) else [kind]
        return schema | {"type": kinds if "null" in kinds else [*kinds, "null"]}
    inner = {word: schema.pop(word) for word in _IN_PLACE if word in schema}
    return schema | {"anyOf": [inner, {"type": "null"}]} if inner else schema

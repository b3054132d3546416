"""The schemas inside a prepared schema: where they stand, which one a `$ref` names, and copies with others."""

from collections.abc import Callable, Iterator
from typing import Any

from infer_engine.structured.json_schema.references import unescaped

LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "$defs", "definitions")
SINGLE = ("items", "additionalProperties")


def places_of(schema: Any) -> list[tuple[Any, str]]:
    """Return every schema inside `schema` with its place, itself first."""
    return list(_walk(schema))


def _walk(schema: Any) -> Iterator[tuple[Any, str]]:
    left: list[tuple[Any, str]] = [(schema, "#")]
    while left:
        each, place = left.pop()
        yield each, place
        left.extend((inner, at) for _, inner, at in inside(each, place))


def inside(schema: Any, place: str) -> Iterator[tuple[str, Any, str]]:
    """Return the schemas inside `schema`, which stands at `place`: keyword, schema, place."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if keyword in SINGLE:
            yield keyword, value, f"{place}/{keyword}"
        elif keyword in LISTS:
            yield from ((keyword, inner, f"{place}/{keyword}/{index}") for index, inner in enumerate(value))
        elif keyword in MAPS:
            yield from ((keyword, inner, f"{place}/{keyword}/{name[:80]}") for name, inner in value.items())


def target_of(root: Any, reference: str) -> Any:
    """Return the schema that `reference` of a localized schema names, or None."""
    if reference == "#":
        return root
    for folder in ("$defs", "definitions"):
        named = root.get(folder, {}) if isinstance(root, dict) else {}
        name = unescaped(reference.removeprefix(f"#/{folder}/"))
        if reference.startswith(f"#/{folder}/") and name in named:
            return named[name]
    return None


def rewritten(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy of `schema` with `change` of every object that is a schema; those inside are changed first."""
    if not isinstance(schema, dict):
        return schema
    copy = dict(schema)
    for word, value in schema.items():
        if word in SINGLE:
            copy[word] = rewritten(value, change)
        elif word in LISTS:
            copy[word] = [rewritten(inner, change) for inner in value]
        elif word in MAPS:
            copy[word] = {name: rewritten(inner, change) for name, inner in value.items()}
    return change(copy)

"""`check_ends`: refuses a schema that no finite value matches, such as an object that must hold itself.

It names the place of what contradicts itself in one schema. Contradictions of several (`allOf` of two types) the
grammar library finds, where they stand in the way.
"""

from typing import Any

from infer_engine.structured.json_schema.places import places_of, target_of

_RANGES = (
    ("minimum", "maximum", {"integer", "number"}),
    ("minLength", "maxLength", {"string"}),
    ("minItems", "maxItems", {"array"}),
    ("minProperties", "maxProperties", {"object"}),
)
MAX_ROUNDS = 64
"""A schema that takes more of them, each of its `$ref` to another one that takes more, is left to the library."""


def check_ends(root: Any) -> None:
    """Raise ValueError if nothing finite matches `root`, a checked schema; takes time in proportion to its size."""
    places = places_of(root)
    left = [each for each, _ in reversed(places) if isinstance(each, dict)]
    finite: set[int] = set()

    def has_end(schema: Any) -> bool:
        return schema is True or id(schema) in finite

    def ends(schema: dict[str, Any]) -> bool:
        if "$ref" in schema and not has_end(target_of(root, schema["$ref"])):
            return False
        if not all(has_end(each) for each in schema.get("allOf", [])):
            return False
        if not all(any(has_end(each) for each in schema[word]) for word in ("anyOf", "oneOf") if word in schema):
            return False
        kinds = schema.get("type", "string")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if _contradiction(schema) is not None:
            return False
        if "const" in schema or "enum" in schema or not set(kinds) <= {"object", "array"}:
            return True
        return ("object" in kinds and object_ends(schema)) or ("array" in kinds and array_ends(schema))

    def object_ends(schema: dict[str, Any]) -> bool:
        listed, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        others = True if "patternProperties" in schema else more
        return all(has_end(listed.get(name, others)) for name in schema.get("required", []))

    def array_ends(schema: dict[str, Any]) -> bool:
        first = schema.get("prefixItems", [])
        least = schema.get("minItems", 0)
        return all(has_end(each) for each in first[:least]) and (
            least <= len(first) or has_end(schema.get("items", True))
        )

    for _ in range(MAX_ROUNDS):
        found = [each for each in left if ends(each)]
        finite.update(id(each) for each in found)
        left = [each for each in left if id(each) not in finite]
        if not found or not left:
            break
    else:
        return
    if not isinstance(root, dict) or has_end(root):
        return
    for each, place in places:
        if isinstance(each, dict) and (problem := _contradiction(each)) is not None:
            raise ValueError(f"{problem.format(place=place)}, so that nothing matches")
    for each, place in places:
        if isinstance(each, dict) and "$ref" in each and not has_end(each):
            raise ValueError(
                f"`$ref` at {place} asks for a value that holds another such value, without end; make it optional, or "
                "let it be null"
            )


def _contradiction(schema: dict[str, Any]) -> str | None:
    """Return why nothing matches `schema`, if it says so itself."""
    kinds = schema.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    for least, most, of in _RANGES:
        if least in schema and most in schema and schema[least] > schema[most] and kinds and kinds <= of:
            return f"`{least}` ({schema[least]}) at {{place}} is greater than `{most}` ({schema[most]})"
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if kinds == {"object"} and is_closed:
        lost = [name for name in schema.get("required", []) if name not in schema.get("properties", {})]
        if lost:
            shown = lost[0][:40].replace("{", "{{").replace("}", "}}")
            return f"`required` at {{place}} asks for `{shown}`, which `additionalProperties` false forbids"
    return None

"""`check_schema`: refuses what the grammar library accepts, but keeps wrongly or at too high a cost.

It is called with a schema whose keywords are known and whose values are well-formed (`prepare_schema`), and holds
together with `GRAMMAR_OPTIONS` only. Every rule was found by a text that `llguidance` 1.9.1 generates against a schema.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from infer_engine.structured.json_patterns import UNPRINTABLE, check_pattern

GRAMMAR_OPTIONS: dict[str, Any] = {"lenient": False, "coerce_one_of": True, "json_allowed_escapes": 'nrbtf\\"'}
"""Without `u` among the escapes no name can be spelled in two ways, such as `a` and `\\u0061`: the second would be
another property. `oneOf` becomes `anyOf`, because `check_schema` shows that at most one branch can hold."""
MAX_PROPERTIES = 2_000
"""In one object, required ones without a schema included: 0.23 s, 22 MB; 5,000: 1.3 s, 52 MB."""
MAX_PATTERN_PROPERTIES = 100
"""In one object: 0.05 s; 150: 0.3 s; 300: more than 8 s."""
MAX_ONE_OF_MANY = 100
"""Properties of which `minProperties` 1 asks for any: 0.18 s, 55 MB; 200: 0.8 s, 217 MB and a panic."""
MAX_MULTIPLE_OF_TOTAL = 50_000
"""The sum of the different `multipleOf`, without their decimal points: 0.2 s; 200,000: 0.8 s, 80 MB."""
MAX_LENGTH = 16_000
"""A bounded string takes a lexer state for every character, and a generation has 20,000 of them."""
MAX_EXACT = 2**53
"""The library reads numbers as float64."""
MAX_PAIRS = 100_000
"""Steps to compare the branches of all `oneOf`: about 0.05 s."""
MAX_HOPS = 8
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"

_TYPES = frozenset({"string", "integer", "fraction", "boolean", "null", "array", "object"})
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties")
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def check_schema(schema: Any) -> None:
    """Raise ValueError if `schema` cannot be kept; the message names the keyword, where it stands, and what to do.

    Takes time in proportion to the schema's size.
    """
    places = {id(each): place for each, place in _walk(schema) if isinstance(each, dict)}
    schemas = [each for each, _ in _walk(schema) if isinstance(each, dict)]
    anchors = {each["$anchor"]: each for each in schemas if "$anchor" in each}
    has_new_words = any("prefixItems" in each for each in schemas)
    for each in schemas:
        if "$schema" in each and (each is not schema or (has_new_words and each["$schema"] != DRAFT_2020_12)):
            raise ValueError(
                f"`$schema` at {places[id(each)]}: schemas are read as draft 2020-12, by which `prefixItems` is meant; "
                "leave it out"
            )
        _check_values(each, places[id(each)], is_root=each is schema)
        if "$ref" in each and _target(schema, each["$ref"], anchors) is None:
            raise ValueError(
                f"`$ref` at {places[id(each)]} is {each['$ref'][:80]!r}, where no schema is; put the schema into "
                "`$defs`, and send `#/$defs/<name>`"
            )
    _check_cycles(schema, schemas, places, anchors)
    _check_multiples(schemas)
    steps = 0
    for each in schemas:
        steps += _check_one_of(each, places[id(each)], schema, anchors, MAX_PAIRS - steps)


def _walk(schema: Any) -> Iterator[tuple[Any, str]]:
    """Yield every schema with its place."""
    left: list[tuple[Any, str]] = [(schema, "#")]
    while left:
        each, place = left.pop()
        yield each, place
        if isinstance(each, dict):
            for keyword, value in each.items():
                if keyword in _SINGLE:
                    left.append((value, f"{place}/{keyword}"))
                elif keyword in _LISTS:
                    left.extend((inner, f"{place}/{keyword}/{index}") for index, inner in enumerate(value))
                elif keyword in _MAPS:
                    left.extend((inner, f"{place}/{keyword}/{name[:80]}") for name, inner in value.items())


def _check_values(schema: dict[str, Any], place: str, *, is_root: bool) -> None:
    if "$id" in schema and not is_root:
        raise ValueError(f"`$id` at {place} changes what `$ref` means; leave it out")
    for keyword in ("const", "enum"):
        if keyword in schema:
            _check_data(schema[keyword], f"`{keyword}` at {place}")
    for keyword in _BOUNDS:
        if abs(schema.get(keyword, 0)) > MAX_EXACT:
            raise ValueError(f"`{keyword}` at {place} is beyond 2**53, where it is not exact; leave it out")
    for keyword in ("minLength", "maxLength"):
        if schema.get(keyword, 0) > MAX_LENGTH:
            raise ValueError(f"`{keyword}` at {place} is {schema[keyword]}; at most {MAX_LENGTH} is kept; leave it out")
    if "pattern" in schema:
        check_pattern(schema["pattern"], f"`pattern` at {place}")
    patterns, properties = schema.get("patternProperties", {}), schema.get("properties", {})
    for pattern in patterns:
        check_pattern(pattern, f"`patternProperties` at {place}")
    if len(patterns) > MAX_PATTERN_PROPERTIES:
        raise ValueError(f"`patternProperties` at {place} has {len(patterns)}; at most {MAX_PATTERN_PROPERTIES} fit")
    required = set(schema.get("required", []))
    if (count := len(required | set(properties))) > MAX_PROPERTIES:
        raise ValueError(
            f"`properties` at {place} has {count} names; at most {MAX_PROPERTIES} fit; use several objects"
        )
    if schema.get("minProperties", 0) > len(required) and len(set(properties) - required) > MAX_ONE_OF_MANY:
        raise ValueError(f"`minProperties` at {place} is kept for up to {MAX_ONE_OF_MANY} properties; leave it out")


def _check_data(value: Any, what: str) -> None:
    """Refuse a constant that cannot be written exactly."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict | list):
            left.extend(each.values() if isinstance(each, dict) else each)
        elif isinstance(each, str) and not UNPRINTABLE.isdisjoint(each):
            raise ValueError(f"{what} has a text with a control character, which cannot be written; leave it out")
        elif isinstance(each, int | float) and not (math.isfinite(each) and abs(each) <= MAX_EXACT):
            raise ValueError(f"{what} has a number beyond 2**53, which is not exact; send it as a text")


def _target(root: Any, reference: str, anchors: dict[str, Any]) -> Any:
    """Return the schema that `reference` names, or None: data, such as a constant, is no schema."""
    if reference.rstrip("/") in ("", "#") and reference != "#/":
        return root
    if not reference.startswith("#/"):
        return anchors.get(unquote(reference[1:]))
    node, kind = root, "schema"
    for step in reference[2:].split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            fits = name.isdecimal() and name.isascii() and str(int(name[:9])) == name and int(name) < len(node)
            node = node[int(name)] if fits else None
        else:
            node = node.get(name) if isinstance(node, dict) else None
        if node is None:
            return None
        if kind == "schema":
            kind = "map" if name in (*_MAPS, *_LISTS) else "schema"
            if name not in (*_MAPS, *_LISTS, *_SINGLE):
                return None
        else:
            kind = "schema"
    return node if kind == "schema" else None


def _check_cycles(root: Any, schemas: list[Any], places: dict[int, str], anchors: dict[str, Any]) -> None:
    """Refuse a schema that leads to itself without a value in between: nothing could be generated."""
    done: set[int] = set()
    for start in schemas:
        path: list[int] = []
        left: list[Any] = [start]
        while left:
            each = left.pop()
            if each is None:
                done.add(path.pop())
            elif isinstance(each, dict) and id(each) not in done:
                if id(each) in path:
                    raise ValueError(f"`$ref` at {places[id(each)]} leads back to the same place; name another schema")
                path.append(id(each))
                left.append(None)
                left.extend(inner for keyword in _IN_PLACE for inner in each.get(keyword, []))
                if "$ref" in each:
                    left.append(_target(root, each["$ref"], anchors))


def _check_multiples(schemas: list[Any]) -> None:
    """Refuse values of `multipleOf` that are too many, or whose common multiple overflows where schemas are merged."""
    values = {Fraction(str(each["multipleOf"])) for each in schemas if "multipleOf" in each}
    scale = max((value.denominator for value in values), default=1)
    decimals = 10 ** next(power for power in range(400) if 10**power % scale == 0) if values else 1
    if sum(_digits(value) for value in values) > MAX_MULTIPLE_OF_TOTAL:
        raise ValueError(
            f"`multipleOf`: the values add up to more than {MAX_MULTIPLE_OF_TOTAL}; leave some of them out"
        )
    merges = any(len(each) > 1 and not {*_IN_PLACE, "$ref"}.isdisjoint(each) for each in schemas) or any(
        "allOf" in each or "patternProperties" in each for each in schemas
    )
    common = 1
    for value in values:
        scaled = int(value * decimals)
        if merges and common * scaled >= 2**32:
            raise ValueError("`multipleOf`: several values have a common multiple that is too large; leave some out")
        common = math.lcm(common, scaled)


def _digits(value: Fraction) -> int:
    while value.denominator != 1:
        value *= 10
    return int(value)


class _Facts:
    """What is known of all values of a schema: their types, constants, and the constants of their properties."""

    def __init__(self, schema: Any, root: Any, anchors: dict[str, Any]) -> None:
        self.types = _TYPES
        self.constants: frozenset[Any] | None = None
        self.tags: dict[str, frozenset[Any]] = {}
        self.required: set[str] = set()
        self.steps = 0
        for _ in range(MAX_HOPS):
            if not isinstance(schema, dict):
                self.types = self.types if schema else frozenset()
                return
            self._add(schema)
            if "$ref" not in schema:
                return
            schema = _target(root, schema["$ref"], anchors)

    def _add(self, schema: dict[str, Any]) -> None:
        if "type" in schema:
            names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            self.types &= frozenset(["integer", "fraction"] if "number" in names else []) | frozenset(names)
        constants = _constants(schema)
        if constants is not None:
            self.constants = constants if self.constants is None else self.constants & constants
            self.types &= frozenset().union(*(_types_of(value) for _, value in constants))
        self.required |= set(schema.get("required", []))
        self.steps += len(schema.get("required", [])) + len(schema.get("properties", {})) + len(constants or ())
        for name, inner in schema.get("properties", {}).items():
            tags = _constants(inner)
            if tags is not None:
                self.tags[name] = self.tags.get(name, tags) & tags

    def excludes(self, other: "_Facts") -> bool:
        """Return whether no value is of both."""
        common = self.types & other.types
        if not common or (
            self.constants is not None and other.constants is not None and self.constants.isdisjoint(other.constants)
        ):
            return True
        return common == {"object"} and any(
            name in other.tags and tags.isdisjoint(other.tags[name]) and name in self.required | other.required
            for name, tags in self.tags.items()
        )


def _types_of(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset(["null"])
        case bool():
            return frozenset(["boolean"])
        case str():
            return frozenset(["string"])
        case _:
            return frozenset(["integer", "fraction"])


def _constants(schema: Any) -> frozenset[Any] | None:
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None or any(isinstance(value, dict | list) for value in values):
        return None
    return frozenset((isinstance(value, bool), value) for value in values)


def _check_one_of(schema: dict[str, Any], place: str, root: Any, anchors: dict[str, Any], left: int) -> int:
    """Refuse branches of which two may hold; return how many steps were taken of those `left`."""
    branches: list[_Facts] = []
    steps = 0
    for number, branch in enumerate(schema.get("oneOf", [])):
        facts = _Facts(branch, root, anchors)
        steps += facts.steps
        for index, one in enumerate(branches):
            steps += 1 + len(one.tags)
            if steps > left:
                raise ValueError(f"`oneOf` at {place} has too many branches to compare; use `anyOf`")
            if not one.excludes(facts):
                raise ValueError(
                    f"`oneOf` at {place}: both {index} and {number} may hold; use `anyOf`, or give each branch another "
                    "type, or a required property with another `const`"
                )
        branches.append(facts)
    if steps > left:
        raise ValueError(f"`oneOf` at {place} has too many branches to compare; use `anyOf`")
    return steps

"""`check_schema`: finds what the grammar library accepts, but keeps wrongly or at too high a cost.

It is called with a schema whose keywords are known and whose values are well-formed (`prepare_schema`), and holds
together with the options of `spelling` only. Every rule was found by a text that `llguidance` 1.9.1 generates against a
schema.
"""

import math
from fractions import Fraction
from typing import Any

from infer_engine.structured.errors import NotKeptError
from infer_engine.structured.json_schema.exactness import are_exact, is_exact
from infer_engine.structured.json_schema.patterns import check_pattern
from infer_engine.structured.json_schema.places import places_of, target_of
from infer_engine.structured.json_schema.widening import MAX_LENGTH, Refuse, exactly

MAX_PROPERTIES = 5_000
"""In one object, required ones without a schema included: 0.24 s."""
MAX_OPTIONAL_PROPERTIES = 2_000
"""In one object: 0.24 s, 22 MB; 5,000: 1.5 s, 52 MB."""
MAX_PATTERN_PROPERTIES = 100
"""In one object: 0.05 s; 150: 0.3 s; 300: more than 8 s."""
MAX_ONE_OF_MANY = 100
"""Properties of which `minProperties` 1 asks for any: 0.18 s, 55 MB; 200: 0.8 s, 217 MB and a panic."""
MAX_MULTIPLE_OF_TOTAL = 50_000
"""The sum of the different `multipleOf`, without their decimal points: 0.2 s; 200,000: 0.8 s, 80 MB."""
MAX_PAIRS = 100_000
"""Steps to compare the branches of all `oneOf`: about 0.05 s."""
MAX_HOPS = 8
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"

_TYPES = frozenset({"string", "integer", "fraction", "boolean", "null", "array", "object"})
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def check_schema(schema: Any, refuse: Refuse = exactly) -> None:
    """Call `refuse` with what cannot be kept; the message names the keyword, where it stands, and what to do.

    Takes time in proportion to the schema's size.

    Raises:
        ValueError: from `refuse`, or the schema is larger than what is compiled.
    """
    places = {id(each): place for each, place in places_of(schema) if isinstance(each, dict)}
    schemas = [each for each, _ in places_of(schema) if isinstance(each, dict)]
    has_new_words = any("prefixItems" in each for each in schemas)
    for each in schemas:
        place = places[id(each)]
        draft = each.get("$schema")
        if draft is not None and (each is not schema or (has_new_words and draft != DRAFT_2020_12)):
            meant = "schemas are read as draft 2020-12, by which `prefixItems` is meant; leave it out"
            problem = f"`$schema` at {place}: {meant}"
            refuse(each, "$schema", draft, NotKeptError(problem))
        _check_values(each, place, refuse)
        if "$ref" in each and target_of(schema, each["$ref"]) is None:
            problem = f"`$ref` at {place} is {each['$ref'][:80]!r}, where no schema is; nothing is fetched"
            refuse(each, "$ref", each["$ref"], ValueError(problem))
    _check_cycles(schema, schemas, places, refuse)
    _check_multiples(schemas, refuse)
    steps = 0
    for each in schemas:
        if "oneOf" in each:
            steps += _check_one_of(each, places[id(each)], schema, MAX_PAIRS - steps, refuse)


def _check_values(schema: dict[str, Any], place: str, refuse: Refuse) -> None:
    def not_kept(keyword: str, problem: str) -> None:
        refuse(schema, keyword, schema[keyword], NotKeptError(f"`{keyword}` at {place} {problem}"))

    for keyword in ("const", "enum"):
        if keyword in schema and not are_exact(schema[keyword]):
            not_kept(keyword, "has a number beyond 2**53, and not exact there; send it as a text")
    for keyword in _BOUNDS:
        if not is_exact(schema.get(keyword, 0)):
            not_kept(keyword, "is beyond 2**53, and not exact there; leave it out")
    for keyword in ("minLength", "maxLength"):
        if schema.get(keyword, 0) > MAX_LENGTH:
            not_kept(keyword, f"is {schema[keyword]}; at most {MAX_LENGTH} is kept; leave it out")
    _check_patterns(schema, place, refuse)
    properties = schema.get("properties", {})
    required = set(schema.get("required", []))
    num_optional = len(set(properties) - required)
    if (count := len(required | set(properties))) > MAX_PROPERTIES or num_optional > MAX_OPTIONAL_PROPERTIES:
        problem = (
            f"`properties` at {place} has {count} names, {num_optional} of them not required; at most {MAX_PROPERTIES} "
            f"fit, and {MAX_OPTIONAL_PROPERTIES}; use several objects"
        )
        refuse(schema, "properties", properties, ValueError(problem))
    while schema.get("minProperties", 0) > len(required) and num_optional > MAX_ONE_OF_MANY:
        not_kept("minProperties", f"is kept for up to {MAX_ONE_OF_MANY} properties; leave it out")


def _check_patterns(schema: dict[str, Any], place: str, refuse: Refuse) -> None:
    if "pattern" in schema:
        try:
            check_pattern(schema["pattern"], f"`pattern` at {place}")
        except ValueError as error:
            refuse(schema, "pattern", schema["pattern"], error)
    patterns = schema.get("patternProperties", {})
    for pattern in list(patterns):
        try:
            check_pattern(pattern, f"`patternProperties` at {place}")
        except ValueError as error:
            others = {name: inner for name, inner in patterns.items() if name != pattern}
            refuse(schema, "patternProperties", patterns, error)
            if others:
                schema["patternProperties"] = patterns = others
    if len(patterns) > MAX_PATTERN_PROPERTIES:
        problem = f"`patternProperties` at {place} has {len(patterns)}; at most {MAX_PATTERN_PROPERTIES} fit"
        refuse(schema, "patternProperties", patterns, ValueError(problem))


def _check_cycles(root: Any, schemas: list[Any], places: dict[int, str], refuse: Refuse) -> None:
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
                    problem = f"`$ref` at {places[id(each)]} leads back to the same place; name another schema"
                    for inner in [one for one in schemas if id(one) in path[path.index(id(each)) :]]:
                        refuse(inner, "$ref", inner.get("$ref"), ValueError(problem))
                    continue
                path.append(id(each))
                left.append(None)
                left.extend(inner for keyword in _IN_PLACE for inner in each.get(keyword, []))
                if "$ref" in each:
                    left.append(target_of(root, each["$ref"]))


def _check_multiples(schemas: list[Any], refuse: Refuse) -> None:
    """Refuse values of `multipleOf` that are too many, or whose common multiple overflows where schemas are merged."""
    if (problem := _problem_of_multiples(schemas)) is not None:
        for each in schemas:
            if "multipleOf" in each:
                refuse(each, "multipleOf", each["multipleOf"], NotKeptError(f"`multipleOf`: {problem}"))


def _problem_of_multiples(schemas: list[Any]) -> str | None:
    values = {Fraction(str(each["multipleOf"])) for each in schemas if "multipleOf" in each}
    scale = max((value.denominator for value in values), default=1)
    decimals = 10 ** next(power for power in range(400) if 10**power % scale == 0) if values else 1
    if sum(_digits(value) for value in values) > MAX_MULTIPLE_OF_TOTAL:
        return f"the values add up to more than {MAX_MULTIPLE_OF_TOTAL}; leave some of them out"
    merges = any(len(each) > 1 and not {*_IN_PLACE, "$ref"}.isdisjoint(each) for each in schemas) or any(
        "allOf" in each or "patternProperties" in each for each in schemas
    )
    common = 1
    for value in values:
        scaled = int(value * decimals)
        if merges and common * scaled >= 2**32:
            return "several values have a common multiple that is too large; leave some out"
        common = math.lcm(common, scaled)
    return None


def _digits(value: Fraction) -> int:
    while value.denominator != 1:
        value *= 10
    return int(value)


class _Facts:
    """Facts that hold for all values of a schema: their types, constants, and the constants of their properties.

    `names` are those that an object may have; None: any but the `forbidden` ones.
    """

    def __init__(self, schema: Any, root: Any) -> None:
        self.types = _TYPES
        self.constants: frozenset[Any] | None = None
        self.tags: dict[str, frozenset[Any]] = {}
        self.required: set[str] = set()
        self.names: frozenset[str] | None = None
        self.listed: set[str] = set()
        self.forbidden: set[str] = set()
        self.steps = 0
        left = [schema]
        for _ in range(MAX_HOPS):
            if not left:
                return
            each = left.pop()
            if not isinstance(each, dict):
                self.types = self.types if each else frozenset()
                continue
            self._add(each)
            left.extend(each.get("allOf", [])[:MAX_HOPS])
            if "$ref" in each:
                left.append(target_of(root, each["$ref"]))

    def _add(self, schema: dict[str, Any]) -> None:
        if "type" in schema:
            names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            self.types &= frozenset(["integer", "fraction"] if "number" in names else []) | frozenset(names)
        constants = _constants(schema)
        if constants is not None:
            self.constants = constants if self.constants is None else self.constants & constants
            self.types &= frozenset().union(*(_types_of(value) for _, value in constants))
        self.required |= set(schema.get("required", []))
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            listed = frozenset[str](schema.get("properties", {}))
            self.names = listed if self.names is None else self.names & listed
        self.steps += len(schema.get("required", [])) + len(schema.get("properties", {})) + len(constants or ())
        for name, inner in schema.get("properties", {}).items():
            (self.forbidden if inner is False else self.listed).add(name)
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
        if common != {"object"}:
            return False
        return (
            any(
                name in other.tags and tags.isdisjoint(other.tags[name]) and name in self.required | other.required
                for name, tags in self.tags.items()
            )
            or not self.allows(other.required)
            or not other.allows(self.required)
        )

    def allows(self, required: set[str]) -> bool:
        """Return whether an object may have all these names."""
        return self.forbidden.isdisjoint(required) and (self.names is None or required <= self.names)

    def forbid_one_of(self, other: "_Facts") -> str | None:
        """Return a name that `other` requires and these objects do not list, which they may not have from here on."""
        free = sorted(other.required - self.listed)
        if self.types & other.types != {"object"} or not free:
            return None
        self.forbidden.add(free[0])
        return free[0]


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


def _check_one_of(schema: dict[str, Any], place: str, root: Any, left: int, refuse: Refuse) -> int:
    """Refuse branches of which two may hold; return how many steps were taken of those `left`.

    An object that requires a name of its own, as utoipa writes a variant, loses the names of the others: with two of
    them it would match two branches.
    """
    branches: list[_Facts] = []
    steps = 0
    problem = None
    for number, branch in enumerate(schema["oneOf"]):
        facts = _Facts(branch, root)
        steps += facts.steps
        for index, one in enumerate(branches):
            steps += 1 + len(one.tags) + len(one.required)
            if steps > left:
                problem = "has too many branches to compare; use `anyOf`"
                break
            if one.excludes(facts):
                continue
            if (name := one.forbid_one_of(facts)) is not None:
                _forbid(schema["oneOf"], index, name)
            elif (name := facts.forbid_one_of(one)) is not None:
                _forbid(schema["oneOf"], number, name)
            else:
                problem = (
                    f": both {index} and {number} may hold; use `anyOf`, or give each branch another type, or a "
                    "required property with another `const`, or a name that it requires and the others forbid"
                )
                break
        branches.append(facts)
        if problem is not None or steps > left:
            problem = problem or "has too many branches to compare; use `anyOf`"
            break
    if problem is not None:
        message = f"`oneOf` at {place}{problem if problem.startswith(':') else f' {problem}'}"
        refuse(schema, "oneOf", schema["oneOf"], NotKeptError(message))
    return steps


def _forbid(branches: list[Any], index: int, name: str) -> None:
    """Let no value of a branch have the property `name`."""
    match branches[index]:
        case {"allOf": [_, {"properties": dict() as names, **others}], **more} if not others and not more:
            names[name] = False
        case branch:
            branches[index] = {"allOf": [branch, {"properties": {name: False}}]}

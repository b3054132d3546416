"""`check_schema`: finds what the grammar library accepts, but keeps wrongly or at too high a cost.

It is called with a schema whose keywords are known and whose values are well-formed (`prepare_schema`), and holds
together with the options of `spelling` only. Every rule was found by a text that `llguidance` 1.9.1 generates against a
schema.
"""

import math
from fractions import Fraction
from typing import Any

from infer_engine.structured.errors import NotKeptError
from infer_engine.structured.json_schema.patterns import check_pattern
from infer_engine.structured.json_schema.places import places_of, target_of
from infer_engine.structured.json_schema.widening import Refuse, exactly

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

_NUMBERS = frozenset({"integer", "fraction"})
_TYPES_OF = {bool: frozenset({"boolean"}), str: frozenset({"string"}), type(None): frozenset({"null"})}
_TYPES = frozenset({"array", "object"}).union(_NUMBERS, *_TYPES_OF.values())
_SEPARATE = (
    "use `anyOf`, or give each branch another type, or a required property with another `const`, or a name that it "
    "requires and the others forbid"
)
_Constants = frozenset[Any] | None
_IN_PLACE = ("allOf", "anyOf", "oneOf")


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
        problem = f"`minProperties` at {place} is kept for up to {MAX_ONE_OF_MANY} properties; leave it out"
        refuse(schema, "minProperties", schema["minProperties"], NotKeptError(problem))


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


class _Values:
    """Facts that hold for all values of a schema: their types and constants, and the constants of their properties.

    Constants are None where any value may stand, and empty where none may.
    """

    def __init__(self, schema: Any, root: Any) -> None:
        self.types = _TYPES
        self.constants: _Constants = None
        self.properties: dict[str, _Constants] = {}
        self.required: set[str] = set()
        self.size = 0
        self._names: frozenset[str] | None = None  # that an object may have
        left = [schema]
        for _ in range(MAX_HOPS):
            each = left.pop() if left else True
            if isinstance(each, dict):
                self._add(each)
                left.extend(each.get("allOf", [])[:MAX_HOPS])
                left.extend([target_of(root, each["$ref"])] if "$ref" in each else [])
            elif not each:
                self.types = frozenset()

    def _add(self, schema: dict[str, Any]) -> None:
        listed = schema.get("properties", {})
        if "type" in schema:
            names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            self.types &= frozenset(["integer", "fraction"] if "number" in names else []) | frozenset(names)
        if (constants := _constants(schema)) is not None:
            self.types &= frozenset().union(*(_TYPES_OF.get(type(value), _NUMBERS) for _, value in constants))
        self.constants = _both(self.constants, constants)
        self.required |= set(schema.get("required", []))
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            self._names = _both(self._names, frozenset(listed))
        for name, inner in listed.items():
            self.properties[name] = _both(self.properties.get(name), _constants(inner))
        self.size += len(schema.get("required", [])) + len(listed) + len(constants or ())

    def excludes(self, other: "_Values") -> bool:
        """Return whether no value is of both."""
        common = self.types & other.types
        if not common or _both(self.constants, other.constants) == frozenset():
            return True
        required = self.required | other.required
        return common == {"object"} and any(_both(self.of(name), other.of(name)) == frozenset() for name in required)

    def of(self, name: str) -> _Constants:
        """Return the constants of a property."""
        is_forbidden = self._names is not None and name not in self._names
        return frozenset() if is_forbidden else self.properties.get(name)

    def forbid_one_of(self, other: "_Values") -> str | None:
        """Return a name that `other` requires and these objects do not list, which they may not have from here on."""
        free = sorted(other.required - self.properties.keys())
        if self.types & other.types != {"object"} or not free:
            return None
        self.properties[free[0]] = frozenset()
        return free[0]


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return other if one is None else one if other is None else one & other


def _constants(schema: Any) -> _Constants:
    if not isinstance(schema, dict):
        return None if schema else frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None or any(isinstance(value, dict | list) for value in values):
        return None
    return frozenset((isinstance(value, bool), value) for value in values)


def _check_one_of(schema: dict[str, Any], place: str, root: Any, left: int, refuse: Refuse) -> int:
    """Refuse branches of which two may hold; return how many steps were taken of those `left`.

    An object that requires a name of its own, as utoipa writes a variant, loses the names of the others: with two of
    them it would match two branches.
    """
    branches: list[_Values] = []
    steps = 0
    for number, branch in enumerate(schema["oneOf"]):
        branches.append(_Values(branch, root))
        steps += branches[-1].size
        for index in range(number):
            steps += 1 + len(branches[index].properties) + len(branches[index].required)
            if steps <= left and _are_separate(schema["oneOf"], branches, index, number):
                continue
            problem = f": both {index} and {number} may hold; {_SEPARATE}"
            if steps > left:
                problem = " has too many branches to compare; use `anyOf`"
            refuse(schema, "oneOf", schema["oneOf"], NotKeptError(f"`oneOf` at {place}{problem}"))
            return steps
    return steps


def _are_separate(schemas: list[Any], branches: list[_Values], index: int, number: int) -> bool:
    """Return whether no value is of both branches, of which one may lose a name for it."""
    if branches[index].excludes(branches[number]):
        return True
    for one, other in ((index, number), (number, index)):
        if (name := branches[one].forbid_one_of(branches[other])) is not None:
            _forbid(schemas, one, name)
            return True
    return False


def _forbid(branches: list[Any], index: int, name: str) -> None:
    """Let no value of a branch have the property `name`."""
    match branches[index]:
        case {"allOf": [_, {"properties": dict() as names, **others}], **more} if not others and not more:
            names[name] = False
        case branch:
            branches[index] = {"allOf": [branch, {"properties": {name: False}}]}

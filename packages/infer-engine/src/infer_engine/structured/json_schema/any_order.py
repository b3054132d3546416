"""A grammar of JSON in which the members of objects come in any order.

    has_a:  a                                      of an object with the properties `a` and `b`
    has_b:  b
    has_ab: has_a "," b | has_b "," a

Of objects with few properties, or with few required ones, every set of those that have come has a rule, so that none of
them is missing in the end and none comes twice. With more, the grammar does not count.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from infer_engine.structured.grammar_text import escaped, json_expression

MAX_COUNTED = 4
"""Most required properties of an object whose order is free; there are 2 to this power of rules."""
WHITESPACE = r"[ \t\r\n]{0,40}"
"""Between the tokens of arguments: models write them on one line, or indented."""

_CHARACTER = r"[^\"\\\x00-\x1f]"
_HEX = "[0-9a-fA-F]"
_TWO_CODES = rf"[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
_CODE = rf"u([0-9a-ce-fA-CE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|{_TWO_CODES})"
_CODE_WITHOUT_ANOTHER_SPELLING = r"u00(0[0-7bef]|1[0-9a-f])"
_ANY_NAME = rf"({_CHARACTER}|\\([\"\\bfnrt]|{_CODE_WITHOUT_ANOTHER_SPELLING}))*"
"""Names are compared as they are written, so each has one spelling."""

RULES = rf"""
WS: /{WHITESPACE}/
ws: WS
JSON_TEXT: /"({_CHARACTER}|\\([\"\\\/bfnrt]|{_CODE}))*"/
"""
"""What all rules made here need."""

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$defs", "definitions", "$schema"}
)
_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_ARRAY = frozenset({"type", "items", "minItems", "maxItems"})
_REFERENCE = re.compile(r'"\$ref": "([^"]*)"')


class AnyOrder:
    """Makes the rules of one schema that the grammar library keeps.

    Objects of named properties, arrays of one kind of items, alternatives and references to definitions get rules of
    their own; any other part is the library's, which fixes the order in objects that it names properties of.

    Attributes:
        rules: made so far.
    """

    def __init__(self) -> None:
        """Begin with no rule."""
        self.rules: list[str] = []
        self._num_names = 0
        self._definitions: dict[str, Any] = {}
        self._places: dict[str, Any] = {}
        self._made: dict[str, str] = {}  # rules by their schema; many are equal, in one tool and in several

    def whole(self, schema: Mapping[str, Any]) -> str:
        """Return what generates a whole schema, which may have definitions."""
        return self.part(schema, schema)

    def part(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        """Return what generates a part of the schema `root`, which may have definitions."""
        self._places = {place: root[place] for place in ("$defs", "definitions") if place in root}
        self._definitions = {
            f"#/{place}/{name}": each for place, named in self._places.items() for name, each in named.items()
        }
        references = _REFERENCE.findall(json.dumps(root))
        if not self._definitions.keys() >= set(references):  # to other places than definitions: only the whole has them
            return json_expression(dict(schema) if schema is root else {}, WHITESPACE)
        return self._rule(schema)

    def _rule(self, schema: Any) -> str:
        """Return the name of the rule of `schema`."""
        own = schema
        if isinstance(schema, dict):
            own = {word: value for word, value in schema.items() if word not in _ANNOTATIONS}
        key = json.dumps(own)
        if '"$ref"' in key:
            key += json.dumps(self._places)
        if key not in self._made:
            self._made[key] = name = self.new_name()
            self.rules.append(f"{name}: {self._make(own)}")
        return self._made[key]

    def new_name(self) -> str:
        """Return the name of another rule."""
        self._num_names += 1
        return f"v{self._num_names}"

    def _make(self, schema: Any) -> str:
        if not isinstance(schema, dict):
            return self._leaf(schema)
        if schema == {"type": "string"}:
            return "JSON_TEXT"
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference in self._definitions and schema.keys() == {"$ref"}:
            return self._rule(self._definitions[reference])
        for word in ("anyOf", "oneOf"):
            if schema.get(word) and schema.keys() == {word} and _holds_objects(schema):
                return " | ".join(map(self._rule, schema[word]))
        kind = schema.get("type")
        if isinstance(kind, list) and _holds_objects(schema):
            return " | ".join(self._rule(schema | {"type": each}) for each in kind)
        if kind == "object" and isinstance(schema.get("properties"), dict) and schema.keys() <= _OBJECT:
            return self._object(schema)
        if kind == "array" and "items" in schema and schema.keys() <= _ARRAY and _holds_objects(schema["items"]):
            return self._array(schema)
        return self._leaf(schema)

    def _leaf(self, schema: Any) -> str:
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        needs_definitions = '"$ref"' in json.dumps(schema)
        return json_expression(schema | self._places if needs_definitions else schema, WHITESPACE)

    def _array(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        item = self._rule(schema["items"])
        if most == 0:
            return '"[" ws "]"'
        more = f'(ws "," ws {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" ws {item} {more} ws "]"' + (' | "[" ws "]"' if least == 0 else "")

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties = {name: value for name, value in schema["properties"].items() if value is not False}
        required = [name for name in schema.get("required", ()) if name in properties]
        members = {name: self._member(name, value) for name, value in properties.items()}
        counted = counted_of(list(properties), required)
        others = [member for name, member in members.items() if name not in counted]
        if schema.get("additionalProperties", True) is not False:
            others.append(self._other_member(properties, schema.get("additionalProperties", True)))
        must = [name for name in required if name in counted]
        sets = self.sets(counted, members, others)
        whole = [sets[each] for each in sets if set(must) <= set(each)]
        bodies = [f'"{{" ws {each} ws "}}"' for each in whole]
        return " | ".join([*bodies, *([] if must else ['"{" ws "}"'])])

    def sets(
        self, counted: Sequence[str], members: Mapping[str, str], others: Iterable[str], between: str = 'ws "," ws'
    ) -> dict[tuple[str, ...], str]:
        """Return the rules of at least one member, with `between` between two, by those of `counted` that they have."""
        other = f"({' | '.join(others)})" if others else None
        sets = (chosen for size in range(len(counted) + 1) for chosen in combinations(counted, size))
        names = {chosen: self.new_name() for chosen in sets if chosen or other}
        for chosen, rule in names.items():
            ways = []
            for name in chosen:
                rest = tuple(each for each in chosen if each != name)
                if not rest:
                    ways.append(members[name])
                if rest in names:
                    ways.append(f"{names[rest]} {between} {members[name]}")
            if other:
                ways += [f"{rule} {between} {other}"] + ([] if chosen else [other])
            self.rules.append(f"{rule}: {' | '.join(ways)}")
        return names

    def _member(self, name: str, schema: Any) -> str:
        spelled = {json.dumps(name, ensure_ascii=False), json.dumps(name)}
        keys = " | ".join(json.dumps(each, ensure_ascii=False) for each in sorted(spelled))
        return f'({keys}) ws ":" ws {self._rule(schema)}'

    def _other_member(self, properties: Iterable[str], schema: Any) -> str:
        """Return a member of any name but those of `properties`."""
        name = self.new_name().upper()
        listed = "|".join(escaped(json.dumps(each, ensure_ascii=False)[1:-1]) for each in properties)
        self.rules.append(f'{name}: /"{_ANY_NAME}"/' + (f' & ~/"({listed})"/' if listed else ""))
        return f'{name} ws ":" ws {self._rule(schema)}'


def counted_of(names: Sequence[str], required: Sequence[str]) -> Sequence[str]:
    """Return those of an object's properties that its grammar counts."""
    return next((each for each in (names, required) if len(each) <= MAX_COUNTED), ())


def _holds_objects(schema: Any) -> bool:
    """Whether there may be an object in what `schema` allows whose order a grammar would fix."""
    text = json.dumps(schema)
    return '"properties"' in text or '"$ref"' in text

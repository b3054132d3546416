"""The grammar of arguments that are literals of another language than JSON.

    start:    NAME name_end VALUE separator NAME name_end VALUE end | end

Members come in any order, or in that of the schema where it is strict. Numbers are JSON's, so the library keeps what a
schema says of them; of lists and objects, lengths, items and members are kept.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from infer_engine.chat.arguments.literal_texts import QuotedTexts, RawTexts, bare_name_but
from infer_engine.chat.arguments.marks import MarkGrammar
from infer_engine.chat.arguments.parameter_types import TEXT, resolved, type_of, types_of
from infer_engine.structured.grammar_text import json_expression, quoted
from infer_engine.structured.json_schema.any_order import AnyOrder, counted_of
from infer_models.text import LiteralFormat

_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "$schema"))
_OF_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_KEPT = _OF_NUMBERS | {
    *("type", "enum", "const", "anyOf", "oneOf", "$ref", "$defs", "definitions"),
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("pattern", "minLength", "maxLength", "format"),
}
_COMMA = '"," GAP'


class LiteralGrammar:
    """Makes the expressions of the arguments of several tools, whose rules are among those of `members`."""

    def __init__(self, literal_format: LiteralFormat, marks: MarkGrammar, members: AnyOrder) -> None:
        """Make them for a format and a vocabulary."""
        self._format = literal_format
        self._members = members
        self._texts = RawTexts(literal_format, marks, members) if literal_format.quote else QuotedTexts(members)
        self._made: dict[str, str] = {}
        self._root: Mapping[str, Any] = {}
        self._is_strict = False

    def arguments(self, name: str, schema: Mapping[str, Any], *, strict: bool) -> str:
        """Return the expression of the arguments of the tool `name`, with the end of them behind.

        Those of a strict tool come in the order of its schema.

        Raises:
            ValueError: a schema of a strict tool that cannot be kept.
        """
        self._root, self._is_strict = schema, strict
        try:
            self._check(schema)
            bodies = self._bodies(resolved(schema, schema), is_outermost=True)
        except ValueError as error:
            raise ValueError(f"`tools`: the parameters of `{name}` cannot be kept: {error}") from None
        end = quoted(self._format.end)
        return f"GAP ({' | '.join(f'{body} GAP {end}' if body else end for body in bodies)})"

    def _value(self, schema: Any) -> str:
        """Return the rule of a value."""
        if isinstance(schema, dict):
            schema = {word: each for word, each in schema.items() if word not in _ANNOTATIONS}
        key = f"{self._is_strict} {json.dumps(schema)}"
        if '"$ref"' in key:
            key += json.dumps([self._root.get(place) for place in ("$defs", "definitions")])
        if key not in self._made:
            self._made[key] = name = self._members.new_name()
            self._members.rules.append(f"{name}: {' | '.join(self._ways(schema) or self._ways_of_none())}")
        return self._made[key]

    def _ways_of_none(self) -> list[str]:
        """Return the ways to write a value where a schema allows none."""
        if self._is_strict:
            raise ValueError("no value matches one of their parts.")
        return self._ways({})

    def _ways(self, schema: Any) -> list[str]:
        """Return the ways to write a value that matches `schema`, in expressions."""
        if not isinstance(schema, dict):
            return [] if schema is False else self._ways({})
        if "$ref" in schema:
            found = resolved(schema, self._root)
            return [self._value({} if "$ref" in found else found)]
        self._check(schema)
        types = types_of(schema, self._root)
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                self._check(schema, kept=frozenset((word, "type", "$defs", "definitions")))
                return [self._value(each) for each in schema[word] if types_of(each, self._root) & types]
        if "const" in schema or isinstance(schema.get("enum"), list):
            listed = [schema["const"]] if "const" in schema else schema["enum"]
            return [self._constant(value) for value in listed if type_of(value) in types]
        ways = self._texts.ways(schema, strict=self._is_strict) if TEXT in types else []
        if "number" in types:
            ways.append(self._number(schema))
        if "boolean" in types:
            ways += [quoted(self._format.true), quoted(self._format.false)]
        if "null" in types:
            ways.append(quoted(self._format.null))
        if "array" in types:
            ways += self._array(schema)
        if "object" in types:
            ways += [f'"{{" GAP {body} GAP "}}"' if body else '"{" GAP "}"' for body in self._bodies(schema)]
        return ways

    def _check(self, schema: Mapping[str, Any], kept: frozenset[str] = _KEPT) -> None:
        """Refuse what is not kept of the schema of a strict tool."""
        if self._is_strict and (unknown := schema.keys() - kept - _ANNOTATIONS):
            raise ValueError(f"`{min(unknown)}` is not kept in calls whose arguments are not written as JSON.")

    def _constant(self, value: Any) -> str:
        """Return the expression of a value that the schema lists."""
        match value:
            case str():
                return self._texts.one(value)
            case bool() | None:
                return quoted(self._format.write_constant(value))
            case int() | float():
                return quoted(json.dumps(value))
            case list():
                return f'"[" {f" {_COMMA} ".join(map(self._constant, value))} "]"'
            case _:
                members = [f'{self._texts.name(name)} ":" GAP {self._constant(each)}' for name, each in value.items()]
                return f'"{{" {f" {_COMMA} ".join(members)} "}}"'

    def _number(self, schema: Mapping[str, Any]) -> str:
        named = schema.get("type", "number")
        kinds = [named] if isinstance(named, str) else named
        kind = "integer" if "integer" in kinds and "number" not in kinds else "number"
        bounds = {word: schema[word] for word in _OF_NUMBERS & schema.keys()}
        return json_expression({"type": kind, **bounds}, "")

    def _array(self, schema: Mapping[str, Any]) -> list[str]:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        items = True if "prefixItems" in schema else schema.get("items", True)
        empty = ['"[" GAP "]"'] if least == 0 else []
        if most == 0 or items is False:
            return empty
        more = f"({_COMMA} {self._value(items)}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        return [f'"[" GAP {self._value(items)} {more} GAP "]"', *empty]

    def _bodies(self, schema: Mapping[str, Any], *, is_outermost: bool = False) -> list[str]:
        """Return the ways to write the members of an object; an empty one where it may have none."""
        properties = {
            name: value for name, value in schema.get("properties", {}).items() if types_of(value, self._root)
        }
        required = [name for name in schema.get("required", ()) if name in properties]
        members = {
            name: f"{self._key(name, is_outermost=is_outermost)} {self._value(value)}"
            for name, value in properties.items()
        }
        other = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        others = [] if other is False else [self._other(properties, other, is_outermost=is_outermost)]
        if self._is_strict:
            return self._in_order(required, members, others)
        counted = counted_of(list(properties), required)
        uncounted = [member for name, member in members.items() if name not in counted]
        sets = self._members.sets(counted, members, [*uncounted, *others], between=_COMMA)
        must = {name for name in required if name in counted}
        return [rule for chosen, rule in sets.items() if must <= set(chosen)] + ([] if must else [""])

    def _in_order(self, required: Sequence[str], members: Mapping[str, str], others: Sequence[str]) -> list[str]:
        """Return the ways to write members in the order of the schema."""
        rest = [f"{others[0]} ({_COMMA} {others[0]})*", ""] if others else [""]
        for name in reversed(list(members)):
            ways = [f"{members[name]} {_COMMA} {body}" if body else members[name] for body in rest]
            rule = self._members.new_name()
            self._members.rules.append(f"{rule}: {' | '.join(ways)}")
            rest = [rule] if name in required else [rule, *rest]
        return rest

    def _key(self, name: str, *, is_outermost: bool) -> str:
        """Return the expression of a name and what comes between it and a value."""
        if not is_outermost:
            return f'{self._texts.name(name)} ":" GAP'
        is_bare = self._format.write_name(name) == name
        return f"{quoted(name) if is_bare else self._texts.one(name)} {quoted(self._format.name_end)}"

    def _other(self, properties: Mapping[str, Any], schema: Any, *, is_outermost: bool) -> str:
        """Return a member of any name but those of `properties`."""
        if is_outermost:
            key = f"{bare_name_but(properties, self._members)} {quoted(self._format.name_end)}"
        else:
            key = f'{self._texts.name_but(properties)} ":" GAP'
        return f"{key} {self._value(schema)}"

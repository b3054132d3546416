"""The grammar of arguments that are written one by one, each with its name.

    start:    begin rest | end of the call
    rest:     NAME name_end VALUE end begin rest | NAME name_end VALUE end end-of-the-call

A text goes up to the first end behind which one of the two follows, so an expression of a value holds both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from infer_engine.chat.arguments.marks import ANY_TEXT, BLANKS, MarkGrammar
from infer_engine.chat.arguments.parameter_types import TEXT, resolved, types_of
from infer_engine.chat.arguments.text_values import OF_TEXTS, text_patterns
from infer_engine.structured.grammar_text import escaped, json_expression, quoted
from infer_engine.structured.json_schema.any_order import AnyOrder, counted_of
from infer_models.text import ParameterFormat

_OF_OBJECTS = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "$schema"))
_STRICT_WHITESPACE = "[ ]?"


class ParameterGrammar:
    """Makes the expressions of the arguments of several tools, whose rules are among those of `members`."""

    def __init__(
        self,
        parameter_format: ParameterFormat,
        arguments_end: str,
        marks: MarkGrammar,
        members: AnyOrder,
        *,
        closing: Sequence[str] = (),
    ) -> None:
        """Make them for a format and a vocabulary.

        With `closing`, those marks may follow a text whose own end is forgotten. `arguments_end` is the first of them.
        """
        self._format = parameter_format
        self._marks = marks
        self._members = members
        self._rules = members.rules
        self._more, self._last = parameter_format.begin, arguments_end
        self._closing = tuple(closing)
        self._made: dict[tuple[str, ...], str] = {}

    def arguments(self, name: str, schema: Mapping[str, Any], *, strict: bool) -> str:
        """Return the expression of the arguments of the tool `name`, with the end of the call behind them.

        Those of a strict tool come in the order of its schema.

        Raises:
            ValueError: a schema of a strict tool that cannot be kept.
        """
        try:
            return self._arguments(schema, strict=strict)
        except ValueError as error:
            raise ValueError(f"`tools`: the parameters of `{name}` cannot be kept: {error}") from None

    def _arguments(self, root: Mapping[str, Any], *, strict: bool) -> str:
        schema = resolved(root, root)
        if strict and (unknown := schema.keys() - _OF_OBJECTS - _ANNOTATIONS):
            raise ValueError(f"`{min(unknown)}` is not kept in calls whose arguments are not written as JSON.")
        properties = {name: value for name, value in schema.get("properties", {}).items() if types_of(value, root)}
        required = [name for name in schema.get("required", ()) if name in properties]
        more = {name: self._member(name, value, root, self._more, strict=strict) for name, value in properties.items()}
        last = {name: self._member(name, value, root, self._last, strict=strict) for name, value in properties.items()}
        other = schema.get("additionalProperties", True)
        others = [
            () if other is False else (self._other(properties, other, root, follower, strict=strict),)
            for follower in (self._more, self._last)
        ]
        make = self._in_order if strict else self._in_any_order
        bodies = make(required, more, last, *others)
        begin = self._marks.mark(self._more)
        ways = [f"{begin} {body}" for body in bodies] + ([] if required else [self._marks.mark(self._last)])
        return f"GAP ({' | '.join(ways)})"

    def _in_any_order(
        self,
        required: Sequence[str],
        more: Mapping[str, str],
        last: Mapping[str, str],
        other_more: Sequence[str],
        other_last: Sequence[str],
    ) -> list[str]:
        """Return the ways to write at least one parameter, each once and none missing where they are counted."""
        counted = counted_of(list(more), required)
        uncounted = [name for name in more if name not in counted]
        others = [*(more[name] for name in uncounted), *other_more]
        before = self._members.sets(counted, more, others, between="")
        before_last = {tuple(chosen): f"{rule} " for chosen, rule in before.items()}
        must = {name for name in required if name in counted}
        ways: list[str] = []
        for chosen in dict.fromkeys(((), *before_last)):
            beginnings = [before_last[chosen]] if chosen in before_last else []
            if not chosen:
                beginnings.append("")
            ends = [last[name] for name in counted if name not in chosen and must <= {*chosen, name}]
            if must <= set(chosen):
                ends += [*(last[name] for name in uncounted), *other_last]
            ways += [f"{beginning}{end}" for beginning in beginnings for end in ends]
        return ways

    def _in_order(
        self,
        required: Sequence[str],
        more: Mapping[str, str],
        last: Mapping[str, str],
        other_more: Sequence[str],
        other_last: Sequence[str],
    ) -> list[str]:
        """Return the ways to write at least one parameter in the order of the schema."""
        rest: list[str] = [f"{other_more[0]}* {other_last[0]}"] if other_more else []
        may_end = True
        for name in reversed(list(more)):
            ways = [last[name]] if may_end else []
            if rest:
                rule = self._members.new_name()
                self._rules.append(f"{rule}: {' | '.join(rest)}")
                ways.append(f"{more[name]} {rule}")
                if name not in required:
                    ways.append(rule)
            rest = ways
            may_end = may_end and name not in required
        return rest

    def _member(self, name: str, schema: Any, root: Mapping[str, Any], follower: str, *, strict: bool) -> str:
        """Return the rule of a parameter of this name, and of the mark that follows it."""
        return self._rule(self._named(quoted(name), schema, root, follower, strict=strict))

    def _other(
        self, properties: Mapping[str, Any], schema: Any, root: Mapping[str, Any], follower: str, *, strict: bool
    ) -> str:
        """Return the rule of a parameter of any name but those of `properties`."""
        name = self._members.new_name().upper()
        listed = "|".join(map(escaped, properties))
        self._rules.append(rf'{name}: /[^<>="\s]{{1,64}}/' + (f" & ~/({listed})/" if listed else ""))
        return self._rule(self._named(name, schema, root, follower, strict=strict))

    def _rule(self, expression: str) -> str:
        name = self._members.new_name()
        self._rules.append(f"{name}: {expression}")
        return name

    def _named(self, name: str, schema: Any, root: Mapping[str, Any], follower: str, *, strict: bool) -> str:
        patterns = text_patterns(schema, root, strict=strict)
        others: list[str] = []
        if types_of(schema, root) - {TEXT} and (self._format.json_name_end or ANY_TEXT not in patterns):
            value = self._json(_without_texts(schema, root), root, strict=strict)
            others = [f"{value} GAP {self._marks.mark(self._format.end)} GAP {self._marks.mark(follower)}"]
        ways = []
        if self._format.json_name_end and others:
            ways.append(f"{name} {self._marks.mark(self._format.json_name_end)} GAP {others.pop()}")
        if patterns:
            ways.append(f"{name} {self._marks.mark(self._format.name_end)} {self._texts(patterns, others, follower)}")
        elif others:
            ways.append(f"{name} {self._marks.mark(self._format.name_end)} GAP {others[0]}")
        return " | ".join(ways)

    def _texts(self, patterns: Sequence[str], others: Sequence[str], follower: str) -> str:
        """Return the expression of a text that matches one of `patterns`, or of `others`, and what follows.

        Of texts on lines of their own, both ends have a line break, or neither has.
        """
        end = escaped(self._format.end)
        if ANY_TEXT in patterns:
            other = escaped(self._last if follower == self._more else self._more)
            text = self._text(ANY_TEXT, (self._format.end, follower), rf"(.|\n)*{end}{BLANKS}{other}(.|\n)*")
            may_forget = self._closing and follower == self._last
            return f"({text} | {self._text(ANY_TEXT, self._closing)})" if may_forget else text
        pattern = f"({'|'.join(patterns)})"
        once = rf"(.|\n)*{end}(.|\n)*{end}(.|\n)*"
        marks = (self._format.end, follower)
        if not self._format.own_lines:
            return f"({' | '.join([self._text(pattern, marks, once), *others])})"
        own_line = " | ".join([self._text(rf"{pattern}\n", marks, once), *others])
        same_line = self._text(pattern, marks, once, r"\n(.|\n)*", rf"(.|\n)*\n{end}(.|\n)*")
        return f'("\\n" ({own_line}) | {" | ".join([same_line, *others])})'

    def _text(self, pattern: str, marks: Sequence[str], *but_not: str) -> str:
        key = (pattern, *marks, *but_not)
        if key not in self._made:
            name = self._members.new_name()
            self._made[key] = self._marks.after_text(pattern, marks, name, self._rules, but_not)
        return self._made[key]

    def _json(self, schema: Any, root: Mapping[str, Any], *, strict: bool) -> str:
        if not strict:
            return self._members.part(schema, root)
        places = {place: root[place] for place in ("$defs", "definitions") if place in root}
        return json_expression({**schema, **places}, _STRICT_WHITESPACE, strict=True)


def _without_texts(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of those values that are no texts."""
    if TEXT not in types_of(schema, root):
        return schema if isinstance(schema, dict) else {}
    schema = {word: value for word, value in resolved(schema, root).items() if word not in OF_TEXTS}
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            branches = [_without_texts(each, root) for each in schema[word] if types_of(each, root) - {TEXT}]
            return {**{key: value for key, value in schema.items() if key != word}, word: branches}
    if isinstance(schema.get("enum"), list):
        return {**schema, "enum": [value for value in schema["enum"] if not isinstance(value, str)]}
    kinds = schema.get("type", ["number", "boolean", "null", "object", "array"])
    named = [kind for kind in kinds if kind != TEXT]
    return {**schema, "type": named if len(named) > 1 else named[0]}

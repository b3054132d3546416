"""Texts in literals, in grammars: between marks as they are, or between quotes with backslashes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infer_engine.chat.arguments.marks import ANY_TEXT, MarkGrammar
from infer_engine.chat.arguments.text_values import pattern_of_lengths, text_patterns
from infer_engine.structured.grammar_text import escaped, quoted
from infer_engine.structured.json_schema.any_order import AnyOrder
from infer_models.text import LiteralFormat

_QUOTES = ("'", '"')
_ESCAPED = r"\\([\\'\x22abfnrtv]|x[0-9a-fA-F]{2}|u([0-9a-cA-Ce-fE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))"
"""One character that is written with a backslash."""
_ANY_ESCAPED = rf"({_ESCAPED}|\\[^xuUN0-9\r\n])"
"""The same, or a backslash that has no meaning, as in expressions for patterns; Python keeps these."""


class RawTexts:
    """Makes the expressions of texts between two marks."""

    def __init__(self, literal_format: LiteralFormat, marks: MarkGrammar, members: AnyOrder) -> None:
        """Make them for a format and a vocabulary; rules are among those of `members`."""
        self._format = literal_format
        self._quote = literal_format.quote
        self._marks = marks
        self._members = members
        self._made: dict[str, str] = {}

    def ways(self, schema: Mapping[str, Any], *, strict: bool) -> list[str]:
        """Return the ways to write a text that matches `schema`.

        Raises:
            ValueError: with `strict`, if something cannot be kept.
        """
        return [self._of(pattern) for pattern in text_patterns(schema, {}, strict=strict)]

    def one(self, text: str) -> str:
        """Return the expression of one text."""
        return self._of(escaped(text))

    def name(self, name: str) -> str:
        """Return the expression of a name in an object."""
        return quoted(name) if self._format.write_name(name) == name else self.one(name)

    def name_but(self, names: Iterable[str]) -> str:
        """Return the expression of any name in an object that is none of `names`."""
        return bare_name_but(names, self._members)

    def _of(self, pattern: str) -> str:
        if pattern not in self._made:
            end = escaped(self._quote)
            once = [] if pattern == ANY_TEXT else [rf"(.|\n)*{end}(.|\n)*{end}(.|\n)*"]
            name = self._members.new_name()
            text = self._marks.after_text(pattern, (self._quote,), name, self._members.rules, once)
            self._made[pattern] = f"{self._marks.literal(self._quote)} {text}"
        return self._made[pattern]


class QuotedTexts:
    """Makes the expressions of Python's string literals."""

    def __init__(self, members: AnyOrder) -> None:
        """Make them; rules are among those of `members`."""
        self._members = members
        self._made: dict[tuple[str, ...], str] = {}

    def ways(self, schema: Mapping[str, Any], *, strict: bool) -> list[str]:
        """Return the ways to write a text that matches `schema`.

        Raises:
            ValueError: with `strict`, if something cannot be kept.
        """
        [pattern] = text_patterns(schema, {}, strict=strict)
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if pattern == ANY_TEXT:
            return [self._rule([rf"{q}([^{_hex(q)}\\]|{_ANY_ESCAPED})*{q}" for q in _QUOTES])]
        if pattern == pattern_of_lengths(schema):
            times = f"{{{least},{'' if most is None else most}}}"
            return [self._rule([rf"{q}([^{_hex(q)}\\]|{_ESCAPED}){times}{q}" for q in _QUOTES])]
        return [self._rule([rf"{q}({pattern}){q}"], rf"{q}[^{_hex(q)}\\]*{q}") for q in _QUOTES]

    def one(self, text: str) -> str:
        """Return the expression of one text, in both quotes."""
        return self._rule([_literal(text, quote) for quote in _QUOTES])

    def name(self, name: str) -> str:
        """Return the expression of a name in an object."""
        return self.one(name)

    def name_but(self, names: Iterable[str]) -> str:
        """Return the expression of any name in an object that is none of `names`."""
        listed = "|".join(_literal(text, quote) for text in names for quote in _QUOTES)
        return self._rule([rf"{q}[^{_hex(q)}\\\n]*{q}" for q in _QUOTES], but_not=listed)

    def _rule(self, patterns: Sequence[str], also: str = "", but_not: str = "") -> str:
        key = (*patterns, also, but_not)
        if key not in self._made:
            self._made[key] = name = self._members.new_name().upper()
            rule = f"{name}: /({'|'.join(patterns)})/"
            self._members.rules.append(
                rule + (f" & /{also}/" if also else "") + (f" & ~/({but_not})/" if but_not else "")
            )
        return self._made[key]


def bare_name_but(names: Iterable[str], members: AnyOrder) -> str:
    """Return the expression of any name without quotes but `names`; its rule is among those of `members`."""
    rule, listed = members.new_name().upper(), "|".join(map(escaped, names))
    members.rules.append(rf"{rule}: /[a-zA-Z0-9_.$\-]{{1,64}}/" + (f" & ~/({listed})/" if listed else ""))
    return rule


def _literal(text: str, quote: str) -> str:
    """Return the pattern of a string literal."""
    written = text.replace("\\", "\\\\").replace(quote, f"\\{quote}").replace("\n", "\\n").replace("\r", "\\r")
    return f"{quote}{escaped(written)}{quote}"


def _hex(quote: str) -> str:
    return f"\\x{ord(quote):02x}"

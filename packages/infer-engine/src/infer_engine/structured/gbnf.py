r"""Reads GBNF, the grammars of llama.cpp, and writes them for the grammar library; compiles nothing.

    root ::= "a" [b-z]{2,3} rest?   # a comment
    rest ::= "(" root ")"

A GBNF grammar has no lexer: `[a-z]*` may leave letters to what follows. A grammar whose rules do not lead back to
themselves becomes one regular expression; of any other one each character is a token of the library's lexer.
"""

import re
from dataclasses import dataclass

MAX_NESTING = 100
MAX_ROUNDS = 64
"""Most rounds of the search for rules that end; a grammar that takes more is left to the library."""
MAX_EXPRESSION = 20_000
"""Characters of a regular expression in which every rule is written out."""

_LARK = re.compile(r"^\s*(?:%\w|start\s*:(?!:))", re.MULTILINE)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_SETS = {"d": "0-9", "w": "A-Za-z0-9_", "s": r" \t\r\n"}
_ANY = r"[\s\S]"


@dataclass(frozen=True, slots=True)
class _Character:
    expression: str  # a regular one


@dataclass(frozen=True, slots=True)
class _Reference:
    name: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    items: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Choice:
    items: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Repetition:
    item: "_Node"
    least: int
    most: int | None

    @property
    def sign(self) -> str:
        """The repetitions, in both notations."""
        return f"{{{self.least},{'' if self.most is None else self.most}}}"


_Node = _Character | _Reference | _Sequence | _Choice | _Repetition


def is_gbnf(grammar: str) -> bool:
    """Return whether `grammar` is to be read as GBNF; else it is Lark."""
    return _LARK.search(grammar) is None


def gbnf_to_lark(grammar: str) -> str:
    """Return the rules of the same language for the grammar library; they begin at `start`.

    Raises:
        ValueError: it is not GBNF, has no rule `root`, or generates no finite text; the message says where.
    """
    rules = _Parser(grammar).rules()
    if "root" not in rules:
        raise ValueError("there is no rule `root`, with which a text begins")
    order = _reachable(rules)
    _check_ends(rules, order)
    try:
        expression = _expression(_Reference("root"), rules, {})
    except (_NoExpressionError, RecursionError):
        names = {name: f"rule_{index}" for index, name in enumerate(order)} | {"root": "start"}
        return "\n".join(f"{names[name]}: {_rule(rules[name], names)}" for name in order)
    return f"start: /{expression}/" if expression else 'start: ""'


def _reachable(rules: dict[str, _Node]) -> list[str]:
    """Return the names of the rules that `root` leads to, itself first."""
    found, left = {"root": None}, ["root"]
    while left:
        name = left.pop()
        for inner in _references(rules[name]):
            if inner not in rules:
                raise ValueError(f"the rule `{name}` names `{inner}`, which is no rule")
            if inner not in found:
                found[inner] = None
                left.append(inner)
    return list(found)


def _references(node: _Node) -> list[str]:
    match node:
        case _Reference(name):
            return [name]
        case _Sequence(items) | _Choice(items):
            return [name for item in items for name in _references(item)]
        case _Repetition(item):
            return _references(item)
        case _:
            return []


def _check_ends(rules: dict[str, _Node], order: list[str]) -> None:
    finite: set[str] = set()

    def ends(node: _Node) -> bool:
        match node:
            case _Reference(name):
                return name in finite
            case _Sequence(items):
                return all(ends(item) for item in items)
            case _Choice(items):
                return any(ends(item) for item in items)
            case _Repetition(item, least):
                return least == 0 or ends(item)
            case _:
                return True

    left = order
    for _ in range(MAX_ROUNDS):
        before = len(finite)
        for name in reversed(left):
            if ends(rules[name]):
                finite.add(name)
        left = [name for name in left if name not in finite]
        if len(finite) == before:
            break
    else:
        return
    if "root" not in finite:
        endless = next(name for name in order if name not in finite)
        raise ValueError(f"the rule `{endless}` leads back to itself in every case, so that no text ends")


class _NoExpressionError(Exception):
    """The rules lead back to themselves, or are too long when they are written out."""


def _expression(node: _Node, rules: dict[str, _Node], written: dict[str, str | None]) -> str:
    """Return the regular expression of `node`; `written` has those of rules, None while one is being written."""
    match node:
        case _Character(expression):
            return expression
        case _Reference(name):
            if name not in written:
                written[name] = None
                written[name] = _expression(rules[name], rules, written)
            if (text := written[name]) is None:
                raise _NoExpressionError
            return text
        case _Sequence(items):
            text = "".join(_expression(item, rules, written) for item in items)
        case _Choice(items):
            text = f"(?:{'|'.join(_expression(item, rules, written) for item in items)})"
        case _Repetition(item):
            text = f"(?:{_expression(item, rules, written)}){node.sign}"
    if len(text) > MAX_EXPRESSION:
        raise _NoExpressionError
    return text


def _rule(node: _Node, names: dict[str, str]) -> str:
    """Return `node` as an expression of rules."""
    match node:
        case _Character(expression):
            return f"/{expression}/"
        case _Reference(name):
            return names[name]
        case _Sequence(items):
            return " ".join(_rule(item, names) for item in items) or '""'
        case _Choice(items):
            return f"({' | '.join(_rule(item, names) for item in items)})"
        case _Repetition(item):
            return f"({_rule(item, names)}){node.sign}"


class _Parser:
    """Reads a grammar from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._nesting = 0

    def rules(self) -> dict[str, _Node]:
        """Return the rules by name; of two with one name the last one counts, as in llama.cpp."""
        rules: dict[str, _Node] = {}
        self._skip(lines=True)
        while self._position < len(self._text):
            name = self._match(r"[\w-]+")
            if name is None:
                raise self._error("is not the name of a rule")
            self._skip(lines=False)
            if self._match(r"::=") is None:
                raise self._error(f"stands where the `::=` of the rule `{name}` is to be")
            self._skip(lines=True)
            rules[name] = self._choice()
            if self._position < len(self._text) and self._text[self._position] not in "\r\n":
                raise self._error(f"is not expected in the rule `{name}`")
            self._skip(lines=True)
        return rules

    def _choice(self) -> _Node:
        items = [self._sequence()]
        while self._match(r"(?:\s|#[^\r\n]*)*\|") is not None:
            self._skip(lines=True)
            items.append(self._sequence())
        return items[0] if len(items) == 1 else _Choice(tuple(items))

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        while (item := self._item()) is not None:
            self._skip(lines=self._nesting > 0)
            while (most := self._match(r"[*+?]|\{\s*\d{1,6}\s*(?:,\s*(?:\d{1,6})?\s*)?\}")) is not None:
                item = _repeated(item, most)
                self._skip(lines=self._nesting > 0)
            items.append(item)
        return items[0] if len(items) == 1 else _Sequence(tuple(items))

    def _item(self) -> _Node | None:
        if self._match('"') is not None:
            return self._literal()
        if self._match(r"\[") is not None:
            return self._class()
        if self._match(r"\.") is not None:
            return _Character(_ANY)
        if self._match(r"\(") is not None:
            return self._group()
        if self._match(r"(?=!?<)") is not None:
            raise self._error("asks for a token by its name or number, which is not supported; write its text")
        name = self._match(r"[\w-]+(?!\s*::=)(?![\w-])")
        return None if name is None else _Reference(name)

    def _group(self) -> _Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise self._error(f"is the {self._nesting}th `(` inside another; make it flatter")
        self._skip(lines=True)
        inner = self._choice()
        self._skip(lines=True)
        if self._match(r"\)") is None:
            raise self._error("stands where `)` is to be")
        self._nesting -= 1
        return inner if isinstance(inner, _Choice | _Character | _Reference) else _Choice((inner,))

    def _literal(self) -> _Node:
        characters = []
        while self._match('"') is None:
            characters.append(_Character(_escaped(self._character())))
        return _Sequence(tuple(characters))

    def _class(self) -> _Node:
        negation = self._match(r"\^") or ""
        parts: list[str] = []
        while self._match(r"\]") is None:
            if (kind := self._match(r"\\[dws]")) is not None:
                parts.append(_SETS[kind[1]])
                continue
            first = self._character()
            last = self._character() if self._match(r"-(?!\])") is not None else first
            if last < first:
                raise self._error(f"ends a range from {first!r} to {last!r}, which has no characters")
            parts.append(_escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}")
        if not parts:
            return _Character(_ANY) if negation else _Choice(())
        return _Character(f"[{negation}{''.join(parts)}]")

    def _character(self) -> str:
        """Return the next character of a text or a class, which may be escaped."""
        if (plain := self._match(r"[^\\]")) is not None:
            return plain
        if (code := self._match(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})")) is not None:
            number = int(code[2:], base=16)  # noqa: FURB166 - `\\u` is no prefix of Python's
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                raise self._error(f"follows `{code}`, which is no character")
            return chr(number)
        if (escape := self._match(r"\\[nrt]")) is not None:
            return _NAMED[escape[1]]
        if (escape := self._match(r"\\[^\w\s]")) is not None:
            return escape[1]
        raise self._error("is no character, and no escape of GBNF")

    def _skip(self, *, lines: bool) -> None:
        self._match(r"(?:\s|#[^\r\n]*)*" if lines else r"(?:[ \t]|#[^\r\n]*)*")

    def _match(self, pattern: str) -> str | None:
        found = re.compile(pattern).match(self._text, self._position)
        if found is None:
            return None
        self._position = found.end()
        return found[0]

    def _error(self, problem: str) -> ValueError:
        line = self._text.count("\n", 0, self._position) + 1
        rest = self._text[self._position : self._position + 20]
        return ValueError(f"line {line}: {rest!r} {problem}" if rest else f"line {line}: the end {problem}")


def _repeated(item: _Node, sign: str) -> _Node:
    match sign:
        case "*":
            return _Repetition(item, 0, None)
        case "+":
            return _Repetition(item, 1, None)
        case "?":
            return _Repetition(item, 0, 1)
        case _:
            least, comma, most = sign.strip("{}").partition(",")
            limit = int(most) if most.strip() else None if comma else int(least)
            if limit is not None and limit < int(least):
                raise ValueError(f"`{sign}` repeats something at least {int(least)} and at most {limit} times")
            return _Repetition(item, int(least), limit)


def _escaped(character: str) -> str:
    """Return a character of a regular expression that stands for itself, in a class too."""
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"

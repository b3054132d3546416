"""Patterns that mean the same in JSON Schema and in the grammar library, and what others can be kept as."""

import functools
import re

from infer_engine.structured.errors import NotKeptError

MAX_REPEAT = 16_000
MAX_NAMES = 100
"""Most names in a pattern that is an alternation of names."""

_PUNCTUATION = re.escape("!\"#$%&'()*+,-./:;=?@[\\]^_`{|}~")
_ESCAPE = rf"\\(?:[dDwWsSnrtfv]|x[0-9a-fA-F]{{2}}|u[0-9a-fA-F]{{4}}|[pP]\{{[A-Za-z_=]+\}}|[{_PUNCTUATION}])"
_CLASS = rf"\[\^?(?:{_ESCAPE}|[^\\\[\]])+\]"
_REPEAT = r"(?:[*+?]|\{([0-9]{1,6})(?:,([0-9]{0,6}))?\})\??"
_TOKEN = re.compile(
    rf"\((?!\?)|\(\?:|\(\?<[A-Za-z_][A-Za-z0-9_]*>|[|^$]|(?P<atom>\)|\.|{_CLASS}|{_ESCAPE}|[^\\\[(){{|^$.*+?])(?:{_REPEAT})?"
)
_CONTROLS = frozenset(map(chr, range(32)))
_WATCHED = _CONTROLS | {'"', "\\"}


def check_pattern(pattern: str, what: str) -> None:
    """Raise an error whose message begins with `what`, if `pattern` cannot be kept.

    Raises:
        NotKeptError: it has what is not supported.
        ValueError: a group in it has no beginning or no end.
    """
    missing: dict[str, set[str]] = {'"': set(), "\\": set()}  # and the control characters that may stand there
    position = depth = 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            raise NotKeptError(
                f"{what} has {pattern[position : position + 10]!r}, which is not supported; use characters, `[...]`, "
                r"`(...)`, `(?:...)`, `|`, `*`, `+`, `{n,m}`, `^` and `$` at the ends, and \d \w \s \n \t \xhh \uhhhh"
            )
        if any(int(count) > MAX_REPEAT for count in token.group(2, 3) if count):
            raise NotKeptError(f"{what} repeats something more than {MAX_REPEAT} times; leave the limit out")
        atom = token["atom"]
        depth += -1 if atom == ")" else atom is None and token[0][0] == "("
        if depth < 0:
            break
        if atom is not None and (atom[0] in "[\\" or atom < " "):
            members = _watched_members(atom, what)
            for character in missing.keys() - members:
                missing[character] |= members
        position = token.end()
    if depth:
        raise ValueError(f"{what} has a parenthesis without its other half; add that")
    for character, controls in missing.items():
        if controls | {"\n"} >= _CONTROLS:
            raise NotKeptError(
                f"{what} allows any control character but not {character}, which is not kept; add \\x00 to the class, "
                'as in [^"\\\\\\x00]'
            )


@functools.lru_cache(maxsize=256)
def _watched_members(atom: str, what: str) -> frozenset[str]:
    """Return the control characters, quotes and backslashes that `atom` stands for."""
    if any(sign in atom for sign in ("&&", "--", "~~")):
        raise NotKeptError(f"{what} has a class with `&&`, `--` or `~~`; write one of the two with a backslash")
    atom = re.sub(r"\\[pP]\{[^}]*\}", "\x80", atom).replace("||", "|")
    try:
        expression = re.compile(re.sub(r"(\\[dDwWsS])-", r"\1\\-", atom), re.ASCII)
    except re.error as error:
        raise NotKeptError(f"{what} has the class {atom[:40]!r}, which is not supported: {error}") from None
    return frozenset(filter(expression.fullmatch, _WATCHED))


def names_of_pattern(pattern: str) -> list[str]:
    """Return the names that alone match `pattern`, such as `^(one|two)$`; none if it is more than names."""
    if not (pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$")):
        return []
    body = pattern[1:-1]
    group = re.fullmatch(r"\((?:\?:)?([^()]*)\)", body)
    names = group[1].split("|") if group else [body]
    if not all(re.fullmatch(rf"(?:[\w /:@#%&,;=~!'\"<>-]|\\[{_PUNCTUATION}])+", name) for name in names):
        return []
    return [re.sub(r"\\(.)", r"\1", name) for name in names[:MAX_NAMES]] if len(names) <= MAX_NAMES else []


def repaired_pattern(pattern: object) -> str | None:
    """Return a pattern that is kept and matches all that `pattern` does, or None.

    Without look-ahead, look-behind and word boundaries it matches more. Classes lose the character NUL.
    """
    if not isinstance(pattern, str):
        return None
    pattern = _without_assertions(pattern)
    closed = re.sub(rf"{_ESCAPE}|{_CLASS}", _without_nul, pattern)
    for each in (pattern, closed):
        try:
            check_pattern(each, "")
        except ValueError:
            continue
        return each
    return None


def _without_nul(atom: re.Match[str]) -> str:
    return rf"{atom[0][:-1]}\x00]" if atom[0].startswith("[^") else atom[0]


def _without_assertions(pattern: str) -> str:
    """Return `pattern` without look-around and word boundaries, and with Python's spellings in JavaScript's."""
    kept: list[str] = []
    inside = 0  # of how many groups in a look-around, itself included
    for token in re.finditer(rf"(\(\?<?[=!])|\\([bBAZz])|\(\?P<(?=[A-Za-z_])|{_ESCAPE}|{_CLASS}|.", pattern, re.DOTALL):
        text = token[0]
        if inside:
            inside += text.startswith("(") - (text == ")")
            if not inside and pattern[token.end() : token.end() + 1] in {*"*+?{"}:
                return pattern  # what is repeated would be something else
        elif token[1]:
            inside = 1
        elif token[2]:
            kept.append({"A": "^", "Z": "$", "z": "$"}.get(token[2], ""))
        else:
            kept.append("(?<" if text == "(?P<" else text)
    return "".join(kept)

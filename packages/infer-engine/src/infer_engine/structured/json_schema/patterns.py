"""Patterns that mean the same in JSON Schema and in the grammar library, and what others can be kept as."""

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
_MEMBER = re.compile(rf"{_ESCAPE}|[^\\]", re.DOTALL)
_ALL = (1 << 128) - 1
_CONTROLS = (1 << 32) - 1
_NAMED = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_SETS = {
    "d": sum(1 << code for code in range(48, 58)),
    "w": sum(1 << code for code in range(128) if chr(code).isalnum() or chr(code) == "_"),
    "s": sum(1 << code for code in (9, 10, 11, 12, 13, 32)),
}


def check_pattern(pattern: str, what: str) -> None:
    """Raise an error whose message begins with `what`, if `pattern` cannot be kept.

    Raises:
        NotKeptError: it has what is not supported.
        ValueError: a group in it has no beginning or no end.
    """
    _check_anchors(pattern, what)
    missing = {'"': 0, "\\": 0}
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
        if atom is not None and atom not in (")", "."):
            members = _members(atom, what)
            for character in missing:
                if not members >> ord(character) & 1:
                    missing[character] |= members & _CONTROLS
        position = token.end()
    if depth:
        raise ValueError(f"{what} has a parenthesis without its other half; add that")
    for character, controls in missing.items():
        if (controls | 1 << 10) & _CONTROLS == _CONTROLS:
            raise NotKeptError(
                f"{what} allows any control character but not {character}, which is not kept; add \\x00 to the class, "
                'as in [^"\\\\\\x00]'
            )


def _check_anchors(pattern: str, what: str) -> None:
    """Refuse `^` after something, and `$` before something: they would never match, or look around."""
    tokens = [token[0] for token in re.finditer(rf"{_ESCAPE}|{_CLASS}|.", pattern, re.DOTALL)]
    mirrored = [{"(": ")", ")": "("}.get(token, token) for token in reversed(tokens)]
    for order, anchor in ((tokens, "^"), (mirrored, "$")):
        groups: list[bool] = []
        is_first = True
        for token in order:
            match token:
                case "(":
                    groups.append(is_first)
                case ")":
                    is_first = False
                    groups = groups[:-1]
                case "|":
                    is_first = groups[-1] if groups else True
                case "^" | "$" if token == anchor:
                    if not is_first:
                        raise NotKeptError(f"{what} has a `{anchor}` in the middle; put it at an end, or leave it out")
                case "?" | ":" | "^" | "$":
                    pass
                case _:
                    is_first = False


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


def _members(atom: str, what: str) -> int:
    """Return the ASCII characters that `atom` stands for, as bits."""
    if not atom.startswith("["):
        return _member(atom)[1]
    negated = atom.startswith("[^")
    body = atom[2 if negated else 1 : -1]
    if any(sign in body for sign in ("&&", "--", "~~")):
        raise NotKeptError(f"{what} has a class with `&&`, `--` or `~~`; write one of the two with a backslash")
    bits = 0
    parts = _MEMBER.findall(body)
    index = 0
    while index < len(parts):
        low, part = _member(parts[index])
        if low is not None and parts[index + 1 : index + 2] == ["-"] and index + 2 < len(parts):
            high, _ = _member(parts[index + 2])
            if high is None:
                raise NotKeptError(f"{what} has a range that ends in a class; write `\\-` for the sign itself")
            part = ((1 << min(high, 127) + 1) - 1) & ~((1 << min(low, 128)) - 1)
            index += 2
        bits |= part
        index += 1
    return _ALL & ~bits if negated else bits


def _member(text: str) -> tuple[int | None, int]:
    """Return the code of a single character, and the ASCII characters that `text` stands for, as bits."""
    if not text.startswith("\\"):
        code = ord(text)
    elif text[1] in "dDwWsS":
        bits = _SETS[text[1].lower()]
        return None, bits if text[1].islower() else _ALL & ~bits
    elif text[1] in "pP":
        return None, 0
    elif text[1] in "xu":
        code = int(text[2:], 16)  # noqa: FURB166 - `\\u` is no prefix of Python's
    else:
        code = _NAMED.get(text[1], ord(text[1]))
    return code, 1 << code if code < 128 else 0

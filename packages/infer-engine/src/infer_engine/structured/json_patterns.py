"""`check_pattern`: refuses patterns that mean one thing in JSON Schema and another in the grammar library."""

import re

MAX_REPEAT = 16_000
UNPRINTABLE = frozenset(chr(code) for code in (*range(32), 127)) - frozenset("\b\t\n\f\r")
"""Characters that JSON writes as `\\u...` only, which is not generated."""

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
    """Raise ValueError, whose message begins with `what`, if `pattern` cannot be kept."""
    missing = {'"': 0, "\\": 0}
    position = 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            raise ValueError(
                f"{what} has {pattern[position : position + 10]!r}, which is not supported; use characters, `[...]`, "
                r"`(...)`, `(?:...)`, `|`, `*`, `+`, `{n,m}`, `^` and `$` at the ends, and \d \w \s \n \t \xhh \uhhhh"
            )
        if any(int(count) > MAX_REPEAT for count in token.group(2, 3) if count):
            raise ValueError(f"{what} repeats something more than {MAX_REPEAT} times; leave the limit out")
        atom = token["atom"]
        if atom is not None and atom not in (")", "."):
            members = _members(atom, what)
            for character in missing:
                if not members >> ord(character) & 1:
                    missing[character] |= members & _CONTROLS
        position = token.end()
    for character, controls in missing.items():
        if (controls | 1 << 10) & _CONTROLS == _CONTROLS:
            raise ValueError(
                f"{what} allows any control character but not {character}, which is not kept; add \\x00-\\x1f to the "
                'class, as in [^"\\\\\\x00-\\x1f]'
            )


def _members(atom: str, what: str) -> int:
    """Return the ASCII characters that `atom` stands for, as bits."""
    if not atom.startswith("["):
        low, bits = _member(atom)
        if low is not None and chr(low) in UNPRINTABLE:
            raise ValueError(f"{what} has a control character, which is not generated; leave it out")
        return bits
    negated = atom.startswith("[^")
    body = atom[2 if negated else 1 : -1]
    if any(sign in body for sign in ("&&", "--", "~~")):
        raise ValueError(f"{what} has a class with `&&`, `--` or `~~`; write one of the two with a backslash")
    bits = 0
    parts = _MEMBER.findall(body)
    index = 0
    while index < len(parts):
        low, part = _member(parts[index])
        if low is not None and parts[index + 1 : index + 2] == ["-"] and index + 2 < len(parts):
            high, _ = _member(parts[index + 2])
            if high is None:
                raise ValueError(f"{what} has a range that ends in a class; write `\\-` for the sign itself")
            part = ((1 << min(high, 127) + 1) - 1) & ~((1 << min(low, 128)) - 1)
            index += 2
        bits |= part
        index += 1
    if not negated and bits and not bits & ~_bits(UNPRINTABLE) and all(part.isascii() for part in parts):
        raise ValueError(f"{what} has a class of control characters, which are not generated; leave it out")
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


def _bits(characters: frozenset[str]) -> int:
    return sum(1 << ord(character) for character in characters)

"""`JsonObjectReader`: finds the end of a JSON object in text that comes in pieces."""

import re

_INSIDE_JSON = re.compile(r'[{}\[\]"]')
_INSIDE_JSON_ALONE = re.compile(r"""[{}\[\]"]|[^\s:,\d+\-.eE"TFNtrufalsnoIiy]""")
"""The same, and what no JSON has outside of strings, the words of Python's `json` included."""
_INSIDE_STRING = re.compile(r'["\\]')


class JsonObjectReader:
    """Counts the brackets of one value after another.

    Attributes:
        is_broken: whether there was text that no JSON has; looked for only where it is asked for.
    """

    __slots__ = ("_depth", "_in_string", "_inside_json", "_is_escaped", "is_broken")

    def __init__(self, *, is_exact: bool = False) -> None:
        """Begin outside of a value; `is_exact`: end where text is no JSON."""
        self._inside_json = _INSIDE_JSON_ALONE if is_exact else _INSIDE_JSON
        self.is_broken = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def begin_inside(self) -> None:
        """Go on as if the first bracket had been read."""
        self._depth = 1

    def read(self, text: str, position: int) -> int:
        """Return where the value ends, or breaks, that goes on at `position`; -1: not in `text`."""
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (_INSIDE_STRING if self._in_string else self._inside_json).search(text, position)
            if found is None:
                break
            position = found.end()
            match found[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\" if self._in_string:
                    self._is_escaped = True
                case "{" | "[":
                    self._depth += 1
                case "}" | "]":
                    self._depth -= 1
                    if self._depth == 0:
                        return position
                case _:
                    self.is_broken = True
                    return position
        return -1

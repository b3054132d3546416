"""`JsonObjectReader`: finds the end of a JSON object in text that comes in pieces."""

import re

_INSIDE_JSON = re.compile(r'[{}\[\]"]')
_INSIDE_STRING = re.compile(r'["\\]')


class JsonObjectReader:
    """Counts the brackets of one value after another."""

    __slots__ = ("_depth", "_in_string", "_is_escaped")

    def __init__(self) -> None:
        """Begin outside of a value."""
        self._depth = 0
        self._in_string = self._is_escaped = False

    def begin_inside(self) -> None:
        """Go on as if the first bracket had been read."""
        self._depth = 1

    def read(self, text: str, position: int) -> int:
        """Return where the value ends that goes on at `position`; -1: not in `text`."""
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (_INSIDE_STRING if self._in_string else _INSIDE_JSON).search(text, position)
            if found is None:
                break
            position = found.end()
            match found[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._is_escaped = True
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth == 0:
                        return position
        return -1

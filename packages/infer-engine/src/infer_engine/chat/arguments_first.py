"""`ArgumentsFirst`: reads a call that is JSON and has its arguments before its name, as Hermes 2 Pro was trained to do.

Nothing says whose arguments they are before they have ended: they are held back, and no grammar holds them. So that
what is no call is not held back for long, they must be JSON, and of at most `MAX_CHARACTERS`.
"""

from collections.abc import Collection

from infer_engine.chat.arguments.json_object_reader import JsonObjectReader
from infer_engine.chat.call_marks import MAX_NAME_CHARACTERS, MORE, NO, match, skip_blanks

MAX_CHARACTERS = 2**17
"""The most of arguments that is held back."""
_BEFORE_NAME = (",", '"name"', ":", '"')


class ArgumentsFirst:
    """Reads one call after another.

    Attributes:
        name: name of the tool; empty until it is known.
        is_whole: whether its arguments have ended.
    """

    __slots__ = ("_head", "_names", "_num_held", "_object", "_other_names", "_pieces", "is_whole", "name")

    def __init__(self, names: Collection[str] | None, other_names: Collection[str]) -> None:
        """Read calls of `names`, None: of any, but not of `other_names`."""
        self._names = names
        self._other_names = other_names
        self.begin("")

    def begin(self, head: str) -> None:
        """Begin with the arguments of a call, which `head` is before."""
        self.name = ""
        self._head = head
        self._object = JsonObjectReader(is_exact=True)
        self._pieces: list[str] = []
        self._num_held = 0
        self.is_whole = False

    @property
    def arguments(self) -> str:
        """The arguments as far as they have been read."""
        return "".join(self._pieces).strip()

    @property
    def text(self) -> str:
        """All that has been read."""
        return "".join((self._head, *self._pieces))

    def read(self, text: str, position: int) -> tuple[int, int]:
        """Read on at `position`.

        Returns:
            Where it left off. And `MORE`: the rest must come again, with more text; `NO`: it is no call; else where
            the call goes on after its name.
        """
        if not self.is_whole:
            start = position if self._pieces else skip_blanks(text, position)
            if start == len(text) or (text[start] != "{" and not self._pieces):
                return position, MORE if start == len(text) else NO
            end = self._object.read(text, position)
            piece = text[position : len(text) if end < 0 else end]
            self._pieces.append(piece)
            self._num_held += len(piece)
            position += len(piece)
            if self._object.is_broken or self._num_held > MAX_CHARACTERS:
                return position, NO
            if end < 0:
                return position, MORE
            self.is_whole = True
        start = match(text, skip_blanks(text, position), _BEFORE_NAME)
        if start < 0:
            return position, start
        end = text.find('"', start)
        if end < 0:
            return position, MORE if len(text) - start <= MAX_NAME_CHARACTERS else NO
        name = text[start:end]
        if name in self._other_names or (self._names is not None and name not in self._names):
            return position, NO
        self.name = name
        return position, end + 1

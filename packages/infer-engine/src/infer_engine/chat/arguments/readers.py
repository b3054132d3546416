"""`argument_reader`: what reads the arguments of calls in a format, as they arrive, and makes JSON of them."""

from collections.abc import Callable
from typing import Protocol

from infer_engine.chat.arguments.json_object_reader import JsonObjectReader
from infer_engine.chat.arguments.literal_reader import LiteralReader
from infer_engine.chat.arguments.parameter_reader import ParameterReader
from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_models.text import ToolCallFormat


class ArgumentReader(Protocol):
    """Reads the arguments of one call after another."""

    def begin(self, tool_name: str, /) -> None:
        """Begin with the arguments of a call of a tool."""

    def read(self, text: str, position: int, put: Callable[[str], None]) -> tuple[int, bool]:
        """Read on at `position`, and call `put` with the pieces of JSON that this settles.

        Returns:
            Where it left off: what follows must come again, with more text. And whether the arguments have ended there.
        """


def argument_reader(call_format: ToolCallFormat, types: ParameterTypes | None) -> ArgumentReader:
    """Return the reader of a format; `types` tell texts from other values where the format does not."""
    if call_format.literals is not None:
        return LiteralReader(call_format.literals)
    if call_format.parameters is not None:
        ends = (call_format.arguments_end, call_format.closing)
        return ParameterReader(call_format.parameters, *ends, types or ParameterTypes())
    return _JsonReader()


class _JsonReader:
    """Passes a JSON object on as it is."""

    __slots__ = ("_object",)

    def __init__(self) -> None:
        self._object = JsonObjectReader()

    def begin(self, _: str) -> None:
        self._object = JsonObjectReader()

    def read(self, text: str, position: int, put: Callable[[str], None]) -> tuple[int, bool]:
        end = self._object.read(text, position)
        put(text[position : len(text) if end < 0 else end])
        return (len(text), False) if end < 0 else (end, True)

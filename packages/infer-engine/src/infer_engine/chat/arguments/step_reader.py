"""`StepReader`: what readers of arguments that are not JSON have in common: a step that reads on, and the end."""

from collections.abc import Callable

Put = Callable[[str], None]
Step = Callable[[str, int, Put], tuple[int, bool]]
"""Reads on at a position; returns where it left off, and whether more of the text can be read."""


class StepReader:
    """Reads arguments step by step, until they have ended."""

    __slots__ = ("_is_over", "_step")

    def _start(self, step: Step) -> None:
        """Begin with arguments at their first step."""
        self._step = step
        self._is_over = False

    def read(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        """Read on at `position`, and call `put` with the pieces of JSON that this settles.

        Returns:
            Where it left off: what follows must come again, with more text. And whether the arguments have ended there.
        """
        goes_on = True
        while goes_on and not self._is_over:
            position, goes_on = self._step(text, position, put)
        return position, self._is_over

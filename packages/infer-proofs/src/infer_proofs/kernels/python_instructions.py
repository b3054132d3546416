"""Counts the instructions that Python takes for something: what a test can hold a cost to, as no clock can."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def num_instructions(act: Callable[[], object], *, of: str = "", without: str | None = None) -> int:
    """Return how many bytecode instructions `act` takes in this thread.

    Args:
        act: what is done once.
        of: what names of the modules that count begin with; empty: all of them.
        without: what is in the names of those that do not; None: of none.
    """
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if event == "call":
            name = str(frame.f_globals.get("__name__"))
            if not name.startswith(of) or (without is not None and without in name):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count

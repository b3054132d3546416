"""The program that compiles the kernels of a dtype into the cache."""

import os
import signal
import sys
import threading
from contextlib import suppress

from . import processes
from .cache import build_in_cache, cache_folder
from .compilers import BuildError, flags_of_environment

SWITCH = "INFER_CPU_KERNELS"
"""The environment variable; 0 switches the kernels off."""
COMPILED = 10
"""The exit code of the program where it has compiled, or has waited for another process that did."""


def is_switched_off() -> bool:
    """Whether the environment switches the kernels off."""
    return os.environ.get(SWITCH, "1").strip().lower() in ("0", "false", "off", "no")


def main(dtype: str) -> int:
    """Compile into the cache, until standard input ends; return `COMPILED`, or 0 where there was nothing to do."""
    if is_switched_off():
        return 0
    signal.signal(signal.SIGTERM, lambda *_: processes.ended.set())
    threading.Thread(target=_end_with_input, daemon=True).start()
    with suppress(BuildError, OSError, RuntimeError):  # who wants the library tries again, and says what is wrong
        if build_in_cache(cache_folder(), dtype, extra_flags=flags_of_environment()).compiler:
            return COMPILED
    return 0


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    processes.ended.set()

"""`library`: the compiled kernels of this process, compiled and loaded when they are first wanted."""

import ctypes
import logging
import os
import shutil
import time
from contextlib import suppress
from functools import cache

from infer_kernels.cpu.build import Build, BuildError, build, build_temporarily

logger = logging.getLogger("infer_kernels")

SWITCH = "INFER_CPU_KERNELS"
"""The environment variable; 0 switches the kernels off."""
FLAGS = "INFER_CPU_KERNELS_FLAGS"
"""The environment variable with further flags for the compiler: a smaller instruction set, sanitizers."""


class Library:
    """The loaded library.

    Attributes:
        instruction_set: that it was compiled for.
        has_threads: whether it computes with several threads.
        is_amx_refused: whether the CPU has matrix instructions (AMX) that the system does not let this process use.
        run_call: C function (kernel, arguments, threads).
        run_calls: C function (calls, number of calls, threads).
    """

    def __init__(self, path: str) -> None:
        """Load the library at `path`.

        Raises:
            OSError: it cannot be loaded.
        """
        self._handle = ctypes.CDLL(path)
        self._addresses: dict[str, int] = {}
        self.run_call = self._handle.run_call
        self.run_call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
        self.run_call.restype = None
        self.run_calls = self._handle.run_calls
        self.run_calls.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
        self.run_calls.restype = None
        self._handle.instruction_set.restype = ctypes.c_char_p
        self.instruction_set: str = self._handle.instruction_set().decode()
        self.has_threads = bool(self._handle.has_threads())
        self.is_amx_refused = bool(self._handle.is_amx_refused())

    def address(self, kernel: str) -> int:
        """Return the address of a kernel."""
        found = self._addresses.get(kernel)
        if found is None:
            pointer = ctypes.cast(getattr(self._handle, kernel), ctypes.c_void_p)
            found = self._addresses[kernel] = pointer.value or 0
        return found


def is_switched_off() -> bool:
    """Whether the environment switches the kernels off."""
    return os.environ.get(SWITCH, "1").strip().lower() in ("0", "false", "off", "no")


@cache
def library() -> Library | None:
    """Return the library; None if it is switched off or cannot be built, which the log says once."""
    if is_switched_off():
        logger.info("CPU kernels are off (%s); plain PyTorch computes", SWITCH)
        return None
    began = time.monotonic()
    flags = os.environ.get(FLAGS, "").split()
    try:
        built = build(extra_flags=flags)
        try:
            loaded = _load(built)
        except OSError:  # damaged, or in a folder from which nothing may be run
            with suppress(OSError):
                built.path.unlink()
            built = build_temporarily(extra_flags=flags)
            loaded = _load(built)
    except (BuildError, OSError) as error:
        logger.warning("No CPU kernels, plain PyTorch computes, several times slower: %s", error)
        return None
    if built.compiler:
        seconds = time.monotonic() - began
        logger.info("CPU kernels for %s compiled by %s in %.1f s", loaded.instruction_set, built.compiler, seconds)
    if not loaded.has_threads:
        logger.warning("CPU kernels compute with one thread: the compiler has no OpenMP")
    if loaded.is_amx_refused:
        logger.warning("CPU kernels compute without AMX, which this system does not grant; many rows take longer")
    return loaded


def _load(built: Build) -> Library:
    """Load the library, whose file is not needed any longer.

    Raises:
        OSError: it cannot be loaded.
    """
    try:
        return Library(str(built.path))
    finally:
        if built.is_temporary:
            shutil.rmtree(built.path.parent, ignore_errors=True)

"""`library`: this process's compiled kernels, those of a dtype compiled and loaded when they are first wanted."""

import ctypes
import logging
import shutil
import time

from infer_kernels.cpu.compilation import (
    SWITCH,
    Build,
    BuildError,
    build,
    build_temporarily,
    flags_of_environment,
    is_switched_off,
)

logger = logging.getLogger("infer_kernels")

_NOT_EXECUTABLE = "failed to map segment"
_NOEXEC_HINT = "; the folder may be mounted `noexec`: set `INFER_CACHE_DIR` to one from which libraries may be loaded"


class Library:
    """The loaded library.

    Attributes:
        instruction_set: that it was compiled for.
        is_amx_refused: whether the CPU has matrix instructions (AMX) that the system does not let this process use.
        was_compiled: for this process, or by another one while this one waited; it was not there before.
        run_call: C function (kernel, arguments, threads).
        run_calls: C function (calls, number of calls, threads).
    """

    def __init__(self, path: str, *, was_compiled: bool = False) -> None:
        """Load the library at `path`.

        Raises:
            OSError: it cannot be loaded.
        """
        self.was_compiled = was_compiled
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
        self.is_amx_refused = bool(self._handle.is_amx_refused())

    def ask(self, function: str, arguments: bytes) -> int:
        """Return the int64 that a function of a struct returns."""
        asked = getattr(self._handle, function)
        asked.restype = ctypes.c_int64
        return int(asked(ctypes.c_char_p(arguments)))

    def address(self, kernel: str) -> int:
        """Return the address of a kernel."""
        found = self._addresses.get(kernel)
        if found is None:
            pointer = ctypes.cast(getattr(self._handle, kernel), ctypes.c_void_p)
            found = self._addresses[kernel] = pointer.value or 0
        return found


_libraries: dict[str, Library | None] = {}


def library(dtype: str | None = None) -> Library | None:
    """Return the library of `dtype`; None if it is switched off or cannot be built, which the log says once.

    Args:
        dtype: a key of `ELEMENTS`; None: any, for what is the same in all.
    """
    dtype = dtype or next(iter(_libraries), "bfloat16")
    if dtype not in _libraries:
        _libraries[dtype] = _library(dtype)
    return _libraries[dtype]


def loaded_library(dtype: str) -> Library | None:
    """Return the library of `dtype` if `library` has returned it before."""
    return _libraries.get(dtype)


def _library(dtype: str) -> Library | None:
    if is_switched_off():
        if not _libraries:
            logger.info("CPU kernels are off (%s); plain PyTorch computes", SWITCH)
        return None
    began = time.monotonic()
    flags = flags_of_environment()
    try:
        built = build(dtype, extra_flags=flags)
        try:
            loaded = _load(built)
        except OSError as error:
            if built.is_temporary or _NOT_EXECUTABLE not in str(error):
                raise
            built = build_temporarily(dtype, extra_flags=flags)
            loaded = _load(built)
    except (BuildError, OSError) as error:
        hint = _NOEXEC_HINT if _NOT_EXECUTABLE in str(error) else ""
        logger.warning("No CPU kernels for %s, plain PyTorch computes, several times slower: %s%s", dtype, error, hint)
        return None
    if loaded.was_compiled:
        seconds = time.monotonic() - began
        what = f"{dtype} on {loaded.instruction_set}"
        logger.info("CPU kernels for %s compiled by %s, ready after %.1f s", what, built.compiler, seconds)
    if loaded.is_amx_refused:
        logger.warning("CPU kernels compute without AMX, which this system does not grant; many rows take longer")
    return loaded


def _load(built: Build) -> Library:
    """Load the library, whose file is not needed any longer.

    Raises:
        OSError: it cannot be loaded.
    """
    logger.debug("Loading %s; remove it or set `%s=0` if that ends the process", built.path, SWITCH)
    try:
        return Library(str(built.path), was_compiled=bool(built.compiler))
    finally:
        if built.is_temporary:
            shutil.rmtree(built.path.parent, ignore_errors=True)

"""Compiles the C++ kernels with the machine's own compiler, once.

    python -I -S FOLDER DTYPE

compiles into the cache until standard input ends, where FOLDER is this one. It imports the standard library alone, so
that a process can start it before it imports torch, which takes seconds.
"""

from .cache import ELEMENTS, UNITS, Build, build, build_in_cache, build_temporarily, cache_folder
from .compilers import (
    COMPILERS,
    FLAGS,
    INSTALL_HINT,
    SOURCE_FOLDER,
    BuildError,
    find_compiler,
    flags_of_environment,
)
from .program import COMPILED, SWITCH, is_switched_off

__all__ = [
    "COMPILED",
    "COMPILERS",
    "ELEMENTS",
    "FLAGS",
    "INSTALL_HINT",
    "SOURCE_FOLDER",
    "SWITCH",
    "UNITS",
    "Build",
    "BuildError",
    "build",
    "build_in_cache",
    "build_temporarily",
    "cache_folder",
    "find_compiler",
    "flags_of_environment",
    "is_switched_off",
]

"""`needs_cpu_kernels`: skips a test on a machine that cannot have C++ kernels, and on no other."""

import pytest

from infer_kernels.cpu.compilation import BuildError, find_compiler, is_switched_off
from infer_kernels.cpu.library import library


def has_cpu_kernels() -> bool:
    """Return whether there are C++ kernels.

    Raises:
        RuntimeError: there is a compiler, and it failed: tests that were skipped for that would hide it.
    """
    if library() is not None:
        return True
    if is_switched_off():
        return False
    try:
        compiler = find_compiler()
    except BuildError:
        return False
    raise RuntimeError(f"`{compiler[0]}` did not compile the C++ kernels; the log of `infer_kernels` says why")


needs_cpu_kernels = pytest.mark.skipif(not has_cpu_kernels(), reason="no C++ kernels: no compiler, or switched off")

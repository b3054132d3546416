"""Memory that was freed serves again without the system's help."""

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import ctypes
import resource
import sys

from infer_engine.free_memory import keep_free_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
if "keep" in sys.argv:
    keep_free_memory()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    place = ctypes.c_void_p(libc.malloc(2**26))  # more than the allocator keeps by itself
    libc.memset(place, 1, 2**26)
    libc.free(place)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*flags: str) -> list[int]:
    """Pages that the system had to find for each of some pieces of 64 MiB, each freed before the next."""
    command = [sys.executable, "-c", COUNT_FAULTS, *flags]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(line) for line in printed.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator alone is told")
def test_what_a_step_frees_serves_the_next_one() -> None:
    first, *later = faults("keep")
    assert max(later) < first / 10
    first, *later = faults()
    assert min(later) > first / 2  # not told, it gives back what it frees; else the above shows nothing

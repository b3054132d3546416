"""Memory that was freed serves again without the system's help."""

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource
import sys

import torch

from infer_engine.free_memory import keep_free_memory

if "keep" in sys.argv:
    keep_free_memory()
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)  # 64 MiB: more than the allocator keeps by itself
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*flags: str) -> list[int]:
    """Pages that the system had to find for each of some tensors of 64 MiB, each freed before the next."""
    command = [sys.executable, "-c", COUNT_FAULTS, *flags]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(line) for line in printed.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator alone is told")
def test_what_a_step_frees_serves_the_next_one() -> None:
    first, *later = faults("keep")
    assert sum(later[-3:]) < first  # the first few may lie beside one another
    first, *later = faults()
    assert sum(later[-3:]) > 2 * first  # not told, it gives back what it frees; else the above shows nothing

"""All compilers make kernels with the same bits: GCC, Clang, and the Clang of the Python package `ziglang`."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from infer_kernels.cpu.compilation import ELEMENTS, compilers
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

pytestmark = needs_cpu_kernels
FLAGS = ["", "-march=x86-64-v3"] if platform.machine() == "x86_64" else [""]
"""What this CPU has, whatever that is, and AVX2."""


def command_of(compiler: str) -> list[str] | None:
    """Return the command of a compiler; None if it is not installed, or is the one that is taken anyway."""
    if compiler == "ziglang":
        spec = find_spec("ziglang")
        if spec is None or not spec.submodule_search_locations:
            return None
        return [str(Path(spec.submodule_search_locations[0]) / "zig"), "c++"]
    try:
        found = compilers.find_compiler(os.environ | {"CXX": compiler})
    except compilers.BuildError:
        return None
    is_default = os.path.realpath(found[0]) == os.path.realpath(compilers.find_compiler()[0])
    return None if is_default else found


@cache
def checksums(dtype: str, flags: str, command: str | None = None) -> list[str]:
    """Return the lines of what kernels compute that a compiler has made, and first what they were made for."""
    environment = {"INFER_CPU_KERNELS_FLAGS": flags} | ({} if command is None else {"CXX": command})
    program = [sys.executable, "-m", "infer_proofs.kernels.kernel_bits", dtype]
    done = subprocess.run(program, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    return [first.partition(", compiled by")[0], *lines]


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("dtype", "flags"), [*product(ELEMENTS, FLAGS)])
@pytest.mark.parametrize("compiler", [*compilers.COMPILERS, "ziglang"])
def test_kernels_of_all_compilers_have_the_same_bits(compiler: str, dtype: str, flags: str) -> None:
    command = command_of(compiler)
    if command is None:
        pytest.skip(f"{compiler} is not installed, or is the one of all other tests")
    expected = checksums(dtype, flags)
    assert len(expected) > 300
    own_flags = flags.replace("x86-64-v3", "x86_64_v3") if compiler == "ziglang" else flags
    assert checksums(dtype, own_flags, " ".join(command)) == expected

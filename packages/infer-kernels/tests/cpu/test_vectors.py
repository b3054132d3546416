"""Vectors of sixteen compute what plain C++ does one number at a time, on every instruction set that is at hand.

Those of ARM are cross-compiled and emulated by QEMU: Debian's `g++-aarch64-linux-gnu` and `qemu-user-static`.
"""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from infer_kernels.cpu.compilation import SOURCE_FOLDER, BuildError, find_compiler
from infer_kernels.cpu.compilation.compilers import COMMON_FLAGS
from infer_kernels.cpu.compilation.encodings_header import write_header

SOURCE = Path(__file__).parents[1] / "vector_checks.cpp"
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
ARM = {
    "-mcpu=neoverse-v1": "max",
    "-mcpu=neoverse-n1": "neoverse-n1",
    "-mcpu=cortex-a72": "cortex-a72",
    "-march=armv8.2-a+i8mm": "max",
    "-march=armv8.2-a+bf16": "max",
    "-march=armv8.2-a+dotprod+bf16": "max",
    "-march=armv9-a": "max",
}
"""By flags, the CPU that is emulated: real ones, and features one by one, as compilers find them in virtual machines or
name them for CPUs that they do not know (llama.cpp, issues 16237 and 27982)."""
X86 = ("-march=x86-64", "-march=x86-64-v3", "-march=native")
FLAGS = [flag for flag in COMMON_FLAGS if flag not in ("-shared", "-w")]


def compile_checks(compiler: list[str], flags: list[str], to: Path) -> Path:
    """Compile `vector_checks.cpp`, and return the program."""
    write_header(to.parent)
    own = ["-DELEMENT=bf16", f"-I{SOURCE_FOLDER}", f"-I{to.parent}", str(SOURCE), "-o", str(to)]
    subprocess.run([*compiler, *FLAGS, *flags, *own], check=True, capture_output=True, text=True)
    return to


@pytest.mark.parametrize("flags", X86 if platform.machine() == "x86_64" else ["-mcpu=native"])
def test_vectors_compute_what_single_numbers_do(tmp_path: Path, flags: str) -> None:
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    if flags == "-march=x86-64-v3" and " avx2 " not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this CPU has no AVX2")
    program = compile_checks(compiler, [flags], tmp_path / "checks")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.covers("quantization/arm-products")
@pytest.mark.skipif(
    not (shutil.which(CROSS_COMPILER) and shutil.which(EMULATOR)),
    reason=f"{CROSS_COMPILER} or {EMULATOR} is not installed",
)
@pytest.mark.parametrize("flags", ARM)
def test_vectors_of_arm_compute_what_single_numbers_do(tmp_path: Path, flags: str) -> None:
    program = compile_checks([CROSS_COMPILER], ["-static", "-Wall", "-Wextra", "-Werror", flags], tmp_path / "checks")
    done = subprocess.run([EMULATOR, "-cpu", ARM[flags], program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_no_code_is_a_plain_char() -> None:
    """It is signed on x86 and unsigned on ARM under Linux (cupy, pull request 8410; KataGo, issue 1049)."""
    found = {
        path.name: lines
        for path in sorted(SOURCE_FOLDER.iterdir())
        if (
            lines := re.findall(
                r"(?<!signed )\bchar\b(?! ?\*).*", re.sub(r"//.*|static_cast<char", "", path.read_text())
            )
        )
    }
    assert found == {}

"""What the C++ kernels' inner loops cost a CPU of the ARM family, counted in what compilers make of them.

Any cross compiler will do: Debian's `g++-aarch64-linux-gnu`, or `ziglang` from PyPI. A budget is what both need.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from infer_kernels.cpu.compilation import SOURCE_FOLDER
from infer_kernels.cpu.compilation.compilers import COMMON_FLAGS
from infer_kernels.cpu.compilation.encodings_header import write_header

SOURCE = Path(__file__).parents[1] / "arm_inner_loops.cpp"
GCC, ZIG = "aarch64-linux-gnu-g++", "ziglang"
COMPILERS = [name for name, has in ((GCC, shutil.which(GCC)), (ZIG, importlib.util.find_spec(ZIG))) if has]
CPUS = ("neoverse-v1", "neoverse-n1", "cortex-a72")
"""With products of bytes of either sign (i8mm) and of bf16, with products of signed bytes alone, and with neither."""
SHARED = {"ldr", "ldp", "ldur", "str", "stp", "movi", "mvni", "adrp", "ret", "nop", "cmp"}
"""Instructions that many products share: loads and stores of sums and weights, and constants."""
BUDGETS = {
    "int8_word": (5, 9, 29),
    "int4_word": (9, 9, 25),
    "iq4_word": (16, 16, 32),
    "from_fp16": (4, 4, 4),
    "to_fp16": (4, 4, 4),
    "from_bf16": (4, 4, 4),
    "to_bf16": (4, 30, 30),
    "to_whole": (4, 4, 4),
    "to_codes": (3, 3, 3),
    "from_codes": (6, 6, 6),
}
"""By function, the most instructions for 16 outputs on each of `CPUS`, without `SHARED`; a word has four inputs."""
TILES = {
    "fp32_tile": (("fmla", 1.75),) * 3,
    "fp16_tile": (("fmla", 2.25),) * 3,
    "bf16_tile": (("bfmmla", 2.75), ("fmla", 1.9), ("fmla", 1.9)),
}
"""By function, on each of `CPUS`: what multiplies in the main loop of a tile of six rows, and the most instructions for
one that does. A `bfmmla` has the products of four `fmla`."""

pytestmark = pytest.mark.skipif(not COMPILERS, reason=f"neither {GCC} nor {ZIG} is installed")

Function = list[tuple[str, str]]
"""The instructions of a function with their operands, and its labels, which end with a colon."""
_compiled: dict[tuple[str, str], dict[str, Function]] = {}


def command_of(compiler: str, cpu: str) -> list[str]:
    """Return the command that compiles for `cpu`."""
    if compiler == GCC:
        return [GCC, f"-mcpu={cpu}"]
    return [sys.executable, "-m", ZIG, "c++", "-target", "aarch64-linux-gnu", f"-mcpu={cpu.replace('-', '_')}"]


def functions_of(compiler: str, cpu: str, folder: Path) -> dict[str, Function]:
    """Return what the compiler makes of the inner loops, by function."""
    if (compiler, cpu) not in _compiled:
        flags = [flag for flag in COMMON_FLAGS if flag != "-shared"]
        output = folder / "inner_loops.s"
        write_header(folder)
        own = ["-DELEMENT=bf16", f"-I{SOURCE_FOLDER}", f"-I{folder}", "-S", str(SOURCE), "-o", str(output)]
        subprocess.run([*command_of(compiler, cpu), *flags, *own], check=True, capture_output=True)
        _compiled[compiler, cpu] = read_functions(output.read_text(encoding="utf-8"))
    return _compiled[compiler, cpu]


def read_functions(assembly: str) -> dict[str, Function]:
    functions: dict[str, Function] = {}
    body: Function = []
    for line in assembly.splitlines():
        if label := re.match(r"(\.?[\w$.]+):", line):
            if label[1].startswith(".L"):
                body.append((f"{label[1]}:", ""))
            else:
                body = functions.setdefault(label[1], [])
        elif instruction := re.match(r"\s+([a-z][\w.]*)\s*(.*)", line):
            body.append((instruction[1], instruction[2].split("//")[0].strip()))
    return functions


def main_loop(body: Function, multiplies: str) -> list[str]:
    """Return the instructions of the innermost loop with the most products."""
    places = {name[:-1]: i for i, (name, _) in enumerate(body) if name.endswith(":")}
    loops = [
        (places[target], i)
        for i, (name, operands) in enumerate(body)
        if name.startswith(("b", "c", "t"))
        and (target := operands.split(",")[-1].strip()) in places
        and places[target] < i
    ]
    innermost = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    found = [[name for name, _ in body[a : b + 1] if not name.endswith(":")] for a, b in innermost]
    return max(found, key=lambda names: names.count(multiplies))


each_compiler_and_cpu = pytest.mark.parametrize(
    ("compiler", "cpu"), [(compiler, cpu) for compiler in COMPILERS for cpu in CPUS]
)


@pytest.mark.covers("quantization/arm-products")
@each_compiler_and_cpu
@pytest.mark.parametrize("name", BUDGETS)
def test_sixteen_outputs_take_few_instructions(tmp_path: Path, compiler: str, cpu: str, name: str) -> None:
    body = functions_of(compiler, cpu, tmp_path)[name]
    of_vectors = [op for op, operands in body if operands and not re.match(r"[xw]\d", operands)]
    counted = Counter(op for op in of_vectors if op not in SHARED)
    assert counted.total() <= BUDGETS[name][CPUS.index(cpu)], counted


@each_compiler_and_cpu
@pytest.mark.parametrize("name", TILES)
def test_products_of_dense_layers_are_fused_and_sums_stay_in_registers(
    tmp_path: Path, compiler: str, cpu: str, name: str
) -> None:
    multiplies, most = TILES[name][CPUS.index(cpu)]
    loop = Counter(main_loop(functions_of(compiler, cpu, tmp_path)[name], multiplies))
    assert loop.total() <= most * loop[multiplies], loop
    assert {"fmul", "fadd", "fmadd"}.isdisjoint(loop)

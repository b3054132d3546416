"""The C++ compilers of a machine, and the flags and the key of what they compile."""

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .encodings_header import DECLARATIONS

SOURCE_FOLDER = Path(__file__).resolve().parents[1] / "csrc"
COMPILERS = ("c++", "g++", "clang++")
"""Tried in this order, then the one of the Python package `ziglang`, which is Clang."""
INSTALL_HINT = "install g++ or clang++, or `pip install ziglang`"
COMMON_FLAGS = ("-std=c++17", "-O2", "-g0", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-w")
"""Products are fused with sums where the sources say so and nowhere else: so all compilers make the same bits."""
AVX2 = ("avx2", "fma", "f16c")
"""Instructions that every assembler knows."""
FLAGS = "INFER_CPU_KERNELS_FLAGS"
"""The environment variable with further flags for the compiler: a smaller instruction set, sanitizers."""
CPUINFO = Path("/proc/cpuinfo")
_CPU_FIELDS = ("model name", "flags", "Features", "CPU implementer", "CPU part")
_SYSCTL_NAMES = ("machdep.cpu.brand_string", "hw.cpufamily", "hw.cpusubfamily")


class BuildError(RuntimeError):
    """The kernels cannot be compiled here; the message says why."""


class TransientBuildError(BuildError):
    """The kernels cannot be compiled for now: there was too little memory or time."""


def flags_of_environment() -> list[str]:
    """Return the further flags for the compiler."""
    return os.environ.get(FLAGS, "").split()


def find_compiler(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command of a C++ compiler: `CXX`, the first of `COMPILERS` that is installed, or `ziglang`'s.

    Raises:
        BuildError: there is none.
    """
    text = environment.get("CXX", "")
    if text.strip() and (path := shutil.which(text, path=environment.get("PATH"))):  # a path with spaces, not quoted
        return [path]
    try:
        chosen = shlex.split(text)
    except ValueError as error:
        raise BuildError(f"$CXX is {text!r}, which is no command: {error}") from error
    for command in [chosen] if chosen else [[name] for name in COMPILERS]:
        path = shutil.which(command[0], path=environment.get("PATH"))
        if path is not None:
            return [path, *command[1:]]
    if chosen:
        raise BuildError(f"`{chosen[0]}` of $CXX is not installed")
    if zig := _find_zig():
        return [zig, "c++"]
    raise BuildError(f"no C++ compiler ({', '.join(COMPILERS)}) is installed; {INSTALL_HINT}")


def _find_zig() -> str | None:
    """Return the program of the package `ziglang`, if that is installed."""
    if sys.flags.no_site:  # as the program that compiles while torch is imported
        site.main()
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    return shutil.which("zig", path=spec.submodule_search_locations[0])


def flag_sets() -> Iterator[tuple[str, ...]]:
    """Yield sets of flags, to be tried in this order: not every compiler knows its own processor.

    An assembler may be older than its compiler, and not know the latest instructions.
    """
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    if is_arm:
        yield ("-mcpu=native",)
    yield ("-march=native",)
    if set(AVX2) <= set(describe_cpu().split()):
        yield tuple(f"-m{each}" for each in AVX2)
    yield ()


def key_of(compiler: Sequence[str], extra_flags: Sequence[str]) -> str:
    """Return a hash of everything that the library depends on."""
    parts = [*compiler, *COMMON_FLAGS, *extra_flags, *map(_version, compiler), platform.machine(), describe_cpu()]
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape"))
    for source in (*sorted(SOURCE_FOLDER.iterdir()), *DECLARATIONS):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _version(command: str) -> str:
    """Return what identifies a program's version without running it: where it is, its size and its date."""
    found = shutil.which(command)  # of a wrapper, as in `ccache g++`, what it wraps too
    if found is None:
        return ""
    file = Path(found).resolve()
    return f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"


def describe_cpu() -> str:
    """Return the models and the instruction sets of this CPU's cores, as far as the system tells."""
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return _ask_sysctl() or platform.processor()
    pairs = (map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    return "\n".join(dict.fromkeys(f"{name}: {value}" for name, value in pairs if name in _CPU_FIELDS))


def _ask_sysctl() -> str:
    """Return what macOS says of its CPU; empty on other systems."""
    if platform.system() != "Darwin":
        return ""
    command = [shutil.which("sysctl") or "/usr/sbin/sysctl", "-i", *_SYSCTL_NAMES]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout  # noqa: S603 - the system's
    return ""

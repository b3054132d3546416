"""Compiles the C++ kernels with the machine's own compiler into a cache, once for each source, compiler and CPU.

    $INFER_CACHE_DIR or $XDG_CACHE_HOME/infer or ~/.cache/infer
        cpu-kernels-KEY.so        KEY: a hash of sources, flags, compiler and CPU

A library is compiled under a temporary name and renamed, so that no process sees half of one; two processes that start
at once both compile, and either result is kept. Where the cache cannot be written or a library there not loaded, it is
built in a temporary folder.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parent / "csrc"
COMPILERS = ("c++", "g++", "clang++")
COMMON_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-w")
FLAG_SETS = (("-march=native", "-fopenmp"), ("-march=native",), ("-fopenmp",), ())
"""Tried in this order: not every compiler knows its own processor, or has OpenMP."""
TIMEOUT_S = 120.0


class BuildError(RuntimeError):
    """The kernels cannot be compiled here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A compiled library.

    Attributes:
        path: the library.
        compiler: that made it; empty if the library was found in the cache.
        is_temporary: whether its folder is to be removed once it is loaded.
    """

    path: Path
    compiler: str
    is_temporary: bool = False


def find_compiler(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command of a C++ compiler: `CXX`, or the first of `COMPILERS` that is installed.

    Raises:
        BuildError: there is none.
    """
    chosen = environment.get("CXX", "").split()
    for command in [chosen] if chosen else [[name] for name in COMPILERS]:
        path = shutil.which(command[0], path=environment.get("PATH"))
        if path is not None:
            return [path, *command[1:]]
    if chosen:
        raise BuildError(f"`{chosen[0]}` of $CXX is not installed")
    raise BuildError(f"no C++ compiler ({', '.join(COMPILERS)}) is installed")


def build(*, extra_flags: Sequence[str] = (), cache: Path | None = None) -> Build:
    """Return the library for this machine, from the cache or compiled.

    Args:
        extra_flags: for the compiler, after all others: a smaller instruction set, sanitizers.
        cache: the folder; None takes that of the environment.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = find_compiler()
    name = f"cpu-kernels-{_key(compiler, extra_flags)}.so"
    try:
        cache = cache or cache_folder()
        if (cache / name).is_file():
            return Build(path=cache / name, compiler="")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = _compile(compiler, Path(folder), extra_flags)
            made.rename(cache / name)
        return Build(path=cache / name, compiler=compiler[0])
    except BuildError:
        raise
    except (OSError, RuntimeError):  # read-only, full, or nobody's home
        return build_temporarily(extra_flags=extra_flags)


def build_temporarily(*, extra_flags: Sequence[str] = ()) -> Build:
    """Compile the library into a temporary folder.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = find_compiler()
    folder = Path(tempfile.mkdtemp(prefix="infer-cpu-kernels-"))
    try:
        return Build(path=_compile(compiler, folder, extra_flags), compiler=compiler[0], is_temporary=True)
    except BuildError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that keeps compiled libraries."""
    if chosen := environment.get("INFER_CACHE_DIR"):
        return Path(chosen)
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "infer"
    return Path.home() / ".cache" / "infer"


def _key(compiler: Sequence[str], extra_flags: Sequence[str]) -> str:
    """Return a hash of everything that the library depends on."""
    parts = [*compiler, *COMMON_FLAGS, *extra_flags, _version(compiler), platform.machine(), _describe_cpu()]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in sorted(SOURCE_FOLDER.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _version(compiler: Sequence[str]) -> str:
    """Return what identifies the compiler's version without running it: where it is, its size and its date."""
    file = Path(compiler[0]).resolve()
    return f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"


def _describe_cpu() -> str:
    """Return the model and the instruction sets of this CPU, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    fields = dict.fromkeys(("model name", "flags", "Features"), "")
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in fields:
            fields[name.strip()] = value.strip()
    return "\n".join(fields.values())


def _compile(compiler: Sequence[str], folder: Path, extra_flags: Sequence[str]) -> Path:
    """Compile all sources side by side and link them in `folder`.

    Raises:
        BuildError: no set of flags works; the message is that of the first, which had the most.
    """
    first_message = ""
    for flags in FLAG_SETS:
        command = [*compiler, *COMMON_FLAGS, *flags, *extra_flags]
        message = _compile_with(command, folder)
        if not message:
            return folder / "kernels.so"
        first_message = first_message or message
    raise BuildError(f"`{compiler[0]}` failed: {first_message}")


def _compile_with(command: Sequence[str], folder: Path) -> str:
    """Compile with `command`; return the compiler's message, empty if it succeeds.

    Raises:
        BuildError: it takes too long.
    """
    sources = sorted(SOURCE_FOLDER.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    steps = [
        [[*command, "-c", str(source), "-o", str(made)] for source, made in zip(sources, objects, strict=True)],
        [[*command, *map(str, objects), "-o", str(folder / "kernels.so")]],
    ]
    for commands in steps:
        processes = [
            subprocess.Popen(each, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # noqa: S603 - the user's compiler
            for each in commands
        ]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        except subprocess.TimeoutExpired:
            raise BuildError(f"`{command[0]}` was not done after {TIMEOUT_S:.0f} s") from None
        finally:
            for process in processes:
                process.kill()
        for process, output in zip(processes, outputs, strict=True):
            if process.returncode != 0:
                lines = output.decode(errors="replace").strip().splitlines()
                return next((line for line in lines if "error" in line), lines[0] if lines else "no message")[:300]
    return ""

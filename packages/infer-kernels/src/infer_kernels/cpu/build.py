"""Compiles the C++ kernels with the machine's own compiler into a cache, once for each dtype, source, compiler and CPU.

    $INFER_CACHE_DIR or $XDG_CACHE_HOME/infer or ~/.cache/infer
        cpu-kernels-DTYPE-KEY-CHECKSUM.so  KEY: a hash of sources, flags, compiler and CPU
        cpu-kernels.lock                   held by the process that compiles; others wait for what it makes

A library is compiled in a folder of its own and renamed, so that no process sees half of one. One whose bytes have
another checksum than its name, as power failures and full disks leave them, would kill the process that loads it: it is
compiled again. Where the cache cannot be written or a library there not loaded, it is built in a temporary folder.

    python build.py DTYPE

compiles into the cache until standard input ends. It imports the standard library alone, so that a process can start it
before it imports torch, which takes seconds.
"""

import errno
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

SWITCH = "INFER_CPU_KERNELS"
"""The environment variable; 0 switches the kernels off."""
FLAGS = "INFER_CPU_KERNELS_FLAGS"
"""The environment variable with further flags for the compiler: a smaller instruction set, sanitizers."""
SOURCE_FOLDER = Path(__file__).parent / "csrc"
ELEMENTS: Mapping[str, str] = MappingProxyType({"float32": "float", "bfloat16": "bf16", "float16": "fp16"})
"""By the name of a dtype, its type in C++. A library has the kernels of one: few processes want those of several."""
UNITS = (
    ("attention",),
    ("quantized_product", "linear_quantized", "moe_quantized"),
    ("linear", "moe"),
    ("delta_rule", "convolution", "selective_scan"),
    ("rows", "qkv", "router", "run"),
)
"""Sources that are compiled as one, as each parses the headers; the longest first. Others are units of their own."""
COMPILERS = ("c++", "g++", "clang++")
COMMON_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-w")
FLAG_SETS = (("-march=native",), ())
"""Tried in this order: not every compiler knows its own processor."""
TIMEOUT_S = 600.0
"""The most that compilers take, or another process's compilers: minutes are usual on a busy or small machine alone."""
COMPILED = 10
"""The exit code of this file as a program that has compiled, or has waited for another process that did."""
_LOCK = "cpu-kernels.lock"
_BUILDING = "cpu-kernels-building-"
_LOOK_S = 0.01
"""Seconds between two looks at a lock or at compilers."""
_LEFTOVER_S = 3600.0
"""Seconds after which nobody compiles in a folder any longer."""
_ended = threading.Event()
"""Set when this file as a program has to end. An exception of the signal's own would leave compilers and folders."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded")
_NO_MEMORY = ("Killed", "out of memory", "annot allocate memory", "Resource temporarily unavailable")


class BuildError(RuntimeError):
    """The kernels cannot be compiled here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A compiled library.

    Attributes:
        path: the library.
        compiler: that made it, here or in another process meanwhile; empty if the library was there before.
        is_temporary: whether its folder is to be removed once it is loaded.
    """

    path: Path
    compiler: str
    is_temporary: bool = False


def is_switched_off() -> bool:
    """Whether the environment switches the kernels off."""
    return os.environ.get(SWITCH, "1").strip().lower() in ("0", "false", "off", "no")


def flags_of_environment() -> list[str]:
    """Return the further flags for the compiler."""
    return os.environ.get(FLAGS, "").split()


def find_compiler(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command of a C++ compiler: `CXX`, or the first of `COMPILERS` that is installed.

    Raises:
        BuildError: there is none.
    """
    try:
        chosen = shlex.split(environment.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"$CXX is {environment['CXX']!r}, which is no command: {error}") from error
    for command in [chosen] if chosen else [[name] for name in COMPILERS]:
        path = shutil.which(command[0], path=environment.get("PATH"))
        if path is not None:
            return [path, *command[1:]]
    if chosen:
        raise BuildError(f"`{chosen[0]}` of $CXX is not installed")
    raise BuildError(f"no C++ compiler ({', '.join(COMPILERS)}) is installed")


def build(dtype: str, *, extra_flags: Sequence[str] = (), cache: Path | None = None) -> Build:
    """Return the library of `dtype`, a key of `ELEMENTS`, for this machine, from the cache or compiled.

    Args:
        dtype: dtype of the kernels.
        extra_flags: for the compiler, after all others: a smaller instruction set, sanitizers.
        cache: the folder; None takes that of the environment.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    try:
        return build_in_cache(cache or cache_folder(), dtype, extra_flags=extra_flags)
    except BuildError:
        raise
    except (OSError, RuntimeError):  # read-only, full, or nobody's home
        return build_temporarily(dtype, extra_flags=extra_flags)


def build_in_cache(cache: Path, dtype: str, *, extra_flags: Sequence[str] = ()) -> Build:
    """Return the library of `dtype` in `cache`, compiled if it is not there; arguments as for `build`.

    Raises:
        BuildError: there is no compiler, or it fails.
        OSError: the cache cannot be written, or is full.
    """
    compiler = find_compiler()
    name = f"cpu-kernels-{dtype}-{_key(compiler, extra_flags)}"
    if found := _find_whole(cache, name):
        return Build(path=found, compiler="")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / _LOCK).open("a+", encoding="utf-8") as lock:
        had_to_wait = _lock(lock)
        if found := _find_whole(cache, name):
            return Build(path=found, compiler=compiler[0])
        lock.seek(0)
        failed, _, message = lock.read().partition("\n")
        if had_to_wait and failed == name:  # who compiled it meanwhile has failed
            raise BuildError(message)
        lock.truncate(0)
        _remove_leftovers(cache)
        for damaged in cache.glob(f"{name}-*.so"):
            damaged.unlink(missing_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=cache, prefix=_BUILDING) as folder:
                made = _compile(compiler, Path(folder), dtype, extra_flags)
                path = made.rename(cache / f"{name}-{_checksum(made)}.so")
        except BuildError as error:
            lock.write(f"{name}\n{error}")
            raise
    return Build(path=path, compiler=compiler[0])


def build_temporarily(dtype: str, *, extra_flags: Sequence[str] = ()) -> Build:
    """Compile the library of `dtype` into a temporary folder.

    Raises:
        BuildError: there is no compiler, or it fails.
        OSError: no temporary folder can be written.
    """
    compiler = find_compiler()
    folder = Path(tempfile.mkdtemp(prefix="infer-cpu-kernels-"))
    try:
        path = _compile(compiler, folder, dtype, extra_flags)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Build(path=path, compiler=compiler[0], is_temporary=True)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that keeps compiled libraries."""
    if chosen := environment.get("INFER_CACHE_DIR"):
        return Path(chosen)
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "infer"
    return Path.home() / ".cache" / "infer"


def _find_whole(cache: Path, name: str) -> Path | None:
    """Return the library `name` in `cache` whose bytes are as they were compiled; None: there is none."""
    for path in cache.glob(f"{name}-*.so"):
        with suppress(OSError):  # removed meanwhile, or its disk is failing
            if path.stem == f"{name}-{_checksum(path)}":
                return path
    return None


def _checksum(library: Path) -> str:
    """Return the checksum of a library, all of which is on its disk."""
    with library.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _lock(file: TextIO) -> bool:
    """Lock `file` until it is closed or this process ends, and return whether another process had it.

    Compiles without a lock if the other one has it for too long, or the file system has no locks.
    """
    had_to_wait = False
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            had_to_wait = True
            _wait()
        except OSError:
            break
        else:
            break
    return had_to_wait


def _remove_leftovers(cache: Path) -> None:
    """Remove the folders of processes that were killed while they compiled."""
    for folder in cache.glob(f"{_BUILDING}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LEFTOVER_S:
                shutil.rmtree(folder)


def _key(compiler: Sequence[str], extra_flags: Sequence[str]) -> str:
    """Return a hash of everything that the library depends on."""
    parts = [*compiler, *COMMON_FLAGS, *extra_flags, *map(_version, compiler), platform.machine(), _describe_cpu()]
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape"))
    for source in sorted(SOURCE_FOLDER.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _version(command: str) -> str:
    """Return what identifies a program's version without running it: where it is, its size and its date."""
    found = shutil.which(command)  # of a wrapper, as in `ccache g++`, what it wraps too
    if found is None:
        return ""
    file = Path(found).resolve()
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


def _compile(compiler: Sequence[str], folder: Path, dtype: str, extra_flags: Sequence[str]) -> Path:
    """Compile all sources for `dtype` and link them in `folder`.

    Raises:
        BuildError: no set of flags works; the message is that of the first, which had the most.
        OSError: the disk is full.
    """
    first_message = ""
    # The key is for caches of compilers: to them `-march=native` means the same on every CPU.
    own = [f"-DELEMENT={ELEMENTS[dtype]}", f"-DINFER_KERNELS_KEY={_key(compiler, extra_flags)}"]
    for flags in FLAG_SETS:
        message = _compile_with([*compiler, *COMMON_FLAGS, *flags, *own, *extra_flags], folder)
        if not message:
            return folder / "kernels.so"
        if any(each in message for each in _NO_SPACE):
            raise OSError(errno.ENOSPC, message)
        first_message = first_message or message
    raise BuildError(f"`{compiler[0]}` failed: {first_message}")


def _compile_with(command: Sequence[str], folder: Path) -> str:
    """Compile with `command`; return the compiler's message, empty if it succeeds.

    Raises:
        BuildError: it takes too long.
    """
    joined = {source for unit in UNITS for source in unit}
    alone = sorted(source.stem for source in SOURCE_FOLDER.glob("*.cpp"))
    units = [(source,) for source in alone if source not in joined] + list(UNITS)
    compiles = []
    for unit in units:
        file = folder / f"{unit[0]}.cpp"
        file.write_text("".join(f'#include "{SOURCE_FOLDER / source}.cpp"\n' for source in unit))
        compiles.append([*command, "-c", str(file), "-o", str(file.with_suffix(".o"))])
    link = [*command, *(each[-1] for each in compiles), "-o", str(folder / "kernels.so")]
    message = _run_all(compiles, folder, most_at_once=_num_processors())
    if any(each in message for each in _NO_MEMORY):
        message = _run_all(compiles, folder, most_at_once=1)
    return message or _run_all([link], folder, most_at_once=1)


def _num_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_all(commands: Sequence[Sequence[str]], folder: Path, *, most_at_once: int) -> str:
    """Run `commands` side by side; return the message of the first that fails, empty if all succeed.

    Raises:
        BuildError: they take too long.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    output = folder / "output"  # a file: something that a wrapper leaves running might keep a pipe open
    waiting, running = list(commands), dict[int, subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            while waiting and len(running) < most_at_once:
                number = len(commands) - len(waiting)
                running[number] = _start(waiting.pop(0), output.with_name(f"output-{number}"))
            for number, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[number]
                if process.returncode != 0:
                    return _message(output.with_name(f"output-{number}").read_bytes(), process.returncode)
            if time.monotonic() > deadline_s:
                raise BuildError(f"`{commands[0][0]}` was not done after {TIMEOUT_S:.0f} s")
            _wait()
    finally:
        for process in running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a driver and the compiler that it has started
            process.wait()
    return ""


def _wait() -> None:
    """Wait until it is time for the next look.

    Raises:
        SystemExit: this file as a program has to end.
    """
    if _ended.wait(_LOOK_S):
        sys.exit(1)


def _start(command: Sequence[str], output: Path) -> "subprocess.Popen[bytes]":
    """Start a compiler that prints English into `output`, and keeps its own files in the same folder."""
    with output.open("wb") as file:
        return subprocess.Popen(  # noqa: S603 - the user's compiler
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"LC_ALL": "C", "TMPDIR": str(output.parent)},
            start_new_session=True,
        )


def _message(output: bytes, code: int) -> str:
    """Return the line of a compiler's output that says what is wrong."""
    lines = output.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
    return next((line for line in lines if "error" in line), lines[0])[:300]


def main(dtype: str) -> int:
    """Compile into the cache, until standard input ends; return `COMPILED`, or 0 where there was nothing to do."""
    if is_switched_off():
        return 0
    signal.signal(signal.SIGTERM, lambda *_: _ended.set())
    threading.Thread(target=_end_with_input, daemon=True).start()
    with suppress(BuildError, OSError, RuntimeError):  # who wants the library tries again, and says what is wrong
        if build_in_cache(cache_folder(), dtype, extra_flags=flags_of_environment()).compiler:
            return COMPILED
    return 0


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _ended.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

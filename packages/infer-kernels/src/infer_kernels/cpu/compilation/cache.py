"""Keeps compiled libraries in a folder, once for each dtype, source, compiler and CPU, and what went wrong with others.

    $INFER_CACHE_DIR or $XDG_CACHE_HOME/infer or ~/.cache/infer
        cpu-kernels-DTYPE-KEY-CHECKSUM.so  KEY: a hash of sources, flags, compiler and CPU
        cpu-kernels-DTYPE-KEY.h            the encodings, as it was compiled with them
        cpu-kernels-DTYPE-KEY.failed       why that could not be compiled; for a while nobody tries again
        cpu-kernels.lock                   held by the process that compiles; others wait for what it makes
        zig                                what `ziglang` keeps: its standard library takes it a minute

A library is compiled in a folder of its own and renamed, so that no process sees half of one. One whose bytes have
another checksum than its name, as power failures and full disks leave them, would kill the process that loads it: it is
compiled again. Where the cache cannot be written or a library there not loaded, it is built in a temporary folder.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from . import compilers, processes
from .compilers import COMMON_FLAGS, SOURCE_FOLDER, BuildError, TransientBuildError
from .encodings_header import HEADER, write_header

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
RETRY_S = 24 * 3600.0
"""Seconds after which a compiler that failed is tried again: what it lacked may be installed."""
SOON_S = 600.0
"""The same where there was too little memory or time."""
_LOCK = "cpu-kernels.lock"
_BUILDING = "cpu-kernels-building-"
_LEFTOVER_S = 3600.0
"""Seconds after which nobody compiles in a folder any longer."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


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


def build(dtype: str, *, extra_flags: Sequence[str] = (), cache: Path | None = None) -> Build:
    """Return the library of `dtype`, a key of `ELEMENTS`, for this machine, from the cache or compiled.

    Args:
        dtype: dtype of the kernels.
        extra_flags: for the compiler, after all others: a smaller instruction set, sanitizers.
        cache: the folder; None takes that of the environment.

    Raises:
        BuildError: there is no compiler, or it fails, or has failed before.
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
        BuildError: there is no compiler, or it fails, or has failed before.
        OSError: the cache cannot be written, or is full.
    """
    compiler = compilers.find_compiler()
    name = f"cpu-kernels-{dtype}-{compilers.key_of(compiler, extra_flags)}"
    if found := _find_whole(cache, name):
        return Build(path=found, compiler="")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / _LOCK).open("a", encoding="utf-8") as lock:
        _lock(lock, cache)
        if found := _find_whole(cache, name):
            return Build(path=found, compiler=compiler[0])
        failure = cache / f"{name}.failed"
        _raise_known(failure)
        _remove_leftovers(cache)
        for damaged in cache.glob(f"{name}-*.so"):
            damaged.unlink(missing_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=cache, prefix=_BUILDING) as folder:
                made = _compile(compiler, Path(folder), dtype, extra_flags, zig_cache=cache / "zig")
                made.with_name(HEADER).replace(cache / f"{name}.h")
                path = made.rename(cache / f"{name}-{_checksum(made)}.so")
        except BuildError as error:
            remember_failure(failure, error)
            raise
    return Build(path=path, compiler=compiler[0])


def build_temporarily(dtype: str, *, extra_flags: Sequence[str] = ()) -> Build:
    """Compile the library of `dtype` into a temporary folder.

    Raises:
        BuildError: there is no compiler, or it fails.
        OSError: no temporary folder can be written.
    """
    compiler = compilers.find_compiler()
    folder = Path(tempfile.mkdtemp(prefix="infer-cpu-kernels-"))
    try:
        path = _compile(compiler, folder, dtype, extra_flags, zig_cache=folder / "zig")
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


def remember_failure(file: Path, error: BuildError) -> None:
    """Write into `file` why a library cannot be made, for the next start."""
    kind = "soon" if isinstance(error, TransientBuildError) else "later"
    with suppress(OSError):
        file.write_text(f"{kind}\n{error}", encoding="utf-8")


def _raise_known(file: Path) -> None:
    """Raise the error that `file` remembers, unless it is time to try again.

    Raises:
        BuildError: it is not; the message names the file.
    """
    try:
        kind, _, message = file.read_text(encoding="utf-8").partition("\n")
        age_s = time.time() - file.stat().st_mtime
    except (OSError, UnicodeDecodeError):
        return
    limit_s = SOON_S if kind == "soon" else RETRY_S
    if message and age_s < limit_s:
        left = f"{(limit_s - age_s) / 60:.0f} minutes"
        raise BuildError(f"{message} (as found before; tried again in {left}, or without {file})")


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


def _lock(file: TextIO, cache: Path) -> None:
    """Lock `file` until it is closed or this process ends.

    Compiles without a lock if the process that has it makes no progress, or the file system has no locks.
    """
    seen, deadline_s = _progress(cache), time.monotonic() + processes.TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            processes.wait()
        except OSError:
            return
        else:
            return
        if time.monotonic() > deadline_s:
            if seen == (seen := _progress(cache)):
                return
            deadline_s = time.monotonic() + processes.TIMEOUT_S


def _progress(cache: Path) -> list[tuple[str, int]]:
    """Return what changes with each source that a process has compiled: when files were added to its folder."""
    found = []
    for folder in sorted(cache.glob(f"{_BUILDING}*")):
        with suppress(OSError):
            found.append((folder.name, folder.stat().st_mtime_ns))
    return found


def _remove_leftovers(cache: Path) -> None:
    """Remove the folders of processes that were killed while they compiled."""
    for folder in cache.glob(f"{_BUILDING}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LEFTOVER_S:
                shutil.rmtree(folder)


def _compile(compiler: Sequence[str], folder: Path, dtype: str, extra_flags: Sequence[str], *, zig_cache: Path) -> Path:
    """Compile all sources for `dtype` and link them in `folder`.

    Raises:
        BuildError: no set of flags works; the message is that of the first, which had the most.
        OSError: the disk is full.
    """
    first_message = ""
    # The key is for caches of compilers: to them `-march=native` means the same on every CPU.
    key = compilers.key_of(compiler, extra_flags)
    write_header(folder)
    own = [f"-DELEMENT={ELEMENTS[dtype]}", f"-DINFER_KERNELS_KEY={key}", f"-I{folder}"]
    environment = {"ZIG_LOCAL_CACHE_DIR": str(folder)}
    if "ZIG_GLOBAL_CACHE_DIR" not in os.environ:
        environment["ZIG_GLOBAL_CACHE_DIR"] = str(zig_cache)
    for flags in compilers.flag_sets():
        message = _compile_with([*compiler, *COMMON_FLAGS, *flags, *own, *extra_flags], folder, environment)
        if not message:
            return folder / "kernels.so"
        if any(each in message for each in _NO_SPACE):
            raise OSError(errno.ENOSPC, message)
        first_message = first_message or message
        if is_out_of_memory(message):
            raise TransientBuildError(f"`{compiler[0]}` failed: {message}")
    raise BuildError(f"`{compiler[0]}` failed: {first_message}")


def is_out_of_memory(message: str) -> bool:
    """Whether a compiler's message says that it had too little memory."""
    return any(each in message for each in processes.NO_MEMORY)


def _compile_with(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Compile with `command`; return the compiler's message, empty if it succeeds.

    Raises:
        TransientBuildError: it takes too long.
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

    def run(commands: Sequence[Sequence[str]], most_at_once: int) -> str:
        return processes.run_all(commands, folder, most_at_once=most_at_once, environment=environment)

    message = run(compiles, processes.num_processors())
    if is_out_of_memory(message):
        message = run(compiles, 1)
    return message or run([link], 1)

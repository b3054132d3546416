"""Compiling the C++ kernels where compilers are slow, killed or wrapped, and where disks are full."""

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infer_kernels.cpu.compilation import (
    COMPILED,
    SOURCE_FOLDER,
    UNITS,
    Build,
    BuildError,
    build,
    cache,
    compilers,
    find_compiler,
    processes,
)

WRITES_OUTPUT = 'for last; do :; done; echo "compiled" > "$last"'


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that stands in for the compiler, still to be written."""
    path = tmp_path / "a-compiler"
    monkeypatch.setenv("CXX", str(path))
    return path


def write(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(stat.S_IRWXU)


def test_no_more_compilers_run_at_once_than_processors(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    busy = tmp_path / "busy"
    write(compiler, f"mkdir {busy} || exit 1", "sleep 0.05", f"rmdir {busy}", WRITES_OUTPUT)
    assert build("float32", cache=tmp_path / "cache").path.read_text() == "compiled\n"


def test_compilers_that_are_killed_for_memory_run_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def run_all(commands: list[list[str]], folder: Path, *, most_at_once: int, environment: dict[str, str]) -> str:
        assert environment
        assert commands
        limits.append(most_at_once)
        (folder / "kernels.so").write_text("compiled")
        return "fatal error: Killed signal terminated program cc1plus" if most_at_once > 1 else ""

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(processes, "run_all", run_all)
    monkeypatch.setattr(compilers, "find_compiler", lambda: [sys.executable])
    build("float32", cache=tmp_path)
    assert limits == [8, 1, 1]  # all sources, all again, the linker


def test_a_compiler_that_hangs_is_killed_with_what_it_started(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, fifo = tmp_path / "started", tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write(compiler, f"sleep 600 > {fifo} &", f"echo > {started}", "wait")
    monkeypatch.setattr(time, "monotonic", lambda: 1e9 if started.exists() else 0.0)
    with pytest.raises(BuildError, match="was not done after 600 s"):
        build("float32", cache=tmp_path / "cache")
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # nobody has the other end any longer
    os.close(reader)


def test_a_full_disk_is_left_for_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_elsewhere(command: list[str], folder: Path, environment: dict[str, str]) -> str:
        assert command
        assert environment
        if folder.is_relative_to(tmp_path / "cache"):
            return "fatal error: error writing to /x.s: No space left on device"
        (folder / "kernels.so").write_text("compiled")
        return ""

    monkeypatch.setattr(cache, "_compile_with", compile_elsewhere)
    monkeypatch.setattr(compilers, "find_compiler", lambda: [sys.executable])
    made = build("float32", cache=tmp_path / "cache")
    assert made.is_temporary
    assert made.path.read_text() == "compiled"


def test_a_compiler_prints_english_and_writes_where_there_is_room(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("TMPDIR", "/nowhere")
    write(compiler, 'echo "error: $LC_ALL in $TMPDIR"', "exit 1")
    with pytest.raises(BuildError, match=f"error: C in {tmp_path}/cache/cpu-kernels-building-"):
        build("float32", cache=tmp_path / "cache")


def test_who_waited_for_a_compiler_that_failed_does_not_try_again(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, WRITES_OUTPUT)
    path = build("float32", cache=tmp_path).path
    path.unlink()
    name, _, _ = path.stem.rpartition("-")
    failed = tmp_path / f"{name}.failed"
    lock = (tmp_path / "cpu-kernels.lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def fail_meanwhile() -> None:
        cache.remember_failure(failed, BuildError("`c++` failed: no luck"))
        lock.close()

    monkeypatch.setattr(processes, "wait", fail_meanwhile)
    with pytest.raises(BuildError, match=r"`c\+\+` failed: no luck \(as found before; tried again in 1440 minutes"):
        build("float32", cache=tmp_path)
    failed.unlink()
    assert build("float32", cache=tmp_path).path == path


@pytest.mark.covers("configuration/compiler-failures-are-kept")
@pytest.mark.parametrize(
    ("message", "seconds"), [("error: no luck", 24 * 3600), ("fatal error: Killed signal terminated cc1plus", 600)]
)
def test_a_compiler_that_failed_is_tried_again_after_a_while(
    compiler: Path, tmp_path: Path, message: str, seconds: int
) -> None:
    """A start says at once why there are no kernels, until what was missing may be there."""
    runs = tmp_path / "runs"
    write(compiler, f"echo >> {runs}", f"echo '{message}'", "exit 1")
    with pytest.raises(BuildError, match=message):
        build("float32", cache=tmp_path)
    tried = len(runs.read_text())
    with pytest.raises(BuildError) as raised:
        build("float32", cache=tmp_path)
    (failed,) = tmp_path.glob("*.failed")
    assert f"{message} (as found before; tried again in {seconds // 60} minutes, or without {failed})" in str(
        raised.value
    )
    assert len(runs.read_text()) == tried
    for age_s, is_tried in ((seconds - 30, False), (seconds + 30, True)):
        os.utime(failed, times=(time.time() - age_s,) * 2)
        with pytest.raises(BuildError):
            build("float32", cache=tmp_path)
        assert (len(runs.read_text()) > tried) == is_tried
    with pytest.raises(BuildError, match=f"{message}$"):  # other kernels were not found to fail
        build("float16", cache=tmp_path)
    failed.unlink()
    write(compiler, WRITES_OUTPUT)
    assert build("float32", cache=tmp_path).compiler == str(compiler)


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe", b"later", b"later\n"])
def test_a_failure_that_cannot_be_read_is_none(compiler: Path, tmp_path: Path, garbage: bytes) -> None:
    write(compiler, "exit 1")
    with pytest.raises(BuildError):
        build("float32", cache=tmp_path)
    (failed,) = tmp_path.glob("*.failed")
    failed.write_bytes(garbage)
    with pytest.raises(BuildError, match=r"exit code 1$"):
        build("float32", cache=tmp_path)


def test_a_slow_machine_has_time_for_each_source(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Raspberry Pi, or a busy machine, takes an hour for all."""
    clock_s = iter(range(0, 1 << 30, 400))  # at each look 400 s have passed
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock_s)))
    monkeypatch.setattr(processes, "num_processors", lambda: 1)
    monkeypatch.setattr(processes, "wait", lambda: None)
    started = subprocess.Popen.poll

    def ended_at_once(process: "subprocess.Popen[bytes]") -> int | None:
        process.wait()
        return started(process)

    monkeypatch.setattr(subprocess.Popen, "poll", ended_at_once)
    write(compiler, WRITES_OUTPUT)
    assert build("float32", cache=tmp_path / "cache").path.read_text() == "compiled\n"
    assert next(clock_s) > 600 * len(UNITS)


def test_who_waits_for_a_slow_compiler_does_not_compile_beside_it(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, WRITES_OUTPUT)
    build("float32", cache=tmp_path).path.unlink()
    busy = tmp_path / "cpu-kernels-building-other"
    busy.mkdir()
    clock_s, looks = iter(range(0, 1 << 30, 300)), iter(range(1000))
    lock = (tmp_path / "cpu-kernels.lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def compile_meanwhile() -> None:
        number = next(looks)
        if number < 10:
            (busy / f"{number}.o").touch()
            os.utime(busy, (number, number))  # file systems that count time in jiffies
        elif number == 10:
            lock.close()

    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock_s)))
    monkeypatch.setattr(processes, "wait", compile_meanwhile)
    monkeypatch.setattr(
        cache, "_compile", lambda *_, **__: pytest.fail("compiled") if next(looks) < 11 else tmp_path / "x"
    )
    (tmp_path / "x").write_text("compiled")
    assert build("float32", cache=tmp_path).path.read_text() == "compiled"


def test_a_process_that_holds_the_lock_and_does_nothing_is_not_waited_for(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, WRITES_OUTPUT)
    clock_s = iter(range(0, 1 << 30, 300))
    with (tmp_path / "cpu-kernels.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: float(next(clock_s)))
            patch.setattr(processes, "wait", lambda: None)
            cache._lock(lock := (tmp_path / "cpu-kernels.lock").open("a"), tmp_path)  # noqa: SLF001
        lock.close()


def test_compilers_that_a_system_kills_run_one_by_one(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container with little memory: some say so, some are just gone."""
    monkeypatch.setattr(processes, "num_processors", lambda: 2)
    busy = tmp_path / "busy"
    write(compiler, f"mkdir {busy} || {{ rmdir {busy}; kill -9 $$; }}", "sleep 0.05", f"rmdir {busy}", WRITES_OUTPUT)
    assert build("float32", cache=tmp_path / "cache").path.read_text() == "compiled\n"


def test_ziglang_keeps_its_files_where_ours_are(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its standard library, which it compiles once, would be written into a home that may be read-only."""
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    write(compiler, 'for last; do :; done; echo "$ZIG_GLOBAL_CACHE_DIR $ZIG_LOCAL_CACHE_DIR $TMPDIR" > "$last"')
    kept, own, temporary = build("float32", cache=tmp_path / "cache").path.read_text().split()
    assert kept == str(tmp_path / "cache" / "zig")
    assert own == temporary
    made = cache.build_temporarily("float32")
    kept, own, temporary = made.path.read_text().split()
    assert kept == str(made.path.parent / "zig")
    assert own == temporary == str(made.path.parent)
    shutil.rmtree(made.path.parent)
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", "/where/the/user/wants/it")
    assert build("float16", cache=tmp_path / "cache").path.read_text().startswith("/where/the/user/wants/it ")


@pytest.mark.parametrize("damage", [b"", b"comp", b"comp\0\0\0\0\0", b"compiled\nand more"])
def test_a_damaged_library_is_compiled_again_and_kept(compiler: Path, tmp_path: Path, damage: bytes) -> None:
    write(compiler, WRITES_OUTPUT)
    path = build("float32", cache=tmp_path).path
    path.write_bytes(damage)
    assert build("float32", cache=tmp_path) == Build(path=path, compiler=str(compiler))
    assert path.read_bytes() == b"compiled\n"
    assert build("float32", cache=tmp_path) == Build(path=path, compiler="")


def test_a_library_that_cannot_be_read_is_compiled_again(compiler: Path, tmp_path: Path) -> None:
    write(compiler, WRITES_OUTPUT)
    path = build("float32", cache=tmp_path).path
    path.unlink()
    path.symlink_to(tmp_path / "nothing")  # as an error of a disk, also for root
    assert build("float32", cache=tmp_path).path.read_text() == "compiled\n"


def test_what_a_killed_builder_left_blocks_nobody_and_is_removed(compiler: Path, tmp_path: Path) -> None:
    write(compiler, WRITES_OUTPUT)
    (tmp_path / "cpu-kernels.lock").write_text("of a process that was killed")
    old, recent = tmp_path / "cpu-kernels-building-old", tmp_path / "cpu-kernels-building-recent"
    old.mkdir()
    recent.mkdir()  # perhaps of another machine that shares this folder, where locks may not reach
    os.utime(old, (0, 0))
    assert build("float32", cache=tmp_path).path.exists()
    assert not old.exists()
    assert recent.exists()


def test_a_wrappers_compiler_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper, wrapped = tmp_path / "a wrapper", tmp_path / "wrapped"
    write(wrapper, '"$@"')
    write(wrapped, WRITES_OUTPUT)
    monkeypatch.setenv("CXX", f"'{wrapper}' {wrapped} -m64")
    assert find_compiler() == [str(wrapper), str(wrapped), "-m64"]
    before = build("float32", cache=tmp_path / "cache").path
    write(wrapped, WRITES_OUTPUT, "# of the next version")
    assert build("float32", cache=tmp_path / "cache").path != before
    monkeypatch.setenv("CXX", "'half a command")
    with pytest.raises(BuildError, match=r"\$CXX is"):
        find_compiler()


def test_sources_that_are_compiled_as_one_exist() -> None:
    listed = [source for unit in UNITS for source in unit]
    assert len(set(listed)) == len(listed)
    assert {f"{source}.cpp" for source in listed} <= {path.name for path in SOURCE_FOLDER.iterdir()}


def test_the_program_compiles_into_the_cache_and_ends_with_its_input(compiler: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    program = str(SOURCE_FOLDER.parent / "compilation")
    command = [sys.executable, "-I", "-S", program, "float32"]  # -S: without installed packages
    environment = os.environ | {"INFER_CACHE_DIR": str(folder)}
    write(compiler, WRITES_OUTPUT)
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE):
        pass
    assert len(list(folder.glob("*.so"))) <= 1
    for codes in ({0, COMPILED}, {0}):  # the program before may have been done
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as running:
            assert running.wait(30) in codes
    assert len(list(folder.glob("*.so"))) == 1
    write(compiler, f"echo started > {tmp_path}/fifo", f"echo $$ >> {tmp_path}/compilers", "exec sleep 600")
    os.mkfifo(tmp_path / "fifo")
    for _ in range(10):  # it ends at any moment, also while it starts the next compiler
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as running:
            (tmp_path / "fifo").read_text()  # waits for a compiler
        assert running.returncode != 0
        assert not list(folder.glob("cpu-kernels-building-*"))
    started = (tmp_path / "compilers").read_text().split()
    assert len(started) >= 10
    for each in started:
        with pytest.raises(ProcessLookupError):
            os.kill(int(each), 0)

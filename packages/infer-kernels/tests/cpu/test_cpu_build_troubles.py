"""Compiling the C++ kernels where compilers are slow, killed or wrapped, and where disks are full."""

import fcntl
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infer_kernels.cpu import build as building
from infer_kernels.cpu.build import COMPILED, SOURCE_FOLDER, UNITS, Build, BuildError, build, find_compiler

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

    def run_all(commands: list[list[str]], folder: Path, *, most_at_once: int) -> str:
        assert commands
        limits.append(most_at_once)
        (folder / "kernels.so").write_text("compiled")
        return "fatal error: Killed signal terminated program cc1plus" if most_at_once > 1 else ""

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(building, "_run_all", run_all)
    monkeypatch.setattr(building, "find_compiler", lambda: [sys.executable])
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
    def compile_elsewhere(command: list[str], folder: Path) -> str:
        assert command
        if folder.is_relative_to(tmp_path / "cache"):
            return "fatal error: error writing to /x.s: No space left on device"
        (folder / "kernels.so").write_text("compiled")
        return ""

    monkeypatch.setattr(building, "_compile_with", compile_elsewhere)
    monkeypatch.setattr(building, "find_compiler", lambda: [sys.executable])
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
    lock = (tmp_path / "cpu-kernels.lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def fail_meanwhile() -> None:
        lock.write(f"{name}\n`c++` failed: no luck")
        lock.close()

    monkeypatch.setattr(building, "_wait", fail_meanwhile)
    with pytest.raises(BuildError, match="`c\\+\\+` failed: no luck"):
        build("float32", cache=tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("CXX", str(compiler))
    assert build("float32", cache=tmp_path).path == path  # a later start tries again


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
    cache = tmp_path / "cache"
    command = [sys.executable, "-I", "-S", building.__file__, "float32"]  # -S: without installed packages
    environment = os.environ | {"INFER_CACHE_DIR": str(cache)}
    write(compiler, WRITES_OUTPUT)
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE):
        pass
    assert len(list(cache.glob("*.so"))) <= 1
    for codes in ({0, COMPILED}, {0}):  # the program before may have been done
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as program:
            assert program.wait(30) in codes
    assert len(list(cache.glob("*.so"))) == 1
    write(compiler, f"echo started > {tmp_path}/fifo", f"echo $$ >> {tmp_path}/compilers", "exec sleep 600")
    os.mkfifo(tmp_path / "fifo")
    for _ in range(10):  # it ends at any moment, also while it starts the next compiler
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as program:
            (tmp_path / "fifo").read_text()  # waits for a compiler
        assert program.returncode != 0
        assert not list(cache.glob("cpu-kernels-building-*"))
    compilers = (tmp_path / "compilers").read_text().split()
    assert len(compilers) >= 10
    for each in compilers:
        with pytest.raises(ProcessLookupError):
            os.kill(int(each), 0)

"""Which libraries take matrix instructions (AMX), and what is said where the system does not grant them."""

import logging
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from infer_kernels.cpu.compilation import SOURCE_FOLDER, Build, find_compiler
from infer_kernels.cpu.library import Library, library
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

pytestmark = needs_cpu_kernels

GRANTED, REFUSED = ["-DINFER_EMULATED_AMX=1"], ["-DINFER_EMULATED_AMX=0"]


def compiled(folder: Path, flags: list[str]) -> Path:
    """The part of the library that runs kernels, and says what they are compiled for."""
    path = folder / "kernels.so"
    command = [
        *find_compiler(),
        "-std=c++17",
        "-DELEMENT=bf16",
        "-fPIC",
        "-shared",
        "-pthread",
        "-w",
        *flags,
        str(SOURCE_FOLDER / "run.cpp"),
    ]
    subprocess.run([*command, "-o", str(path)], check=True)
    return path


def test_a_granted_library_names_what_it_takes(tmp_path: Path) -> None:
    made = Library(str(compiled(tmp_path, GRANTED)))
    assert made.instruction_set == "emulated AMX"
    assert not made.is_amx_refused


def test_a_cpu_without_them_is_refused_nothing(tmp_path: Path) -> None:
    made = Library(str(compiled(tmp_path, [])))
    assert "AMX" not in made.instruction_set
    assert not made.is_amx_refused


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64") or " amx_" in Path("/proc/cpuinfo").read_text(),
    reason="only an x86-64 without AMX is sure to refuse it",
)
def test_a_system_that_does_not_grant_what_the_compiler_took_is_asked(tmp_path: Path) -> None:
    made = Library(str(compiled(tmp_path, ["-mamx-tile", "-mamx-bf16", "-mamx-int8"])))
    assert "AMX" not in made.instruction_set
    assert made.is_amx_refused


def test_one_line_says_that_the_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = compiled(tmp_path, REFUSED)
    monkeypatch.setattr(sys.modules[Library.__module__], "build", lambda *_, **__: Build(path=path, compiler=""))
    with caplog.at_level(logging.INFO, logger="infer_kernels"):
        monkeypatch.setattr(sys.modules[Library.__module__], "_libraries", {})  # not what this process keeps
        made = library()
    assert made is not None
    assert "AMX" not in made.instruction_set
    (line,) = caplog.messages
    assert line == "CPU kernels compute without AMX, which this system does not grant; many rows take longer"

"""The engine's process compiles C++ kernels while it imports torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infer_engine.assembly.core import build_core
from infer_engine.ipc import kernel_compiler
from infer_engine.ipc.kernel_compiler import compiling_kernels
from infer_engine.model_runner.loading import rank_loading
from infer_engine.protocol import EngineConfig
from infer_kernels.cpu.compilation import COMPILED

COMPILER = """#!/bin/sh
for last; do :; done
echo "$@" > "$last"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, kernels switched on, and a compiler that writes its arguments."""
    monkeypatch.delenv("INFER_CPU_KERNELS", raising=False)
    compiler = tmp_path / "a-compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("INFER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compile_for(config: EngineConfig, cache: Path) -> list[str]:
    """Compile until the program is done; return the libraries."""
    with compiling_kernels(config) as program:
        if program is not None:
            assert program.wait(60) in (0, COMPILED)
    return sorted(path.name.split("-")[2] for path in cache.glob("*.so"))


def test_the_kernels_of_the_models_dtype_are_compiled(cache: Path, tmp_path: Path) -> None:
    assert compile_for(EngineConfig(device="cpu"), cache) == ["bfloat16"]  # the demo model's
    assert compile_for(EngineConfig(device="cpu", dtype="float16"), cache) == ["bfloat16", "float16"]
    broken = tmp_path / "model"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({}))
    assert len(compile_for(EngineConfig(device="cpu", model=str(broken)), cache)) == 2  # loading it says what is wrong


@pytest.mark.parametrize(("device", "driver", "count"), [("cuda", "none", 0), ("auto", "", 0), ("auto", "none", 1)])
def test_nothing_is_compiled_for_a_gpu(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, driver: str, count: int
) -> None:
    monkeypatch.setattr(kernel_compiler, "NVIDIA_DRIVER", tmp_path / driver)
    assert len(compile_for(EngineConfig(device=device), cache)) == count


def test_nothing_is_compiled_where_kernels_are_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFER_CPU_KERNELS", "0")
    assert compile_for(EngineConfig(device="cpu"), cache) == []


def test_the_compiler_starts_without_torch() -> None:
    code = "import sys, infer_engine.ipc.kernel_compiler; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_loading_asks_for_the_kernels_of_the_models_dtype_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def noted(dtype: str | None = None) -> None:
        asked.append(dtype)

    monkeypatch.setattr(rank_loading, "library", noted)
    build_core(EngineConfig(device="cpu", dtype="float32"))
    assert asked == ["float32"]

"""What is done and said before the first kernel: GPUs that are too old, Triton's cache, assembler and launcher."""

import logging
import os
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.nvidia.compiler import get_ptxas_version

from infer_kernels import gpu_start
from infer_kernels.compiler_versions import compiler_versions
from infer_kernels.gpu_start import (
    ASSEMBLER_VARIABLE,
    CACHE_VARIABLE,
    GpuUnusableError,
    cache_folder,
    prepare_gpu,
    require_capability,
    require_launcher,
    use_assembler_for_driver,
    use_writable_cache,
)
from infer_kernels.resolve_token_ids import resolve_token_ids
from infer_proofs.kernels.compiled.ahead_of_time import compile_afresh


class Driver:
    """Triton's driver, as far as it is asked; it fails as it does without a compiler."""

    def __init__(self, error: Exception | None) -> None:
        self.num_prepared = 0
        self._error = error

    @property
    def active(self) -> "Driver":
        return self

    @property
    def utils(self) -> object:
        self.num_prepared += 1
        if self._error is not None:
            raise self._error
        return object()


def test_the_launcher_is_prepared_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(None)
    monkeypatch.setattr(gpu_start, "driver", driver)
    require_launcher()
    assert driver.num_prepared == 1


def test_an_error_names_the_compiler_and_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_start, "driver", Driver(RuntimeError("Failed to find C compiler.")))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GpuUnusableError, match=r"clang or gcc in `PATH`\): none\. .*Python\.h, .*Failed to find"):
        require_launcher()
    monkeypatch.setenv("CC", "/usr/bin/some-cc")
    with pytest.raises(GpuUnusableError, match="/usr/bin/some-cc"):
        require_launcher()


def test_a_gpu_before_ampere_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpuUnusableError, match=r"^Tesla T4 has compute capability 7\.5, .* 8\.0 and later .*cpu"):
        require_capability((7, 5), "Tesla T4")
    require_capability((8, 0), "NVIDIA A100")
    require_capability((12, 0), "NVIDIA GeForce RTX 5090")
    monkeypatch.setattr(gpu_start, "HAS_TRITON", False)
    with pytest.raises(GpuUnusableError, match=r"install `infer-kernels\[triton\]`.*cpu"):
        prepare_gpu(torch.device("cuda"), driver_cuda=(13, 0))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, below which no folder can be made, where Triton's cache should be."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(file / "cache"))
    monkeypatch.setenv("INFER_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return file


def test_kernels_are_kept_beside_those_for_cpus_where_tritons_cache_cannot_be_written(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        use_writable_cache()
        assert cache_folder() == file.parent / "kernels" / "triton"
        assert os.environ[CACHE_VARIABLE] == str(cache_folder())  # which ranks and other processes inherit
        assert f"{file}/cache cannot be written (Not a directory); {cache_folder()} is used" in caplog.text
        use_writable_cache()  # it is one that can be written
    assert len(caplog.records) == 1


def test_kernels_are_compiled_into_a_temporary_folder_where_nothing_else_can_be_written(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("INFER_CACHE_DIR", str(file))
    with caplog.at_level(logging.WARNING):
        use_writable_cache()
    assert cache_folder().name.startswith("infer-triton-")
    assert "kernels are compiled at every start" in caplog.text
    monkeypatch.setattr("tempfile.tempdir", str(file))
    monkeypatch.setenv(CACHE_VARIABLE, str(file / "cache"))
    with pytest.raises(GpuUnusableError, match=f"{file}/cache cannot be written.*set `{CACHE_VARIABLE}`"):
        use_writable_cache()


def test_a_cache_that_can_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "made" / "here"))
    use_writable_cache()
    assert cache_folder() == tmp_path / "made" / "here"


def machine_code(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return a kernel that is compiled for a GPU."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with compile_afresh(capability) as log:
        resolve_token_ids(torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int64))
    return log.compiled[0].machine_code


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no assembler be chosen before a test, nor after it."""
    monkeypatch.setenv(ASSEMBLER_VARIABLE, "")
    monkeypatch.delenv(ASSEMBLER_VARIABLE)


@pytest.mark.parametrize("capability", [80, 90, 100, 120])
def test_a_driver_for_cuda_12_gets_code_that_it_can_load(
    capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_ptxas_version.cache_clear()
    use_assembler_for_driver(12)
    code = machine_code(capability, tmp_path, monkeypatch)
    assert code[8] == 7 or b"release 12." in code  # the ABI of CUDA 12, or the newer one as its last releases write it
    get_ptxas_version.cache_clear()


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_the_versions_are_those_of_the_assembler_that_compiles(capability: tuple[int, int]) -> None:
    found = compiler_versions(capability)
    assert found.triton == triton.__version__
    assert f"V{found.assembler}" in get_ptxas_version(10 * capability[0])
    assert found.assembled_by in str(found)


def test_an_assembler_that_cannot_be_asked_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tmp_path / "ptxas"
    chosen.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n")
    chosen.chmod(0o755)
    monkeypatch.setenv(ASSEMBLER_VARIABLE, str(chosen))
    found = compiler_versions((10, 0))
    assert (found.assembler, found.assembled_by) == ("13.0.88", "ptxas-blackwell")
    chosen.write_text('#!/bin/sh\ntest -n "$1" && echo nothing, release 13.0\n')
    assert compiler_versions((10, 0)).assembler is None


def test_an_assembler_that_the_user_chose_or_that_fits_the_driver_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASSEMBLER_VARIABLE, "/usr/local/cuda/bin/ptxas")
    use_assembler_for_driver(12)
    assert os.environ[ASSEMBLER_VARIABLE] == "/usr/local/cuda/bin/ptxas"
    monkeypatch.delenv(ASSEMBLER_VARIABLE)
    use_assembler_for_driver(13)
    assert ASSEMBLER_VARIABLE not in os.environ

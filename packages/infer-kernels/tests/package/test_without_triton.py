"""A machine without Triton (macOS, Windows, PyTorch for CPUs): the ops compute, and a launch says what is missing."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infer_kernels import optional_triton

PROGRAM = """
import pkgutil, sys
import torch
import infer_kernels
from infer_kernels.reference import rms_norm_reference

for module in pkgutil.walk_packages(infer_kernels.__path__, "infer_kernels."):
    __import__(module.name)
x, weight = torch.randn(3, 64), torch.randn(64)
torch.testing.assert_close(infer_kernels.rms_norm(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6))
infer_kernels.dispatch.TRITON_DEVICES.add("cpu")
infer_kernels.rms_norm(x, weight, 1e-6)
"""


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names of `optional_triton` where Triton is not installed."""
    monkeypatch.setitem(sys.modules, "triton", None)
    return SimpleNamespace(**runpy.run_path(optional_triton.__file__))


@pytest.mark.covers("command-line-and-library/platforms")
def test_every_module_is_imported_and_ops_compute_on_the_cpu(tmp_path: Path) -> None:
    """`vllm-project/vllm#17473`: a placeholder lacked a name that a module of kernels uses when it is imported."""
    (tmp_path / "triton.py").write_text("raise ModuleNotFoundError(name='triton')")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=200)
    last = "infer_kernels.optional_triton.TritonMissingError: `_rms_norm_kernel` needs Triton. Triton, in which "
    assert ran.stderr.splitlines()[-1].startswith(last), ran.stderr


def test_kernels_are_defined_with_options_or_without_and_not_launched(without: Any) -> None:
    four = without.tl.constexpr(4)

    def kernel(size: object = four) -> None:
        raise AssertionError(size)

    for defined in (without.triton.jit(kernel), without.triton.jit(do_not_specialize=["size"])(kernel)):
        with pytest.raises(without.TritonMissingError, match=r"kernel` needs Triton.*`infer-kernels\[triton\]`"):
            defined[(1,)](4)
        with pytest.raises(without.TritonMissingError, match="kernel` needs Triton"):
            defined(4)
    assert without.triton.constexpr_function(cdiv := lambda a, b: -(-a // b)) is cdiv


def test_what_is_asked_of_triton_itself_is_named(without: Any) -> None:
    assert not without.HAS_TRITON
    for asked, name in ((without.triton, "triton.knobs"), (without.driver, "triton.runtime.driver.active")):
        with pytest.raises(without.TritonMissingError, match=f"`{name}` needs Triton"):
            getattr(asked, name.rpartition(".")[2])


def test_a_triton_that_is_there_and_broken_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "triton.py").write_text("import triton_C_library")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="triton_C_library"):
        runpy.run_path(optional_triton.__file__)


def test_triton_where_it_is_installed_is_taken_as_it_is() -> None:
    triton = pytest.importorskip("triton")
    assert (optional_triton.triton, optional_triton.tl) == (triton, triton.language)
    assert optional_triton.HAS_TRITON

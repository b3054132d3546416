"""What tests share: a fixed seed, the paths on which an op computes, and Triton's interpreter.

Triton decides when a kernel is decorated whether it will be interpreted or compiled, so one process cannot do both.
With `TRITON_INTERPRET=1` pytest runs the tests in `interpreter/` and those in `ops/`, over Triton's kernels; without it
all but `interpreter/`, those in `ops/` over C++ and over plain PyTorch. It skips the rest.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from infer_kernels.cpu import library
from infer_kernels.cpu.compilation import ELEMENTS
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

TESTED_DTYPES = os.environ.get("INFER_TESTED_DTYPES", " ".join(ELEMENTS)).split()
"""Dtypes whose C++ kernels are tested; those of others are not compiled."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TESTS = Path(__file__).parent
ON_CPU = [pytest.param("c++", marks=needs_cpu_kernels), "pytorch"]

if INTERPRETED:
    from infer_proofs.kernels.interpreted.interpreter import interpret_kernels

    interpret_kernels()


@pytest.fixture(autouse=True, scope="session")
def tested_dtypes() -> Iterator[None]:
    """Ops in other dtypes than `TESTED_DTYPES` compute with plain PyTorch, so that nothing is compiled for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "infer_kernels.dispatch.library", lambda dtype: library(dtype) if dtype in TESTED_DTYPES else None
        )
        yield


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test draws the same numbers each time."""
    torch.manual_seed(0)


@pytest.fixture
def plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops on a CPU compute with plain PyTorch, as on a machine without a compiler."""
    monkeypatch.setattr("infer_kernels.dispatch.library", lambda _: None)


@pytest.fixture(params=ON_CPU, scope="module")
def cpu_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ops on a CPU compute with C++ kernels and with plain PyTorch."""
    yield from compute_with(request.param)


@pytest.fixture(params=["triton"] if INTERPRETED else ON_CPU, scope="module")
def every_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ops compute with C++ kernels and with plain PyTorch, and with Triton's in a process that interprets them."""
    yield from compute_with(request.param)


def compute_with(path: str) -> Iterator[str]:
    """Let ops on a CPU compute with kernels or without while a test runs."""
    with pytest.MonkeyPatch.context() as patch:
        if path == "pytorch":
            patch.setattr("infer_kernels.dispatch.library", lambda _: None)
        yield path


def has_untested_dtype(item: pytest.Item) -> bool:
    """Return whether a test is that of a dtype which is left out."""
    params = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    dtypes = {str(each).removeprefix("torch.") for each in params if isinstance(each, torch.dtype)}
    return bool(dtypes & (ELEMENTS.keys() - set(TESTED_DTYPES)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests of dtypes that are not wanted, and skip those that this process cannot run."""
    items[:] = [item for item in items if not has_untested_dtype(item)]
    for item in items:
        if not item.path.is_relative_to(TESTS) or item.path.is_relative_to(TESTS / "ops"):
            continue
        if item.path.is_relative_to(TESTS / "interpreter") and not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="interpreted: TRITON_INTERPRET=1 pytest tests/{interpreter,ops}"))
        elif INTERPRETED and not item.path.is_relative_to(TESTS / "interpreter"):
            item.add_marker(pytest.mark.skip(reason="compiled: pytest without TRITON_INTERPRET"))

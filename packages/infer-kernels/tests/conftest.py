"""What tests share: a fixed seed, the paths on which an op computes, and the choice of tests that a process runs.

A process runs the tests of its paths: see `infer_proofs.kernels.paths`. The fixtures of a test say which those are.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from infer_kernels.cpu import library
from infer_kernels.cpu.compilation import ELEMENTS
from infer_proofs.kernels.paths import EVERY_PATH, INTERPRETED, ON_CPU, TRITON_OR_PYTORCH

TESTED_DTYPES = os.environ.get("INFER_TESTED_DTYPES", " ".join(ELEMENTS)).split()
"""Dtypes whose C++ kernels are tested; those of others are not compiled."""
TESTS = Path(__file__).parent

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


@pytest.fixture(params=EVERY_PATH, scope="module")
def every_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ops compute with C++ kernels and with plain PyTorch, and with Triton's in a process that interprets them."""
    yield from compute_with(request.param)


@pytest.fixture(params=TRITON_OR_PYTORCH, scope="module")
def triton_or_pytorch(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ops without a C++ kernel compute with plain PyTorch, and with Triton's in a process that interprets them."""
    yield from compute_with(request.param)


@pytest.fixture(params=ON_CPU, scope="module")
def cpu_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ops on a CPU compute with C++ kernels and with plain PyTorch."""
    yield from compute_with(request.param)


@pytest.fixture
def triton_only() -> None:
    """Only Triton's kernels are tested."""
    assert INTERPRETED


@pytest.fixture
def cpu_only() -> None:
    """Only the paths of a CPU are tested."""
    assert not INTERPRETED


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


def is_of_this_process(item: pytest.Item) -> bool:
    """Return whether this process has the paths of a test: without fixtures that say more they are those of a CPU."""
    names = set(item.fixturenames) if isinstance(item, pytest.Function) else set[str]()
    if not item.path.is_relative_to(TESTS):
        return True
    if names & {"every_path", "triton_or_pytorch"}:
        return ("cpu_only" if INTERPRETED else "triton_only") not in names
    return ("triton_only" in names) == INTERPRETED


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of dtypes that are not wanted, and those of another process's paths."""
    others = [item for item in items if has_untested_dtype(item) or not is_of_this_process(item)]
    items[:] = [item for item in items if not has_untested_dtype(item) and is_of_this_process(item)]
    config.hook.pytest_deselected(items=others)

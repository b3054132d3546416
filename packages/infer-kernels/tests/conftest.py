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

from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TESTS = Path(__file__).parent
ON_CPU = [pytest.param("c++", marks=needs_cpu_kernels), "pytorch"]

if INTERPRETED:
    from infer_proofs.kernels.interpreted.interpreter import interpret_kernels

    interpret_kernels()


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that this process cannot run."""
    for item in items:
        if not item.path.is_relative_to(TESTS) or item.path.is_relative_to(TESTS / "ops"):
            continue
        if item.path.is_relative_to(TESTS / "interpreter") and not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="interpreted: TRITON_INTERPRET=1 pytest tests/{interpreter,ops}"))
        elif INTERPRETED and not item.path.is_relative_to(TESTS / "interpreter"):
            item.add_marker(pytest.mark.skip(reason="compiled: pytest without TRITON_INTERPRET"))

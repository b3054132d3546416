"""What tests share: a fixed seed, both ways to compute on a CPU, and Triton's interpreter for those in `interpreter/`.

Triton decides when a kernel is decorated whether it will be interpreted or compiled, so one process cannot do both.
With `TRITON_INTERPRET=1` pytest runs the tests in `interpreter/`, without it all others, and skips the rest.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from infer_kernels.checks.cpu_kernels import needs_cpu_kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FOLDER = Path(__file__).parent / "interpreter"

if INTERPRETED:
    from infer_kernels.checks.interpreted.interpreter import interpret_kernels

    interpret_kernels()


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test draws the same numbers each time."""
    torch.manual_seed(0)


@pytest.fixture
def plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops on a CPU compute with plain PyTorch, as on a machine without a compiler."""
    monkeypatch.setattr("infer_kernels.dispatch.library", lambda _: None)


@pytest.fixture(params=[pytest.param("c++", marks=needs_cpu_kernels), "pytorch"], scope="module")
def cpu_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ops on a CPU compute with C++ kernels and with plain PyTorch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pytorch":
            patch.setattr("infer_kernels.dispatch.library", lambda _: None)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that this process cannot run."""
    ours = [item for item in items if item.path.is_relative_to(FOLDER.parent)]
    for item in ours:
        if item.path.is_relative_to(FOLDER) and not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="interpreted: TRITON_INTERPRET=1 pytest tests/interpreter"))
        elif INTERPRETED and not item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.skip(reason="compiled: pytest without TRITON_INTERPRET"))

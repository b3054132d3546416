"""What all tests here share: a fixed seed, and Triton's interpreter for those in `interpreter/`.

Triton decides when a kernel is decorated whether it will be interpreted or compiled, so one process cannot do both.
With `TRITON_INTERPRET=1` pytest runs the tests in `interpreter/`, without it all others, and skips the rest.
"""

import os
from pathlib import Path

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FOLDER = Path(__file__).parent / "interpreter"

if INTERPRETED:
    from infer_kernels.testing.interpreter import interpret_kernels

    interpret_kernels()


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test draws the same numbers each time."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that this process cannot run."""
    ours = [item for item in items if item.path.is_relative_to(FOLDER.parent)]
    for item in ours:
        if item.path.is_relative_to(FOLDER) and not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="interpreted: TRITON_INTERPRET=1 pytest tests/interpreter"))
        elif INTERPRETED and not item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.skip(reason="compiled: pytest without TRITON_INTERPRET"))

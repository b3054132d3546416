"""Checkpoints that several modules serve, written once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from infer_engine.testing.models import save_servable


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What gives each family's checkpoint."""

    @cache
    def folder_of(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        save_servable(family, folder)
        return folder

    return folder_of

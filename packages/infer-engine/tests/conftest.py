"""Checkpoints that several modules serve, written once in each process that runs tests."""

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from infer_proofs.engine.models import Twin

FAMILIES = ("llama", "qwen3", "gemma3")
WHOLE = "gemma3"  # with windows in some layers and none in others it has the most to go wrong


@pytest.fixture(scope="session")
def twin_of(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[str], Twin]":
    """Return a function that gives each family's checkpoint and its `transformers` model."""
    from infer_proofs.engine.models import (  # noqa: PLC0415 - the process that only hands out tests needs no torch
        Twin,
        save_servable,
    )

    @cache
    def twin_of(family: str) -> "Twin":
        folder = tmp_path_factory.mktemp(family)
        return Twin(folder=folder, model=save_servable(family, folder))

    return twin_of


@pytest.fixture(scope="session")
def folder_of(twin_of: "Callable[[str], Twin]") -> Callable[[str], Path]:
    """Return a function that gives each family's checkpoint."""
    return lambda family: twin_of(family).folder


@pytest.fixture(scope="session")
def shallow_folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives each family's checkpoint of a few layers, two where they can do, of both kinds.

    Interpreted kernels take seconds for each layer.
    """
    from infer_proofs.engine.models import save_servable  # noqa: PLC0415 - as above
    from infer_proofs.models import TINY_FAMILIES  # noqa: PLC0415

    @cache
    def shallow_folder_of(family: str) -> Path:
        fields, folder = TINY_FAMILIES[family].fields, tmp_path_factory.mktemp(f"shallow-{family}")
        kinds = list(dict.fromkeys(fields.get("layer_types", ())))
        fewer = {"num_hidden_layers": 2, **({"layer_types": kinds} if kinds else {})}
        # Layers without keys of their own have one of their kind before them.
        save_servable(family, folder, **({} if fields.get("num_kv_shared_layers") else fewer))
        return folder

    return shallow_folder_of


@pytest.fixture(params=[pytest.param(name, marks=() if name == WHOLE else pytest.mark.full) for name in FAMILIES])
def family(request: pytest.FixtureRequest) -> str:
    """Every family, one of them in the quick run; a test that says more parametrizes `family` itself."""
    name: str = request.param
    return name


@pytest.fixture
def twin(family: str, twin_of: "Callable[[str], Twin]") -> "Twin":
    """The family's checkpoint and its `transformers` model."""
    return twin_of(family)


@pytest.fixture
def folder(family: str, folder_of: Callable[[str], Path]) -> Path:
    """The family's checkpoint."""
    return folder_of(family)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cores end in their own time: tests share the machine."""
    from infer_proofs.engine.cores import GIVE_UP_S  # noqa: PLC0415 - as above

    monkeypatch.setattr("infer_engine.frontend.async_engine.CLOSE_TIMEOUT_S", GIVE_UP_S)


@pytest.fixture
def no_file_of_ranks_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test a folder of its own for temporary files, in which none may be left of the ranks."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert not list(tmp_path.glob("infer-ranks-*"))

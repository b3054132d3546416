"""What `pip install -e .` does: the folder's module can be imported, and its entry point is found."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from infer_models.config.registry import PLUGINS, REGISTERED

FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package as metadata and a path, so that nothing is registered until a checkpoint asks for it."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site")
    info = site / f"infer_arcee-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = [f"{name} = {value}" for name, value in project["entry-points"][PLUGINS].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{PLUGINS}]", *points]))
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.syspath_prepend(site)
    yield
    REGISTERED.pop("arcee", None)
    sys.modules.pop("infer_arcee", None)

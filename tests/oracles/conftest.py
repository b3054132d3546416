"""Oracles: what the world has written down itself, and figures of disagreement with it that only fall.

An oracle compares many cases with an outside answer and hands what differs to `figure`. A sample of each runs in
`nox -s tests`; cases marked `full` run in `nox -s oracles` alone.
"""

import hashlib
import os
import tarfile
import tomllib
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURES = Path(__file__).with_name("figures.toml")
CACHE = Path(os.environ.get("INFER_CACHE_DIR", Path.home() / ".cache" / "infer")) / "oracles"

Figure = Callable[[str, int, Sequence[str]], None]


def _unpacked_source(name: str) -> Path:
    """Return the folder of a package's source, which is downloaded once to where the lock file says; skips offline."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    (package,) = (package for package in lock["package"] if package["name"] == name)
    folder = CACHE / f"{name.replace('-', '_')}-{package['version']}"
    if folder.exists():
        return folder
    archive = CACHE / f"{folder.name}.{os.getpid()}.tar.gz"
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(package["sdist"]["url"], timeout=120) as reply:  # noqa: S310 - of the lock file
            content = reply.read()
    except OSError as error:
        pytest.skip(f"the source of {name} cannot be had: {error}")
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert digest == package["sdist"]["hash"]
    archive.write_bytes(content)
    place = CACHE / f"{folder.name}.{os.getpid()}"
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    archive.unlink()
    try:
        next(place.iterdir()).rename(folder)
    except OSError:  # another process was first
        assert folder.exists()
    return folder


@pytest.fixture(scope="session")
def llama_cpp() -> Path:
    """The source of llama.cpp inside `llama-cpp-python`: published templates, vocabularies, its converter."""
    return _unpacked_source("llama-cpp-python") / "vendor" / "llama.cpp"


@pytest.fixture(scope="session")
def schema_corpus() -> Path:
    """A public corpus of JSON schemas, one a line with values that fit and do not (`INFER_SCHEMA_CORPUS`)."""
    path = Path(os.environ.get("INFER_SCHEMA_CORPUS", ROOT.parent / "shared" / "data" / "schemas.jsonl.gz"))
    if not path.exists():
        pytest.skip(f"there is no corpus of schemas at {path}; INFER_SCHEMA_CORPUS names it")
    return path


@pytest.fixture
def figure() -> Figure:
    """Return a function that compares disagreements with the recorded figure: name, number of cases, what differs.

    More than recorded fails. Fewer fail too where all recorded cases ran: the record has to be lowered.
    """
    recorded: dict[str, Any] = tomllib.loads(FIGURES.read_text(encoding="utf-8"))

    def compare(name: str, cases: int, wrong: Sequence[str]) -> None:
        row = recorded[name]
        examples = "\n".join(wrong[:20])
        assert cases > 0
        assert len(wrong) <= row["wrong"], (
            f"{name}: {len(wrong)} of {cases} differ, {row['wrong']} recorded:\n{examples}"
        )
        if cases == row["cases"]:
            assert len(wrong) == row["wrong"], f"{name}: {len(wrong)} of {cases} differ; lower the record in {FIGURES}"

    return compare

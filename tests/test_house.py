"""What can be counted of the house: the length of files, the modules of a folder, the lines of each part.

The numbers of exceptions are what is there. They may fall, and then they are to be lowered here.
"""

import subprocess
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = {".py", ".cpp", ".h", ".js", ".css", ".html"}
MAX_LINES = 400
MAX_MODULES = 12

LONG_FILES: dict[str, int] = {
}
"""Files of more lines than `MAX_LINES`, with their number."""

LARGE_FOLDERS: dict[str, int] = {
}
"""Folders of more modules than `MAX_MODULES`, with their number."""

CEILINGS: dict[str, int] = {
}
"""By part, the most lines of code that it may have: about two in a hundred above what it has."""


@cache
def num_lines() -> dict[PurePosixPath, int]:
    """Return the lines of each file of code: of the repository, or of the folder where there is no git."""
    parts = ["packages", "benchmarks", "tests", "examples"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *parts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    paths: Iterable[Path] = [ROOT / line for line in listed.stdout.splitlines()]
    if listed.returncode:
        paths = [path for part in parts for path in (ROOT / part).rglob("*") if "__pycache__" not in path.parts]
    return {
        PurePosixPath(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in paths
        if path.suffix in CODE and path.is_file()
    }


def num_modules() -> Counter[str]:
    """Return the number of Python modules in each folder, `__init__` and `conftest` left out."""
    return Counter(
        path.parent.as_posix()
        for path in num_lines()
        if path.suffix == ".py" and path.stem not in ("__init__", "conftest")
    )


def lines_of_parts() -> dict[str, int]:
    """Return the lines of code in each part that has a ceiling."""
    return {
        part: sum(lines for path, lines in num_lines().items() if path.is_relative_to(part)) for part in CEILINGS
    }


def test_a_file_has_at_most_400_lines() -> None:
    long = {path.as_posix(): lines for path, lines in num_lines().items() if lines > MAX_LINES}
    assert long == LONG_FILES


def test_a_folder_has_at_most_12_modules() -> None:
    large = {folder: count for folder, count in num_modules().items() if count > MAX_MODULES}
    assert large == LARGE_FOLDERS


def test_every_part_has_a_ceiling() -> None:
    assert {path for path in num_lines() if not any(path.is_relative_to(part) for part in CEILINGS)} == set()


@pytest.mark.parametrize("part", CEILINGS)
def test_no_part_grows_unnoticed(part: str) -> None:
    counted = lines_of_parts()
    table = "\n".join(f"{name:32} {lines:7,} of {CEILINGS[name]:7,}" for name, lines in counted.items())
    most, lines = CEILINGS[part], counted[part]
    assert lines <= most, f"`{part}` has {lines:,} lines: shorten it, or raise its ceiling and say why.\n{table}"
    assert lines >= 0.9 * most, f"`{part}` has {lines:,} lines: lower its ceiling, {most:,}, to what it has.\n{table}"

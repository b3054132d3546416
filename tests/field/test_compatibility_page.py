"""Each row of `docs/compatibility.md` names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
TESTS = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("packages/*/tests/**/test_*.py")]
SECTIONS = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def rows(section: str) -> list[list[str]]:
    """Return the cells of a section's tables, the heads left out."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    table = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table if row[0].strip() not in ("what", "---")]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_names_tests_that_exist(section: str) -> None:
    known = {name for path in TESTS for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    found = rows(section)
    assert found
    for row in found:
        assert len(row) == 3, row
        named = re.findall(r"`(test_\w+)`", row[2])
        assert named, row
        assert set(named) <= known, row

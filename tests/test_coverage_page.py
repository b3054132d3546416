"""`docs/coverage.md` and its parts lead somewhere: the files are there, and so are the tests that they name."""

import re
from functools import cache
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
INDEX = DOCS / "coverage.md"
PARTS = sorted((DOCS / "coverage").glob("*.md"))
TESTS, BENCHMARKS, PACKAGES = DOCS.parent / "tests", DOCS.parent / "benchmarks" / "tests", DOCS.parent / "packages"
MAX_LINES = 400

Row = tuple[str, str, str]


def links(text: str) -> list[tuple[str, str]]:
    """Return (text, target) of each link."""
    return re.findall(r"\[([^]]+)\]\(([^)]+)\)", text)


def rows(page: Path) -> list[Row]:
    """Return (what, code, test) of each row of the page's tables."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if not line.startswith("| what ")]
    assert all(len(row) == 3 for row in cells)
    return [(what.strip(), code.strip(), test.strip()) for what, code, test in cells]


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Return the tests that a file defines: functions, methods, and the cases of Hypothesis's machines."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^ *(?:async )?def (test_\w+)|^(Test\w+) = ", text, re.MULTILINE)
    return frozenset(function or machine for function, machine in found)


def test_index_has_every_part_with_its_rows_and_its_gaps() -> None:
    table = re.findall(
        r"^\| \[[^]]+\]\(([^)]+)\) \| (\d+) \| (\d+) \|$", INDEX.read_text(encoding="utf-8"), re.MULTILINE
    )
    counted = {DOCS / target: (int(num_rows), int(num_gaps)) for target, num_rows, num_gaps in table}
    assert counted == {part: (len(rows(part)), sum("**" in test for _, _, test in rows(part))) for part in PARTS}
    assert sum(num_rows for num_rows, _ in counted.values()) > 200


@pytest.mark.parametrize("page", [INDEX, *PARTS], ids=lambda page: page.name)
def test_page_is_of_readable_length_and_leads_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert [target for _, target in links(text) if not (page.parent / target).is_file()] == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_row_has_its_code_and_its_test_or_says_what_is_missing(part: Path) -> None:
    for what, code, test in rows(part):
        assert links(code) or (code == "none" and "**missing" in test), what
        assert links(test) or "**" in test, what


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_named_tests_are_in_the_files_that_they_lead_to(part: Path) -> None:
    named = [(name.strip("`"), part.parent / target) for _, _, test in rows(part) for name, target in links(test)]
    assert named
    assert [name for name, path in named if name not in defined_in(path.resolve())] == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_tests_named_without_a_link_exist_too(part: Path) -> None:
    known = {
        name
        for path in (*TESTS.glob("**/test_*.py"), *BENCHMARKS.glob("test_*.py"), *PACKAGES.glob("*/tests/**/test_*.py"))
        for name in defined_in(path)
    }
    assert known
    assert set(re.findall(r"`(test_\w+)`", part.read_text(encoding="utf-8"))) <= known

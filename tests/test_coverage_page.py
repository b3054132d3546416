"""`docs/coverage.md` and its parts lead somewhere: the files are there, and so are the tests that they name."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
INDEX = DOCS / "coverage.md"
PARTS = sorted((DOCS / "coverage").glob("*.md"))
ROOT = DOCS.parent
TESTS, BENCHMARKS, PACKAGES = ROOT / "tests", ROOT / "benchmarks" / "tests", ROOT / "packages"
OTHER_SESSIONS = {
    "benchmarks/tests": "tests_bench",
    "packages/infer-ray/tests": "ray",
    "tests/browser": "browser",
    "tests/simulated_gpu": "simulated_gpu",
}
"""By folder whose tests `nox -s tests`, the README's command, leaves out: the session that runs them."""
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


@cache
def left_out_in(path: Path) -> frozenset[str]:
    """Return the tests of a file all of whose cases are marked `full`, which `nox -s tests` leaves out."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions = [node for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(node.name for node in functions if "pytest.mark.full" in map(ast.unparse, node.decorator_list))


def session_of(name: str, path: Path) -> str:
    """Return the session of the noxfile that runs a test."""
    for folder, session in OTHER_SESSIONS.items():
        if path.is_relative_to(ROOT / folder):
            return session
    return "tests_full" if name in left_out_in(path) else "tests"


def test_index_has_every_part_with_its_rows_and_its_gaps() -> None:
    table = re.findall(
        r"^\| \[[^]]+\]\(([^)]+)\) \| (\d+) \| (\d+) \|$", INDEX.read_text(encoding="utf-8"), re.MULTILINE
    )
    counted = {DOCS / target: (int(num_rows), int(num_gaps)) for target, num_rows, num_gaps in table}
    assert counted == {part: (len(rows(part)), sum("**" in test for _, _, test in rows(part))) for part in PARTS}
    num_rows, num_gaps = map(sum, zip(*counted.values(), strict=True))
    assert num_rows > 200
    assert f"\n| all | {num_rows} | {num_gaps} |\n" in INDEX.read_text(encoding="utf-8")


def test_index_lists_every_gap_and_nothing_else() -> None:
    listed = re.findall(
        r"^\| (.+) \(\[[^]]+\]\(([^)]+)\)\) \| [^|]+ \|$", INDEX.read_text(encoding="utf-8"), re.MULTILINE
    )
    gaps = [(what, f"coverage/{part.name}") for part in PARTS for what, _, test in rows(part) if "**" in test]
    assert sorted(listed) == sorted(gaps)


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


def test_sessions_are_those_of_the_noxfile_and_the_readme() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert {*OTHER_SESSIONS.values(), "tests", "tests_full"} <= set(
        re.findall(r"^def (\w+)\(session", noxfile, re.MULTILINE)
    )
    assert "uv run nox -s tests\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    [of_tests] = re.findall(r"^def tests\(.*?\n\n\n", noxfile, re.MULTILINE | re.DOTALL)
    assert of_tests.count('"not full"') == 3
    assert not any(folder in of_tests for folder in OTHER_SESSIONS)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_row_has_a_test_that_the_readmes_command_runs_or_says_which_session_does(part: Path) -> None:
    head = part.read_text(encoding="utf-8").split("\n| what ")[0]
    for what, _, test in rows(part):
        sessions = {session_of(name.strip("`"), (part.parent / target).resolve()) for name, target in links(test)}
        if sessions and "tests" not in sessions:
            bold = "".join(re.findall(r"\*\*(.*?)\*\*", test))
            assert any(f"`nox -s {session}`" in bold + head for session in sessions), what

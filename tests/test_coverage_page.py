"""`docs/coverage.md` and its parts are written from rows and from the markers of tests, which fit together."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.coverage_pages.markers import OTHER_SESSIONS, covering_tests
from scripts.coverage_pages.pages import written_pages
from scripts.coverage_pages.rows import read_pages
from scripts.coverage_pages.rules import faults

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "coverage.md"
PARTS = sorted((ROOT / "docs" / "coverage").glob("*.md"))
MAX_LINES = 400

ROWS = """\
title = "Cache"

[[section]]
title = "Blocks"

[section.row.reuse]
what = "Blocks are used again, or `a|b`; [more](more.md)"
code = ["src/blocks.py"]

[section.row.speed]
what = "In no time"
code = ["src/blocks.py", "src/deep/blocks.py"]
gap = "no test measures it"
"""
INDEX_HEAD = "# What is covered\n\nBy hand.\n\n"
TESTS = """\
import pytest


@pytest.mark.covers("cache/reuse")
@pytest.mark.parametrize("size", [1, 2])
def test_a_block_is_used_again(size: int) -> None: ...
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a page of two rows and one test."""
    files = {
        "docs/coverage.md": INDEX_HEAD,
        "docs/coverage/1-cache.toml": ROWS,
        "src/blocks.py": "",
        "src/deep/blocks.py": "",
        "packages/infer-cache/tests/test_blocks.py": TESTS,
        "benchmarks/tests/test_speed.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def faults_of(tree: Path) -> list[str]:
    return faults(tree, read_pages(tree / "docs" / "coverage"), covering_tests(tree))


def test_rows_and_markers_fit_together() -> None:
    tests = covering_tests(ROOT)
    assert len(tests) > 500
    assert faults(ROOT, read_pages(ROOT / "docs" / "coverage"), tests) == []


def test_pages_are_what_nox_s_coverage_writes() -> None:
    written = written_pages(ROOT)
    assert sorted(written) == sorted([INDEX, *PARTS])
    assert [path.name for path, text in written.items() if path.read_text(encoding="utf-8") != text] == []


@pytest.mark.parametrize("page", [INDEX, *PARTS], ids=lambda page: page.name)
def test_page_is_of_readable_length_and_leads_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets
    assert [target for target in targets if not (page.parent / target).is_file()] == []


def test_sessions_are_those_of_the_noxfile_and_the_readme() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert {*OTHER_SESSIONS.values(), "tests", "tests_full"} <= set(
        re.findall(r"^def (\w+)\(session", noxfile, re.MULTILINE)
    )
    assert "uv run nox -s tests\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    [of_tests] = re.findall(r"^def tests\(.*?\n\n\n", noxfile, re.MULTILINE | re.DOTALL)
    assert of_tests.count('"not full"') == 3
    assert not any(folder in of_tests for folder in OTHER_SESSIONS)


def test_page_has_a_line_for_each_row_with_its_code_and_its_tests(tree: Path) -> None:
    page = written_pages(tree)[tree / "docs" / "coverage" / "1-cache.md"]
    code = "[`src/blocks.py`](../../src/blocks.py)"
    test = "[`test_a_block_is_used_again`](../../packages/infer-cache/tests/test_blocks.py)"
    assert [line for line in page.splitlines() if line.startswith("| ")] == [
        "| what | code | test that would fail without it |",
        rf"| Blocks are used again, or `a\|b`; [more](../more.md) | {code} | {test} |",
        f"| In no time | {code}, [`deep/blocks.py`](../../src/deep/blocks.py) | **no test measures it** |",
    ]


def test_index_keeps_what_is_written_by_hand_and_counts_rows_and_gaps(tree: Path) -> None:
    for _ in range(2):
        index = written_pages(tree)[tree / "docs" / "coverage.md"]
        assert index.startswith(INDEX_HEAD)
        assert [line for line in index.splitlines() if line.startswith("| ")] == [
            "| section | rows | with a gap |",
            "| [Cache](coverage/1-cache.md) | 2 | 1 |",
            "| all | 2 | 1 |",
            "| what | where it stands |",
            "| In no time ([Cache](coverage/1-cache.md)) | no test measures it |",
        ]
        (tree / "docs" / "coverage.md").write_text(index, encoding="utf-8")


def test_every_form_of_a_test_is_found(tree: Path) -> None:
    path = tree / "tests" / "field" / "test_more.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "class TestBlocks:\n"
        '    @pytest.mark.covers("cache/reuse")\n'
        "    async def test_of_a_class(self) -> None: ...\n"
        'TestMachine = pytest.mark.covers("cache/reuse", "cache/speed")(Machine.TestCase)\n',
        encoding="utf-8",
    )
    assert [(test.name, test.keys) for test in covering_tests(tree)] == [
        ("test_a_block_is_used_again", ("cache/reuse",)),
        ("test_of_a_class", ("cache/reuse",)),
        ("TestMachine", ("cache/reuse", "cache/speed")),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("def test_a_block", "def block", id="no test"),
        pytest.param('@pytest.mark.covers("cache/reuse")', 'reuses = pytest.mark.covers("cache/reuse")', id="a name"),
        pytest.param('@pytest.mark.covers("cache/reuse")', "@pytest.mark.covers(KEY)", id="no text"),
        pytest.param('@pytest.mark.covers("cache/reuse")', "@pytest.mark.covers()", id="no row"),
    ],
)
def test_a_marker_that_cannot_be_read_is_an_error(tree: Path, old: str, new: str) -> None:
    replace(tree / "packages" / "infer-cache" / "tests" / "test_blocks.py", old, new)
    with pytest.raises(ValueError, match=r"`packages/infer-cache/tests/test_blocks.py`.* `covers`"):
        covering_tests(tree)


def test_a_marker_names_a_row_and_a_row_has_a_test_or_a_gap(tree: Path) -> None:
    replace(tree / "packages" / "infer-cache" / "tests" / "test_blocks.py", "cache/reuse", "cache/other")
    stray, untested = faults_of(tree)
    assert stray.endswith(
        "line 6: `test_a_block_is_used_again` covers `cache/other`, which is no row in `docs/coverage`."
    )
    assert untested == "`cache/reuse` has no test; mark one with `covers`, or say in `gap` why there is none."
    with pytest.raises(ValueError, match="covers `cache/other`"):
        written_pages(tree)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('code = ["src/blocks.py"]', 'code = ["src/none.py"]', "`cache/reuse` has the code `src/none.py`, which is no"),
        ('code = ["src/blocks.py"]', "code = []", "`cache/reuse` has no code"),
        ("no test measures it", "but `test_speed`", "`cache/speed` names `test_speed`; mark that test"),
    ],
)
def test_a_row_has_its_code_and_names_no_test_by_hand(tree: Path, old: str, new: str, fault: str) -> None:
    replace(tree / "docs" / "coverage" / "1-cache.toml", old, new)
    [found] = faults_of(tree)
    assert found.startswith(fault)


@pytest.mark.parametrize("session", ["tests_full", "tests_bench"])
def test_a_row_has_a_test_that_the_readmes_command_runs_or_says_which_session_does(tree: Path, session: str) -> None:
    path = tree / "packages" / "infer-cache" / "tests" / "test_blocks.py"
    if session == "tests_full":
        replace(path, "@pytest.mark.param", "@pytest.mark.full\n@pytest.mark.param")
    else:
        path.rename(tree / "benchmarks" / "tests" / "test_blocks.py")
    [fault] = faults_of(tree)
    assert fault == f"`cache/reuse` has no test that `nox -s tests` runs; name one of ['{session}'] in `note` or `gap`."
    replace(tree / "docs" / "coverage" / "1-cache.toml", 'py"]\n\n', f'py"]\nnote = "`nox -s {session}` runs it"\n\n')
    assert faults_of(tree) == []


def test_a_file_of_rows_with_a_wrong_field_is_an_error(tree: Path) -> None:
    replace(tree / "docs" / "coverage" / "1-cache.toml", "gap = ", "gaps = ")
    with pytest.raises(ValueError, match=r"`cache/speed` has the wrong fields \['gaps'\]"):
        read_pages(tree / "docs" / "coverage")


def test_a_row_of_a_page_has_a_name_of_its_own(tree: Path) -> None:
    path = tree / "docs" / "coverage" / "1-cache.toml"
    path.write_text(f"{ROWS}\n[[section]]\n[section.row.reuse]\nwhat = 'Again'\ncode = ['src/blocks.py']\n")
    with pytest.raises(ValueError, match="has the row `cache/reuse` 2 times"):
        read_pages(path.parent)

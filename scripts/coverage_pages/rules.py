"""What must hold between rows and tests: every row has its code and its tests, and every marker its row."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.coverage_pages.markers import CoveringTest
from scripts.coverage_pages.rows import FOLDER, Page, Row


def faults(root: Path, pages: Sequence[Page], tests: Sequence[CoveringTest]) -> list[str]:
    """Return what is wrong with the rows and the markers of the repository at `root`, a sentence each."""
    keys = {row.key for page in pages for row in page.rows}
    strays = [
        f"`{test.path}`, line {test.line}: `{test.name}` covers `{key}`, which is no row in `{FOLDER}`."
        for test in tests
        for key in test.keys
        if key not in keys
    ]
    return strays + [fault for page in pages for row in page.rows for fault in _faults_of_row(root, page, row, tests)]


def _faults_of_row(root: Path, page: Page, row: Row, tests: Sequence[CoveringTest]) -> Iterator[str]:
    if not row.code:
        yield f"`{row.key}` has no code; name the files that do it."
    for path in row.code:
        if not (root / path).is_file():
            yield f"`{row.key}` has the code `{path}`, which is no file."
    for name in re.findall(r"`(test_\w+)`", f"{row.what} {row.note} {row.gap}"):
        yield f"`{row.key}` names `{name}`; mark that test with `covers` instead."
    sessions = {test.session for test in tests if row.key in test.keys}
    said = f"{page.sessions} {row.note} {row.gap}"
    if not sessions and not row.gap:
        yield f"`{row.key}` has no test; mark one with `covers`, or say in `gap` why there is none."
    if sessions and "tests" not in sessions and not any(f"`nox -s {session}`" in said for session in sessions):
        yield f"`{row.key}` has no test that `nox -s tests` runs; name one of {sorted(sessions)} in `note` or `gap`."

"""Writes the pages: tables of rows with their code and their tests, and the index with its counts and its gaps."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from scripts.coverage_pages.markers import CoveringTest, covering_tests
from scripts.coverage_pages.rows import FOLDER, Page, Row, read_pages
from scripts.coverage_pages.rules import faults

INDEX = "docs/coverage.md"
HEAD = "Part of [what is covered](../coverage.md). Bold: what is missing, differs, or is not proven by a test."
COLUMNS = "| what | code | test that would fail without it |\n|---|---|---|\n"
SOURCE = "<!-- Written by `nox -s coverage` from {name} and the markers `covers` of tests. -->"
BEGIN = "<!-- From here on written by `nox -s coverage` from coverage/*.toml. -->\n"


def written_pages(root: Path) -> dict[Path, str]:
    """Return the text of each page of the repository at `root`.

    Raises:
        ValueError: rows and markers do not fit together; says all that is wrong.
    """
    pages, tests = read_pages(root / FOLDER), covering_tests(root)
    if wrong := faults(root, pages, tests):
        raise ValueError("\n".join(wrong))
    by_hand = (root / INDEX).read_text(encoding="utf-8").split(BEGIN)[0]
    writer = _PageWriter(pages, tests)
    texts = {page.source.with_suffix(".md"): writer.text(page) for page in pages}
    return {root / INDEX: f"{by_hand}{BEGIN}\n{_index(pages)}", **texts}


def _index(pages: Sequence[Page]) -> str:
    gaps = [(page, row) for page in pages for row in page.rows if row.gap]
    num_gaps = Counter(page.source for page, _ in gaps)
    lines = ["| section | rows | with a gap |", "|---|---|---|"]
    lines += [f"| {_link(page)} | {len(page.rows)} | {num_gaps[page.source]} |" for page in pages]
    lines += [f"| all | {sum(len(page.rows) for page in pages)} | {len(gaps)} |"]
    lines += ["", "## The gaps", "", "| what | where it stands |", "|---|---|"]
    lines += [f"| {_cell(row.what)} ({_link(page)}) | {_cell(row.gap)} |" for page, row in gaps]
    return "\n".join(lines) + "\n"


def _link(page: Page) -> str:
    return f"[{page.title}](coverage/{page.source.stem}.md)"


class _PageWriter:
    def __init__(self, pages: Sequence[Page], tests: Sequence[CoveringTest]) -> None:
        self._names = _short_names(sorted({path for page in pages for row in page.rows for path in row.code}))
        self._tests: defaultdict[str, list[CoveringTest]] = defaultdict(list)
        for test in tests:
            for key in test.keys:
                self._tests[key].append(test)

    def text(self, page: Page) -> str:
        head = "\n".join(part for part in (HEAD, page.sessions) if part)
        parts = [f"# {page.title}", SOURCE.format(name=page.source.name), head]
        for section in page.sections:
            parts += [f"## {section.title}"] if section.title else []
            parts.append(COLUMNS + "\n".join(self._line(row) for row in section.rows))
        return "\n\n".join(parts) + "\n"

    def _line(self, row: Row) -> str:
        code = ", ".join(f"[`{self._names[path]}`](../../{path})" for path in row.code)
        named = ", ".join(f"[`{test.name}`](../../{test.path})" for test in self._tests[row.key])
        note = _from_below(_cell(f"({row.note})")) if row.note else ""
        gap = _from_below(_cell(f"**{row.gap}**")) if row.gap else ""
        tests = " ".join(part for part in (named, note) if part)
        return f"| {_from_below(_cell(row.what))} | {code} | {'; '.join(part for part in (tests, gap) if part)} |"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _from_below(text: str) -> str:
    """Return a text whose links lead from `docs/` with links that lead from the folder below."""
    return re.sub(r"\]\((?!https?:)", "](../", text)


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return for each path its file's name, with the folder before it where several files have that name."""
    uses = Counter(PurePosixPath(path).name for path in paths)
    return {path: "/".join(path.split("/")[-2 if uses[path.split("/")[-1]] > 1 else -1 :]) for path in paths}

"""Reads the rows of the coverage pages, which `docs/coverage/*.toml` hold."""

import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "docs/coverage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One promise.

    Attributes:
        key: the name of its page and its own, as tests name it: `kv-cache/eviction-order`.
        what: what is promised.
        code: the files that do it, as paths in the repository.
        note: what else there is to know about its tests.
        gap: what is missing, differs, or is not proven by a test; empty if nothing.
    """

    key: str
    what: str
    code: tuple[str, ...]
    note: str = ""
    gap: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows under a heading, or without one."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A file of rows; `sessions` says which sessions of the noxfile run its tests, if not only `tests`."""

    source: Path
    title: str
    sessions: str
    sections: tuple[Section, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in order."""
        return tuple(row for section in self.sections for row in section.rows)


def read_pages(folder: Path) -> list[Page]:
    """Read all pages of a folder, in the order of the numbers that their names begin with.

    Raises:
        ValueError: a file has a field that no page has, lacks one, or has a row twice.
    """
    return [_read(path) for path in sorted(folder.glob("*.toml"), key=lambda path: int(path.name.split("-")[0]))]


def _read(path: Path) -> Page:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    _check_fields(f"`{path.name}`", table, required={"title", "section"}, optional={"sessions"})
    name = re.sub(r"^\d+-", "", path.stem)
    sections = tuple(_section(name, section) for section in table["section"])
    page = Page(source=path, title=table["title"], sessions=table.get("sessions", ""), sections=sections)
    for key, count in Counter(row.key for row in page.rows).items():
        if count > 1:
            raise ValueError(f"`{path.name}` has the row `{key}` {count} times; give each a name of its own.")
    return page


def _section(page: str, table: dict[str, Any]) -> Section:
    _check_fields(f"a section of `{page}`", table, required={"row"}, optional={"title"})
    rows = tuple(_row(f"{page}/{name}", fields) for name, fields in table["row"].items())
    return Section(title=table.get("title", ""), rows=rows)


def _row(key: str, fields: dict[str, Any]) -> Row:
    _check_fields(f"`{key}`", fields, required={"what", "code"}, optional={"note", "gap"})
    return Row(key=key, **{**fields, "code": tuple(fields["code"])})


def _check_fields(place: str, table: dict[str, Any], *, required: set[str], optional: set[str]) -> None:
    if wrong := (table.keys() ^ required) - optional:
        raise ValueError(
            f"{place} has the wrong fields {sorted(wrong)}; it needs {sorted(required)}, may have {sorted(optional)}."
        )

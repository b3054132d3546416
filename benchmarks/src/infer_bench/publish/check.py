"""Checks that results, pages and pictures agree, and that each typed number is a known one."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from infer_bench.publish.by_hand import BY_HAND, PICTURES_BY_HAND, STALE, TYPED
from infer_bench.publish.declared import Result
from infer_bench.publish.markers import names_in, without_marked
from infer_bench.publish.published import PICTURES, RESULTS, TABLES
from infer_bench.publish.render import filled, load, pages, result_path, stamp_in, stamp_of
from infer_bench.publish.tree import has_history, is_ancestor
from infer_bench.results import IMAGES, ROOT
from infer_bench.results import RESULTS as RESULTS_FOLDER

COMMIT = re.compile(r"`[0-9a-f]{7,40}`")
QUOTED = re.compile(
    rf"{COMMIT.pattern}"
    r"|\d ?(?:tokens/s|GB/s|[GT]FLOP/s)"
    r"|\d (?:ms|us|µs)\b"
    r"|tokens/s[^|\n]*\|[^|\n]*\d"
)
"""What a number looks like that somebody has measured: with a commit, a rate, or a short time."""


def problems() -> list[str]:
    """Return all that does not agree, a sentence for each."""
    return [*result_problems(), *page_problems(pages()), *picture_problems(), *typed_problems(pages())]


def result_problems() -> Iterator[str]:
    """Yield what is wrong with results: missing, of a changed tree, unknown to git, or not declared."""
    for result in RESULTS:
        problem = problem_of(result)
        if problem and result.name not in STALE:
            yield f"`{result.name}`: {problem}"
        if not problem and result.name in STALE:
            yield f"`{result.name}`: is published; remove it from `STALE`"
    declared = {result.name for result in RESULTS}
    for path in sorted(RESULTS_FOLDER.glob("*.json")):
        if path.stem not in declared:
            yield f"`{path.name}`: no result of this name is declared in `RESULTS`"
    for name in STALE:
        if name not in declared:
            yield f"`{name}`: is in `STALE`, and no result"


def problem_of(result: Result) -> str:
    """Return what is wrong with a result's file, or nothing."""
    if not result_path(result.name).exists():
        return "its file is missing"
    facts = load(result.name)["environment"]
    commit = facts["commit"]
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        return f"its commit is `{commit}`: it must be of a tree without changes"
    if has_history() and not is_ancestor(commit):
        return f"its commit `{commit}` is not in the history"
    if not result.elsewhere and facts["command"] != result.command:
        return f"its command is `{facts['command']}`, the declared one `{result.command}`"
    return ""


def page_problems(paths: Sequence[Path]) -> Iterator[str]:
    """Yield pages whose marked text is not what their results give, markers without a table, tables without markers."""
    tables = {table.name for table in TABLES}
    sources = {result.name for result in RESULTS}
    marked = set()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        names = names_in(text)
        marked.update(names)
        yield from (f"{_name(path)}: no table is called `{name}`" for name in names if name not in tables)
        if filled(path) != text:
            yield f"{_name(path)}: marked text is not what its results give; `infer-bench publish --render` writes it"
    yield from (f"`{name}`: no page has this table's markers" for name in sorted(tables - marked))
    for table in TABLES:
        yield from (f"`{table.name}`: `{source}` is no result" for source in table.sources if source not in sources)


def picture_problems() -> Iterator[str]:
    """Yield pictures that show another result than is there, or that nobody has declared."""
    for picture in PICTURES:
        path = IMAGES / picture.name
        if picture.source in STALE or not result_path(picture.source).exists():
            continue
        if not path.exists() or stamp_in(path) != stamp_of(picture.source):
            yield f"`{picture.name}`: does not show `{picture.source}.json`; `infer-bench publish --render` draws it"
    known = {picture.name for picture in PICTURES} | set(PICTURES_BY_HAND)
    there = {path.name for path in IMAGES.iterdir()}
    yield from (f"`{name}`: is neither in `PICTURES` nor in `PICTURES_BY_HAND`" for name in sorted(there - known))
    yield from (f"`{name}`: is declared, and not in docs/images" for name in sorted(known - there))


def typed_problems(paths: Sequence[Path]) -> Iterator[str]:
    """Yield sections with numbers that people have typed and that are not known, and known ones without."""
    texts = {
        (_name(path), heading): text
        for path in paths
        for heading, text in sections_of(without_marked(path.read_text(encoding="utf-8")))
        if QUOTED.search(text)
    }
    found = set(texts)
    for page, heading in sorted(each for each in found if TYPED.get(each) == BY_HAND):
        if not COMMIT.search(texts[page, heading]):
            yield f"{page}, `{heading}`: names no commit, and its reason in `TYPED` says that it does"
    for page, heading in sorted(found - set(TYPED)):
        yield f"{page}, `{heading}`: has a number outside markers; publish it, or give the reason in `TYPED`"
    for page, heading in sorted(set(TYPED) - found):
        yield f"{page}, `{heading}`: is in `TYPED`, and has no number outside markers"


def sections_of(page: str) -> Iterator[tuple[str, str]]:
    """Yield each heading of a page with the text below it, the first one without a heading."""
    first, *rest = re.split(r"^(#{1,4} .*)$", page, flags=re.MULTILINE)
    yield "", first
    yield from zip(rest[::2], rest[1::2], strict=True)


def _name(path: Path) -> str:
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()

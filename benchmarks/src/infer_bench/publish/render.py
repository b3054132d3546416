"""Fills pages and draws pictures from the results in `benchmarks/results`."""

import hashlib
import json
import shutil
from collections.abc import Collection
from functools import cache
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngImageFile, PngInfo

from infer_bench.publish.declared import Json, Picture, Result, Table
from infer_bench.publish.markers import fill, names_in
from infer_bench.publish.published import PICTURES, RESULTS, TABLES
from infer_bench.publish.tree import commits_since, has_history, is_ancestor
from infer_bench.publish.words import measured_on
from infer_bench.results import IMAGES, ROOT, sections
from infer_bench.results import RESULTS as RESULTS_FOLDER

STAMP = "Source"
"""The text in a PNG that says which result it shows."""
OLD = 300
"""The number of commits of its code after which a page says that a number is old."""
OLD_NUMBERS = f"**Old numbers:** more than {OLD} commits of the code that they speak of have come since."


def pages() -> list[Path]:
    """Return the pages that may quote numbers: README, the guides, and the packages' own."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "packages").glob("*/README.md")),
    ]


def result_path(name: str) -> Path:
    """Return where a result lies."""
    return RESULTS_FOLDER / f"{name}.json"


def load(name: str) -> Json:
    """Return a result's JSON."""
    found: Json = json.loads(result_path(name).read_text(encoding="utf-8"))
    return found


def save(name: str, result: Json) -> None:
    """Write a result's JSON."""
    result_path(name).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def text_of(table: Table) -> str | None:
    """Return a table's Markdown, with a sentence below where its numbers are old.

    None where one of its results has not been published, or git cannot tell their age.
    """
    if not all(result_path(source).exists() for source in table.sources) or not has_history():
        return None
    found = [load(source) for source in table.sources]
    text = table.render(*found)
    if table.measured:
        what, rounds = table.measured.format_map(found[0]), table.num_rounds(found[0])
        text = sections(measured_on(table.sources[0], found[0], what=what, rounds=rounds), text)
    is_old = any(age_of(result) > OLD for result in RESULTS if result.name in table.sources)
    return f"{text}\n\n{OLD_NUMBERS}" if is_old and "\n" in text else text


def age_of(result: Result) -> int:
    """Return how many commits have changed the code that a result speaks of since it was measured."""
    commit = load(result.name)["environment"]["commit"].removesuffix("-dirty")
    return commits_since(commit, *result.measures) if is_ancestor(commit) else 0


def filled(path: Path) -> str:
    """Return the text of a page with its tables made of the results that are there."""
    text = path.read_text(encoding="utf-8")
    names_in(text)  # which checks that every marker is closed
    tables = {table.name: table for table in TABLES}

    @cache
    def render(name: str) -> str | None:
        return text_of(tables[name]) if name in tables else None

    return fill(text, render, path=path)


def render_pages() -> list[Path]:
    """Write the pages whose tables have changed; return them."""
    changed = []
    for path in pages():
        text = filled(path)
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def render_pictures(sources: Collection[str], *, drawn: Path | None = None) -> list[Path]:
    """Draw and stamp the pictures of these results, where they are there; return their paths.

    Args:
        sources: names of results.
        drawn: the folder in which commands have drawn pictures of their own; None: those are left as they are.
    """
    paths = []
    for picture in PICTURES:
        path = IMAGES / picture.name
        if picture.source not in sources or not result_path(picture.source).exists():
            continue
        if picture.draw is not None:
            picture.draw(load(picture.source), path)
        elif drawn is not None and (drawn / picture.name).exists():
            shutil.copyfile(drawn / picture.name, path)
        else:
            continue
        paths.append(stamp(path, picture))
    return paths


def stamp(path: Path, picture: Picture) -> Path:
    """Note in a PNG which result it shows."""
    text = PngInfo()
    text.add_text(STAMP, stamp_of(picture.source))
    with Image.open(path) as image:
        image.load()
        image.save(path, pnginfo=text)
    return path


def stamp_of(source: str) -> str:
    """Return a result's name and the digest of its file."""
    return f"{source}.json {hashlib.sha256(result_path(source).read_bytes()).hexdigest()[:16]}"


def stamp_in(path: Path) -> str | None:
    """Return what a PNG says of the result that it shows."""
    with Image.open(path) as image:
        return image.text.get(STAMP) if isinstance(image, PngImageFile) else None

"""Marked text in pages: what lies between two markers is written by a program, and by nobody else.

    Of 16 requests <!-- published: ratio -->3.29<!-- /published --> times as many tokens come.

    <!-- published: rates -->
    | a table | ...
    <!-- /published -->

Text that begins on a line of its own is a block. Links in it that begin with `repo:` are written relative to the page.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from infer_bench.results import ROOT

_MARKED = re.compile(r"(<!-- published: (?P<name>[\w.+/-]+) -->)(?P<text>.*?)(<!-- /published -->)", re.DOTALL)


def names_in(page: str) -> list[str]:
    """Return the names of all markers of a page, in order.

    Raises:
        ValueError: a marker is not closed, or closed twice.
    """
    names = [match["name"] for match in _MARKED.finditer(page)]
    if not len(names) == page.count("<!-- published:") == page.count("<!-- /published"):
        raise ValueError("a marker is not well-formed: each `<!-- published: NAME -->` needs a `<!-- /published -->`")
    return names


def fill(page: str, render: Callable[[str], str | None], *, path: Path) -> str:
    """Return the page with the text that `render` gives for each name; None leaves what is there.

    Args:
        page: its text.
        render: takes the name of a marker.
        path: path of the page, from which links go out.
    """
    up = os.path.relpath(ROOT, path.parent)

    def write(match: re.Match[str]) -> str:
        text = render(match["name"])
        if text is None:
            return match[0]
        text = text.replace("](repo:", f"]({'' if up == '.' else up + '/'}")
        return f"{match[1]}\n{text}\n{match[4]}" if match["text"].startswith("\n") else f"{match[1]}{text}{match[4]}"

    return _MARKED.sub(write, page)


def without_marked(page: str) -> str:
    """Return the text that people write, with as many lines as the page has."""
    return _MARKED.sub(lambda match: "\n" * match[0].count("\n"), page)

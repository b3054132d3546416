"""The parts of a publication: results, and the tables and pictures that are drawn from them."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
"""A result's file: `environment` and what was measured."""


@dataclass(frozen=True, slots=True)
class Result:
    """A file in `benchmarks/results`, and the command that measures it.

    Attributes:
        name: name of the file, without `.json`.
        command: that saves it; `{checkpoint:SHAPE}` becomes a folder with random weights of that shape, and `python`
            this interpreter. Of a result from elsewhere: None, its file says it.
        minutes: that it takes on two quiet cores.
        elsewhere: why the publication does not run it: what it needs that is not here. Empty: it does.
        measures: the code that it speaks of, in pathspecs of git: their commits are the age of its numbers.
    """

    name: str
    command: str | None = None
    minutes: float = 0.0
    _: KW_ONLY
    elsewhere: str = ""
    measures: tuple[str, ...] = (":(glob)packages/*/src/**",)


@dataclass(frozen=True, slots=True)
class Table:
    """Text of a page, between `<!-- published: NAME -->` and `<!-- /published -->`.

    Attributes:
        name: in the marker; a page may have it several times, and several pages may.
        sources: results that it is made of.
        render: takes their JSON in this order, and returns Markdown.
        measured: how the sentence above begins that says where the first of them was measured, a format of its fields;
            empty: the text has none, or its own.
        rounds: the place in the first of them of the rounds whose medians these are, `*` for any name; empty: the page
            says it.
    """

    name: str
    sources: tuple[str, ...]
    render: Callable[..., str]
    _: KW_ONLY
    measured: str = "Measured"
    rounds: tuple[str | int, ...] = ()

    def num_rounds(self, result: Json) -> int | None:
        """Return how many rounds a result has."""
        found: Any = result
        for key in self.rounds:
            found = next(iter(found.values())) if key == "*" else found[key]
        return len(found) if self.rounds else None


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG in `docs/images`.

    Attributes:
        name: name of the file, with its ending.
        source: the result that it shows.
        draw: takes its JSON and the path to write; None: the command itself writes a file of this name beside its
            result, as it draws more than it saves.
    """

    name: str
    source: str
    draw: Callable[[Json, Path], None] | None = None

"""The kernel report's counts beside those of an earlier commit, in Markdown: what changes of kernels gained."""

from collections.abc import Iterator
from pathlib import Path

from infer_bench.results import RESULTS, table

BEFORE = RESULTS / "kernel-counts-before.md"
"""Sections of an earlier report, in its own words and tables."""

RENAMED = {
    "bf16, e2m1, groups of 32, 2880 to 2880, gates and ups": (
        "bf16, mxfp4_tiled, groups of 32, 2880 to 2880, gates and ups, 4 pairs"
    ),
    "bf16, e2m1, groups of 32, 2880 to 2880, down": "bf16, mxfp4_tiled, groups of 32, 2880 to 2880, down, 4 pairs",
    "bf16, int4, groups of 128, 2048 to 768, gates and ups": (
        "bf16, int4, groups of 128, 2048 to 768, gates and ups, 4 pairs"
    ),
}
"""Configurations of the earlier report that another one has replaced."""

INTRODUCTION = """## What was gained

Counts of this report beside those of commit {commit}, which had the same counters, and no fused products, words of
codes or MXFP4 in the order of tensor cores. Main loops are those of sm_90 whose count differs; *each* is instructions
of a thread for a number.
"""


def describe_gains(report: str, before: Path = BEFORE) -> str:
    """Return a section of `report`, which has all others.

    Raises:
        ValueError: `before` names no commit, or a section is missing.
    """
    earlier = before.read_text(encoding="utf-8")
    _, found, commit = earlier.partition("\n")[0].partition("commit ")
    if not found:
        raise ValueError(f"the first line of {before} names no commit")
    tables = [
        table(["op", "configuration", "each, before", "each", "bound, before", "bound"], list(_loops(earlier, report))),
        table(["family", "launches of a layer that decodes, before", "launches"], list(_launches(earlier, report))),
        table(
            ["model", "sequences", "tokens/s expected, before", "expected", "share of the bound, before", "share"],
            list(_expectations(earlier, report)),
        ),
    ]
    return "\n\n".join([INTRODUCTION.format(commit=commit), *tables]).replace("\n\n\n", "\n\n")


def read_table(report: str, heading: str) -> list[dict[str, str]]:
    """Return the rows of the first table behind a heading, by column; of two columns with one name the first.

    Raises:
        ValueError: there is no such heading.
    """
    lines = iter(report.splitlines())
    if not any(line.startswith(heading) for line in lines):
        raise ValueError(f"there is no section {heading!r}")
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    head, _, *body = rows
    return [dict(reversed(list(zip(head, row, strict=True)))) for row in body]


def _loops(earlier: str, report: str) -> Iterator[list[str]]:
    present = {(row["op"], row["configuration"]): row for row in read_table(report, "### sm_90")}
    for before in read_table(earlier, "### sm_90"):
        label = RENAMED.get(before["configuration"], before["configuration"])
        after = present.get((before["op"], label)) or present.get((before["op"], before["configuration"]))
        if after is not None and after["each"] != before["each"]:
            label = after["configuration"]
            yield [before["op"], label, before["each"], after["each"], before["bound"], after["bound"]]


def _launches(earlier: str, report: str) -> Iterator[list[str]]:
    column = "decodes: a layer"
    present = {row["family"]: row for row in read_table(report, "## Launches")}
    for before in read_table(earlier, "## Launches"):
        if (after := present.get(before["family"])) is not None:
            yield [before["family"], before[column], after[column]]


def _expectations(earlier: str, report: str) -> Iterator[list[str]]:
    present = {(row["model"], row["sequences"]): row for row in read_table(report, "## What this implies")}
    for before in read_table(earlier, "## What this implies"):
        key = before["model"], before["sequences"]
        if (after := present.get(key)) is not None:
            yield [*key, before["expected"], after["expected"], before["share"], after["share"]]

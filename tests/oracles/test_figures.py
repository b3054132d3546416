"""`docs/compatibility.md` shows the recorded figures of all oracles."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIGURES = tomllib.loads(Path(__file__).with_name("figures.toml").read_text(encoding="utf-8"))


def test_the_page_shows_every_figure() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    for row in FIGURES.values():
        (wrong, cases) = row["first"]
        differ = f"{row['wrong']:,} of {row['cases']:,} differ; first {wrong:,} of {cases:,}"
        line = f"| {row['what']} | {differ} | `{row['test']}` |"
        assert line in page, line


def test_no_figure_is_of_a_test_that_is_not_there() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    tests = set(re.findall(r"def (test_\w+)", source))
    assert {row["test"] for row in FIGURES.values()} <= tests

"""What the kernel report gained since an earlier commit."""

from pathlib import Path

import pytest

from infer_bench.kernels.gains import BEFORE, describe_gains, read_table
from infer_bench.results import ROOT

LOOP_HEAD = "| op | configuration | each | bound |\n|---|---|---|---|\n"
REST = """## Launches

| family | decodes: a layer | the rest | mixed: a layer | the rest |
|---|---|---|---|---|
| Llama | {launches} | 5 | 10 | 6 |

## What this implies

| model | sequences | expected | share |
|---|---|---|---|
| a model | 1 | {expected} | {share} |
"""


def report(loops: str, *, launches: int, expected: int, share: str) -> str:
    rest = REST.format(launches=launches, expected=expected, share=share)
    return f"### sm_90: a card\n\n{LOOP_HEAD}{loops}\n### sm_80: another\n\n{LOOP_HEAD}| `b` | x | 9 | 9% |\n\n{rest}"


def test_gains_are_counts_that_differ_beside_each_other(tmp_path: Path) -> None:
    before = tmp_path / "before.md"
    same = "| `a` | same | 2.0 | 80% |\n"
    old = report(f"{same}| `b` | less | 6.1 | 40% |\n", launches=9, expected=100, share="35%")
    before.write_text(f"# Counts of commit abc\n{old}")
    new = report(f"| `b` | less | 2.2 | 90% |\n{same}", launches=6, expected=150, share="52%")
    section = describe_gains(new, before)
    assert "commit abc" in section
    assert "| `b` | less | 6.1 | 2.2 | 40% | 90% |" in section
    assert "| Llama | 9 | 6 |" in section
    assert "| a model | 1 | 100 | 150 | 35% | 52% |" in section
    assert "same" not in section.split("\n\n", 2)[2]


def test_an_earlier_report_without_a_commit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "before.md").write_text("# Counts\n")
    with pytest.raises(ValueError, match="names no commit"):
        describe_gains("", tmp_path / "before.md")


def test_a_missing_section_is_named() -> None:
    with pytest.raises(ValueError, match="sm_90"):
        read_table("# Another page\n", "### sm_90")


def test_the_published_report_has_less_instructions_than_before_for_each_quantized_weight() -> None:
    published = (ROOT / "docs" / "kernel-report.md").read_text(encoding="utf-8")
    section = describe_gains(published, BEFORE)
    rows = [row for row in read_table(section, "## What was gained") if "quantized" in row["op"]]
    assert len(rows) > 9
    assert all(float(row["each"]) < float(row["each, before"]) for row in rows)

"""README and docs quote what the results say: marked text, pictures, commits, and a reason for every typed number."""

import shlex
from pathlib import Path

import pytest

from infer_bench.publish import render
from infer_bench.publish.by_hand import PICTURES_BY_HAND, TYPED
from infer_bench.publish.check import (
    page_problems,
    picture_problems,
    problem_of,
    result_problems,
    typed_problems,
)
from infer_bench.publish.declared import Result
from infer_bench.publish.published import PICTURES, RESULTS, TABLES
from infer_bench.publish.tree import has_history
from infer_bench.registry import BENCHMARKS, main

OWN = [result for result in RESULTS if not result.elsewhere]
RATES = """# Rates

<!-- published: concurrency/short -->
<!-- /published -->
"""


@pytest.mark.covers("workloads/published-commits")
def test_every_result_is_there_and_of_a_commit_in_the_history() -> None:
    assert list(result_problems()) == []


@pytest.mark.covers("workloads/published-numbers")
def test_every_marked_text_is_what_its_results_give() -> None:
    assert list(page_problems(render.pages())) == []


@pytest.mark.covers("workloads/published-commits")
def test_every_picture_shows_the_result_that_is_there() -> None:
    assert list(picture_problems()) == []


@pytest.mark.covers("workloads/published-numbers")
def test_every_typed_number_has_a_reason() -> None:
    assert list(typed_problems(render.pages())) == []
    assert all(TYPED.values())
    assert all(PICTURES_BY_HAND.values())


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(RATES)
    path.write_text(render.filled(path))
    return path


def problems_of(page: Path) -> list[str]:
    """Return what is wrong with one page, without the tables that only others have."""
    return [line for line in page_problems([page]) if "no page has" not in line]


@pytest.mark.covers("workloads/published-numbers")
def test_a_digit_that_somebody_changes_is_found(page: Path) -> None:
    text = page.read_text()
    assert "| one by one | " in text
    assert problems_of(page) == []
    ratio = next(line for line in text.splitlines() if line.startswith("| ratio")).split(" | ")[-1].strip(" |")
    page.write_text(text.replace(ratio, f"{float(ratio) + 0.01:.2f}"))
    [problem] = problems_of(page)
    assert "marked text is not what its results give" in problem


@pytest.mark.skipif(not has_history(), reason="git has not all commits, which tell an age")
def test_a_page_says_that_its_numbers_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    [table] = (table for table in TABLES if table.name == "concurrency/short")
    monkeypatch.setattr(render, "OLD", 10**6)
    young = render.text_of(table)
    monkeypatch.setattr(render, "OLD", -1)
    assert young is not None
    assert render.text_of(table) == f"{young}\n\n{render.OLD_NUMBERS}"


def test_a_marker_without_a_table_is_found(page: Path) -> None:
    page.write_text(page.read_text() + "\n<!-- published: nonsense -->3<!-- /published -->\n")
    assert any("no table is called `nonsense`" in problem for problem in problems_of(page))


@pytest.mark.parametrize("text", ["It makes 99 tokens/s.", "It takes 4 ms.", "At `0123abc` it was slow."])
def test_a_number_outside_markers_is_found(page: Path, text: str) -> None:
    assert [line for line in typed_problems([page]) if "has a number" in line] == []
    page.write_text(f"{page.read_text()}\n{text}\n")
    [problem] = [line for line in typed_problems([page]) if "has a number" in line]
    assert "`# Rates`" in problem


@pytest.mark.covers("workloads/published-commits")
@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({}, ""),
        ({"commit": "0123456789ab-dirty"}, "without changes"),
        ({"commit": "unknown"}, "without changes"),
        ({"commit": "0" * 12}, "not in the history"),
        ({"command": "infer-bench engine --steps 3"}, "the declared one"),
    ],
    ids=["fine", "changed tree", "no git", "unknown commit", "other command"],
)
def test_a_result_is_of_a_known_commit_and_of_its_command(
    facts: dict[str, str], wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "RESULTS_FOLDER", tmp_path)
    monkeypatch.setattr("infer_bench.publish.check.has_history", lambda: True)
    monkeypatch.setattr("infer_bench.publish.check.is_ancestor", lambda commit: commit == "0123456789ab")
    result = Result("engine", "infer-bench engine", 1)
    assert "missing" in problem_of(result)
    environment = {"commit": "0123456789ab", "command": result.command} | facts
    render.save("engine", {"environment": environment})
    problem = problem_of(result)
    assert wanted in problem
    assert bool(problem) is bool(wanted)


def test_names_are_declared_once_and_sources_are_results() -> None:
    for declared in (RESULTS, TABLES, PICTURES):
        names = [each.name for each in declared]
        assert len(set(names)) == len(names)
    results = {result.name for result in RESULTS}
    assert {source for table in TABLES for source in table.sources} | {each.source for each in PICTURES} <= results
    assert all(result.command and result.minutes for result in OWN)
    assert sum(result.minutes for result in OWN) <= 75  # about an hour


@pytest.mark.parametrize("result", OWN, ids=lambda result: result.name)
def test_every_command_names_a_benchmark_and_flags_that_it_has(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    program, name, *rest = shlex.split(result.command or "")
    assert program == "infer-bench"
    assert name in BENCHMARKS
    with pytest.raises(SystemExit):
        main([name, "--help"])
    help_text = capsys.readouterr().out
    assert [word for word in rest if word.startswith("--") and word not in help_text] == []

"""Every benchmark is listed, explains itself, and is called in the pages by a name that exists."""

import re

import pytest

from infer_bench.registry import BENCHMARKS, main
from infer_bench.results import ROOT, table


def test_all_benchmarks_are_listed_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed and line in listed for name, (_, line) in BENCHMARKS.items())


def test_an_unknown_name_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roof"]) == 2
    assert "`roof` is no benchmark" in capsys.readouterr().err


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: infer-bench {name} " in capsys.readouterr().out


def test_pages_name_benchmarks_that_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"]
    named = {name for page in pages for name in re.findall(r"infer-bench ([a-z][a-z-]+)", page.read_text())}
    assert named
    assert named <= set(BENCHMARKS)


def test_table_is_markdown() -> None:
    assert table(["a", "b"], [[1, "x"]]) == "| a | b |\n|---|---|\n| 1 | x |"

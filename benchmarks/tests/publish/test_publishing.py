"""A publication: what it runs, refuses, writes and leaves alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infer_bench.publish import render, run, tree
from infer_bench.publish.declared import Picture, Result, Table
from infer_bench.publish.markers import fill, names_in, without_marked
from infer_bench.publish.run import published, words_of
from infer_bench.publish.words import machine, measured_on
from infer_bench.results import IMAGES, ROOT, cpu_facts

COMMIT = "0123456789ab"
GOOD, BAD = Result("engine", "infer-bench engine", 0.1), Result("structured", "infer-bench structured", 0.1)
BLOCK = "A\n<!-- published: x -->\nold\n<!-- /published -->\nB <!-- published: y -->1<!-- /published --> C\n"
CPUINFO = (
    "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 26\nmodel name : AMD EPYC\nflags : avx2 avx512f {more}\n\n"
)


# Markers


def test_blocks_and_words_between_markers_are_replaced_and_nothing_else() -> None:
    filled = fill(BLOCK, {"x": "| a |", "y": "2"}.get, path=ROOT / "README.md")
    assert filled == BLOCK.replace("old", "| a |").replace("1", "2")
    assert fill(BLOCK, lambda _: None, path=ROOT / "README.md") == BLOCK
    assert names_in(BLOCK) == ["x", "y"]
    assert without_marked(BLOCK) == "A\n\n\n\nB  C\n"


@pytest.mark.parametrize(
    "broken", ["<!-- published: x --> a", "a <!-- /published -->", "<!-- published: a b --><!-- /published -->"]
)
def test_a_marker_that_is_not_closed_is_refused(broken: str) -> None:
    with pytest.raises(ValueError, match="not well-formed"):
        names_in(broken)


def test_links_lead_from_the_page_to_the_result() -> None:
    text = "[result](repo:benchmarks/results/x.json)"
    for page, wanted in (
        ("README.md", "benchmarks"),
        ("docs/cpu.md", "../benchmarks"),
        ("docs/a/b.md", "../../benchmarks"),
    ):
        assert f"]({wanted}/results/x.json)" in fill(BLOCK, lambda _: text, path=ROOT / page)


# Words


def test_a_table_says_what_it_was_measured_on() -> None:
    facts: dict[str, Any] = {"cores": 2, "torch": "2.15.0+cu132", "torch_threads": 2, "commit": COMMIT}
    old = {"environment": facts | {"cpu": "Intel(R) Xeon(R) Processor"}}
    assert machine(old) == f"2 cores of an Intel Xeon, torch 2.15.0, commit `{COMMIT}`"
    noted = {"cpu_generation": "Zen 5", "cpu_features": ["avx2", "avx512f", "avx512_bf16"], "date": "2026-11-26"}
    new = {"environment": facts | noted | {"cpu": "AMD EPYC", "torch_threads": 1, "load_average_before": 1.26}}
    assert machine(new) == (
        "2 cores of an AMD EPYC (Zen 5, AVX512-bf16, no AMX), torch 2.15.0, one thread, "
        f"commit `{COMMIT}`, 2026-11-26, load average 1.3 before it ran"
    )
    words = measured_on("x", old, rounds=3).replace("\n", " ")
    assert words.endswith("medians of three rounds ([result](repo:benchmarks/results/x.json)):")


@pytest.mark.parametrize(("more", "features"), [("", []), ("amx_bf16 avx512_bf16 sse2", ["avx512_bf16", "amx_bf16"])])
def test_a_result_names_the_cpu_its_generation_and_its_instructions(
    more: str, features: list[str], tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(CPUINFO.format(more=more) + CPUINFO.format(more="other"))
    wanted = {"cpu": "AMD EPYC", "cpu_generation": "Zen 5", "cpu_features": ["avx2", "avx512f", *features]}
    assert cpu_facts(cpuinfo) == wanted
    assert cpu_facts(tmp_path / "none")["cpu_generation"] is None


# Running


def test_commands_get_a_checkpoint_and_a_folder_for_their_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama-30m").mkdir()
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("infer_bench.quality.smollm.smollm_folder", lambda: tmp_path / "cache")
    command = (
        "infer-bench peers --model {checkpoint:llama-30m} --peer 'a=b {port} c' {checkpoint:smollm2-135m-instruct}"
    )
    words = words_of(Result("x", command, 1), tmp_path, tmp_path / "out")
    assert words[:6] == [sys.executable, "-m", "infer_bench", "peers", "--out", str(tmp_path / "out")]
    assert words[6:-1] == ["--model", str(tmp_path / "llama-30m"), "--peer", "a=b {port} c"]
    assert Path(words[-1]) == tmp_path / "smollm2-135m-instruct"
    assert Path(words[-1]).resolve() == (tmp_path / "cache").resolve()


def test_a_published_result_has_no_path_of_this_machine(tmp_path: Path) -> None:
    saved = {
        "environment": {"command": "infer-bench x --out /tmp/y", "commit": "a-dirty", "cores": 2},
        "commands": [f"{sys.executable} -m infer_server --model {tmp_path}/llama-30m", f"{ROOT}/README.md"],
    }
    facts = {"command": "infer-bench x", "commit": COMMIT}
    found = published(json.dumps(saved), facts, checkpoints=tmp_path)
    assert found["commands"] == ["python -m infer_server --model CHECKPOINTS/llama-30m", "README.md"]
    assert found["environment"] == {**facts, "cores": 2}


SAVE = """
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
facts = {"commit": os.environ["INFER_BENCH_COMMIT"], "command": "x"}
(folder / "engine.json").write_text(json.dumps({"environment": facts, "seed": 3}))
(folder / "engine.png").write_bytes(pathlib.Path(sys.argv[2]).read_bytes())
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for results and pictures; pages are left alone, the tree has no changes, one command saves."""

    def words(result: Result, _: Path, out: Path) -> list[str]:
        return [sys.executable, "-c", SAVE if result is GOOD else "exit(2)", str(out), str(IMAGES / "soak.png")]

    for module, name in ((render, "RESULTS_FOLDER"), (render, "IMAGES"), (run, "ROOT")):
        monkeypatch.setattr(module, name, tmp_path)
    monkeypatch.setattr(render, "pages", list)
    monkeypatch.setattr(render, "PICTURES", [Picture("engine.png", "engine")])
    monkeypatch.setattr(run, "changes", lambda **_: [])
    monkeypatch.setattr(run, "words_of", words)
    monkeypatch.setattr(run, "problems", lambda: ["`engine`: is published; remove it from `STALE`"])
    return tmp_path


@pytest.mark.covers("workloads/published-numbers")
def test_a_command_that_fails_loses_nothing_of_the_others(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "structured.json").write_text("kept")
    assert run.publish([BAD, GOOD]) == 1
    assert (results / "structured.json").read_text() == "kept"
    found = json.loads((results / "engine.json").read_text())
    assert found["seed"] == 3
    assert found["environment"]["command"] == GOOD.command
    assert found["environment"]["commit"] == tree.head_commit()
    assert render.stamp_in(results / "engine.png") == render.stamp_of("engine")
    printed = capsys.readouterr()
    assert "[1 of 2, minute 0] structured: about 0.1 minutes, load average" in printed.out
    assert "structured: exit code 2, and no result" in printed.err
    assert "Left to do before this is committed:\n`engine`: is published" in printed.out


def test_a_table_that_cannot_be_made_is_said_and_its_file_is_written(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = results / "page.md"
    page.write_text("<!-- published: engine -->\n<!-- /published -->\n")
    monkeypatch.setattr(render, "pages", lambda: [page])
    monkeypatch.setattr(render, "TABLES", [Table("engine", ("engine",), lambda result: result["nothing"])])
    assert run.publish([GOOD]) == 1
    assert (results / "engine.json").exists()
    assert "engine: its tables or pictures could not be made; its file is written." in capsys.readouterr().err


@pytest.mark.covers("workloads/published-commits")
def test_a_tree_with_changes_is_refused_before_and_after_a_command(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "changes", lambda *, but_outputs=False: ["packages/x.py"] if but_outputs else [])
    assert run.publish([GOOD]) == 1
    assert "not published, as packages/x.py changed meanwhile" in capsys.readouterr().err
    monkeypatch.setattr(run, "changes", lambda **_: ["packages/x.py"])
    assert run.publish([GOOD]) == 2
    assert "commit them first" in capsys.readouterr().err
    assert list(results.iterdir()) == []


def test_dry_run_prints_what_would_run_and_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "engine", "--dry-run"]) == 0
    assert capsys.readouterr().out == "  1.0 min  engine: infer-bench engine\n  1.0 min  all, on two quiet cores\n"
    assert run.main(["--list"]) == 0
    assert "elsewhere  soak: an hour by itself" in capsys.readouterr().out


# Git


def test_git_tells_changes_and_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    assert tree.has_history() is False
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # noqa: S607 - git, from where it is
    (tmp_path / "a").write_text("1")
    assert tree.changed_files() == ["a"]
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    tree.git("add", "a")
    tree.git(*identity, "commit", "-q", "-m", "a")
    assert tree.changed_files() == []
    assert tree.has_history() is True
    assert tree.is_ancestor(tree.head_commit()) is True
    assert tree.is_ancestor("0" * 12) is False
    (tmp_path / "a").write_text("2")
    assert tree.changed_files() == ["a"]


def test_what_a_publication_writes_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["README.md", "docs/cpu.md", "docs/images/x.png", "benchmarks/results/x.json", "packages/x.py"]
    monkeypatch.setattr(run, "changed_files", lambda: files)
    assert run.changes(but_outputs=True) == ["packages/x.py"]
    assert run.changes() == files

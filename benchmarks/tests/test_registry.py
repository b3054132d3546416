"""Every benchmark is listed, explains itself and runs once, and pages call it by a name that exists."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infer_bench.registry import BENCHMARKS, main
from infer_bench.results import ROOT, table
from infer_bench.shapes import SHAPES

SMOKE = {
    "concurrency": ("--shape llama-30m --requests 3 --alone 2", r"\| ratio \(3 is the ceiling .* \| [\d.]+"),
    "kv-cache": ("--heads 4 2 32", r"\| 2 \| 256 \| 16 \| \d+"),
    "policies": ("", r"\| arrivals \| `priority` \| [\d.]+/s \|"),
    "routing": ("", r"\| prefix \| .*\| (1\.\d*[1-9]|[2-9])"),
    "steps": (
        "--rounds 1 --steps 2 --sequences 2 --beside 96 --profile",
        r"2 sequences beside 96 prompt tokens: kernels take \d+%",
    ),
    "structured": ("--rows 2", r"(?s)\| free text \| [\d,.]+ \|.*The first token came after"),
    "speculation": ("--model infer-demo", r"\| together \| \d"),
    "turns": ("", r"\| in turns \| \d+ \|"),
    "text-side": ("", r"\| a call's arguments \| [\d.]+ \| [\d.]+ \|"),
}
"""The arguments of a run beside `--quick`, and a pattern of what it prints."""
SMOKE_ELSEWHERE = {
    "`nox -s bench` runs it": "cpu-steps engine kernels-cpu streaming",
    "a test of its own looks at what it prints or saves": "ablation first-light host-step kernel-report kernels-gpu "
    "offline-bundle over-http peers prefill-configs product-configs publish quantization-loss "
    "serving soak transformers write-checkpoint",
}


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


@pytest.mark.parametrize("name", SMOKE)
def test_a_quick_run_prints_its_table_and_saves_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setitem(SHAPES, "llama-30m", SHAPES["llama-30m"] | {"num_hidden_layers": 1})
    arguments, printed = SMOKE[name]
    assert main([name, "--quick", *arguments.split(), "--out", str(tmp_path)]) == 0
    assert re.search(printed, capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []


def test_every_benchmark_runs_once_somewhere() -> None:
    elsewhere = " ".join(SMOKE_ELSEWHERE.values()).split()
    assert sorted([*SMOKE, *elsewhere]) == sorted(BENCHMARKS)


def test_pages_name_benchmarks_that_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"]
    named = {name for page in pages for name in re.findall(r"infer-bench ([a-z][a-z-]+)", page.read_text())}
    assert named
    assert named <= set(BENCHMARKS)


def test_table_is_markdown() -> None:
    assert table(["a", "b"], [[1, "x"]]) == "| a | b |\n|---|---|\n| 1 | x |"


SLOW = """
import sys, time, types
from infer_bench import registry

def main(arguments):
    try:
        print("begins", flush=True)
        time.sleep(60)
    finally:
        print("ends what it began", flush=True)

sys.modules["infer_bench.slow"] = types.SimpleNamespace(main=main)
registry.BENCHMARKS = {"slow": ("slow", "")}
sys.exit(registry.main(["slow"]))
"""


def test_a_benchmark_that_is_told_to_end_ends_what_it_has_begun() -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        process.terminate()
        assert process.communicate(timeout=30)[0] == "ends what it began\n"
    assert process.returncode == 128 + signal.SIGTERM

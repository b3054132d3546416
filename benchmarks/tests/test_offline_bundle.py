"""The folder for a machine without network: what is in it, what is not, and what its script finds there."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

from infer_bench import offline_bundle
from infer_bench.first_light import TESTS, TESTS_ALONE
from infer_bench.offline_bundle import PACKAGES, PRESENT, UNUSED
from infer_bench.results import ROOT

DISTRIBUTIONS = [f"infer-{package}" for package in PACKAGES]
BARE_MACHINE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import pytest
assert pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", *{tests}]) == 0
import huggingface_hub
import infer_bench.first_light, infer_bench.kernels.gpu, infer_bench.offline.concurrency, infer_bench.offline.steps
import infer_bench.registry, infer_bench.serving.workloads
import infer_server.app, infer_server.connections.server, infer_engine.assembly.runner
import infer_server.cli
sys.exit(infer_server.cli.main(["--max-seq-len", "many"]))
"""


def test_every_dependency_is_present_or_in_the_bundle() -> None:
    tables = [tomllib.loads((ROOT / f"packages/{name}/pyproject.toml").read_text()) for name in DISTRIBUTIONS]
    lines = [line for table in tables for line in table["project"]["dependencies"]]
    bundled = {offline_bundle.project_name(line) for line in offline_bundle.export_requirements()}
    assert {re.split(r"[<>=\[]", line)[0] for line in lines} <= bundled | {*PRESENT, *DISTRIBUTIONS}
    assert bundled >= {"numpy", "jinja2", "h11", "markupsafe", "typing-extensions", "pytest", "pytest-asyncio", "httpx"}
    assert bundled.isdisjoint({*PRESENT, *UNUSED, *DISTRIBUTIONS, "transformers", "matplotlib", "ruff"})
    assert not [name for name in bundled if name.startswith(("nvidia", "cuda", "sympy"))]


def test_first_light_and_the_server_import_nothing_that_is_missing_there() -> None:
    names = [*UNUSED, "transformers", "matplotlib", "openai", "PIL", "jsonschema"]
    missing, tests = {name.replace("-", "_") for name in names}, [*TESTS.split(), *TESTS_ALONE.split()]
    code = BARE_MACHINE.format(missing=missing, tests=tests)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240, cwd=ROOT
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "--max-seq-len" in ended.stderr


def test_only_what_is_not_imported_is_removed(tmp_path: Path) -> None:
    kept = ["a/__init__.py", "a/testing/tests.py", "a/_core.cpython-312-x86_64-linux-gnu.so", "a-1.dist-info/METADATA"]
    needless = ["a/tests/test_a.py", "a/x/tests/deep/y.py", "a/__pycache__/b.pyc", "a/a.pyi", "bin/a", "a/include/a.h"]
    for name in (*kept, *needless):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    offline_bundle.strip(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(kept)


def test_the_script_unpacks_numpy_if_it_is_missing_and_finds_all_packages(tmp_path: Path) -> None:
    """The script runs in a copy of the tree's outline, by a Python without packages."""
    repository = tmp_path / "repository"
    bundle = repository / "build" / "offline"
    bundle.mkdir(parents=True)
    offline_bundle.write_own_files(bundle)
    found = {each.metadata["Name"]: each.version for each in distributions(path=[str(bundle)])}
    assert found == {name: version(name) for name in DISTRIBUTIONS}
    numpy = tmp_path / "unpacked" / "numpy"
    numpy.mkdir(parents=True)
    (numpy / "__init__.py").write_text("__version__ = '2.0'")
    shutil.make_archive(str(bundle / "numpy"), "zip", numpy.parent)
    packages = (*PACKAGES, "proofs")
    for package in packages:
        module = repository / f"packages/infer-{package}/src/infer_{package}"
        module.mkdir(parents=True)
        (module / "__init__.py").touch()
    bench = repository / "benchmarks/src/infer_bench"
    bench.mkdir(parents=True)
    modules = ", ".join(f"infer_{package}" for package in packages)
    (bench / "__main__.py").write_text(
        f"import sys, numpy, {modules}\nfrom importlib.metadata import version\n"
        "print(numpy.__file__, infer_server.__file__, version('infer-server'), sys.argv[1:])\n"
    )
    ended = subprocess.run(
        ["/bin/sh", "build/offline/first_light.sh", "--only", "tests"],
        cwd=repository,
        env={"PYTHON": f"{sys.executable} -S"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    numpy_file, server_file, number, arguments = ended.stdout.split(maxsplit=3)
    assert numpy_file == str(bundle / "numpy/__init__.py")
    assert server_file == str(repository / "packages/infer-server/src/infer_server/__init__.py")
    assert number == version("infer-server")
    assert arguments.strip() == str(["first-light", "--out", "first-light.json", "--only", "tests"])


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit):
        offline_bundle.main([str(tmp_path)])
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]

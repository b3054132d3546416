"""The folder that is carried to a machine without network: what is in it, what is not, and what is found there."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from gpu import carry

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = [f"infer-{package}" for package in carry.PACKAGES]
SERVING = "infer_server.cli, infer_server.app, infer_server.serving.server, infer_engine.factory, huggingface_hub"
NO_ONE_IMPORTS = """
import sys
sys.modules.update(dict.fromkeys({names}))  # to import one of them fails
import {modules}
sys.exit(infer_server.cli.main(["--max-seq-len", "many"]))
"""


def direct_dependencies() -> set[str]:
    tables = [tomllib.loads((ROOT / f"packages/{name}/pyproject.toml").read_text()) for name in DISTRIBUTIONS]
    lines = [line for table in tables for line in table["project"]["dependencies"]]
    return {re.split(r"[<>=\[]", line)[0] for line in lines}


def test_every_dependency_of_ours_is_there_or_carried() -> None:
    carried = {carry.project_name(line) for line in carry.export_requirements()}
    there = {"torch", "triton", "safetensors", "tokenizers"}
    assert direct_dependencies() <= carried | there | set(DISTRIBUTIONS)
    assert carried >= {"numpy", "jinja2", "h11", "markupsafe", "typing-extensions"}
    assert carried.isdisjoint({*there, *carry.UNUSED, *DISTRIBUTIONS, "pytest", "transformers", "ruff"})
    assert not [name for name in carried if name.startswith(("nvidia", "cuda", "sympy"))]


def test_what_is_left_out_nobody_imports_who_serves() -> None:
    names = [name.replace("-", "_") for name in carry.UNUSED]
    code = NO_ONE_IMPORTS.format(names=names, modules=SERVING)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "--max-seq-len" in ended.stderr


def test_versions_of_ours_are_found_without_their_code(tmp_path: Path) -> None:
    carry.write_versions(tmp_path)
    found = {each.metadata["Name"]: each.version for each in distributions(path=[str(tmp_path)])}
    assert found == {name: version(name) for name in DISTRIBUTIONS}
    assert not list(tmp_path.rglob("*.py"))


def test_only_what_nobody_imports_is_stripped(tmp_path: Path) -> None:
    kept = ["a/__init__.py", "a/testing/tests.py", "a/_core.cpython-312-x86_64-linux-gnu.so", "a-1.dist-info/METADATA"]
    needless = ["a/tests/test_a.py", "a/x/tests/deep/y.py", "a/__pycache__/b.pyc", "a/a.pyi", "bin/a", "a/include/a.h"]
    for name in (*kept, *needless):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    carry.strip(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(kept)


def test_the_command_unpacks_numpy_where_there_is_none_and_finds_all_packages(tmp_path: Path) -> None:
    """Run as it stands, in a copy of the tree's outline, by a Python that has nothing."""
    folder = carry.ROOT / "build" / "carried"
    command = carry.launch_command(folder)
    there = tmp_path / "repository"
    place = there / folder.relative_to(carry.ROOT)
    place.mkdir(parents=True)
    (tmp_path / "unpacked/numpy").mkdir(parents=True)
    (tmp_path / "unpacked/numpy/__init__.py").write_text("__version__ = '2.0'")
    carry.pack(tmp_path / "unpacked", place / "numpy.zip")
    carry.write_versions(place)
    for package in carry.PACKAGES:
        module = there / f"packages/infer-{package}/src/infer_{package}"
        module.mkdir(parents=True)
        (module / "__init__.py").touch()
    (there / "benchmarks/gpu").mkdir(parents=True)
    modules = ", ".join(f"infer_{package}" for package in carry.PACKAGES)
    (there / "benchmarks/gpu/first_light.py").write_text(
        f"import numpy, {modules}\nfrom importlib.metadata import version\n"
        "print(numpy.__file__, infer_server.__file__, version('infer-server'))\n"
    )
    ended = subprocess.run(
        ["/bin/sh", "-c", command.replace("python3", f"{sys.executable} -S")],
        cwd=there,
        env={},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    found, server, number = ended.stdout.split()
    assert found == str(place / "numpy/__init__.py")
    assert server == str(there / "packages/infer-server/src/infer_server/__init__.py")
    assert number == version("infer-server")


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit):
        carry.main([str(tmp_path)])
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]

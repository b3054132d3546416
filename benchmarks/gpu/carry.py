"""Makes the folder to take along to a machine that has torch but no network, and says how to run there.

    python benchmarks/gpu/carry.py build/carried

It is for a machine with this repository and what `THERE` names, and holds what our packages need beyond that:

    NAME/, NAME-1.2.3.dist-info/    locked dependencies, without those of `UNUSED` and what only they need
    infer_NAME-0.1.0.dist-info/     each of our packages' version; its code stays in the tree, and the tree's is run
    numpy.zip                       larger than all the rest: unpacked there, and only where there is no numpy

Knows the lock file and wheels; installs nothing on this machine and imports nothing of what it carries. Needs `uv`.
"""

import argparse
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "models", "cache", "engine", "server")
THERE = ("torch", "triton", "safetensors", "tokenizers")
"""What the machine has, with all that comes with it; what ours need of that beside is carried."""
UNUSED = ("hf-xet", "faker", "polyfactory", "httpx", "pygments", "rich-click", "rich-rst")
"""Dependencies of dependencies, for large downloads, examples, tests and pages of help: the server imports none."""
PACKED = "numpy"
NEEDLESS_FOLDERS = ("tests", "__pycache__", "include", "bin")
NEEDLESS_FILES = (".pyi", ".a", ".h", ".pxd", ".lock")
_HAS_NUMPY = f"import {PACKED}; assert int({PACKED}.__version__.split('.')[0]) >= 2"


def main(arguments: list[str] | None = None) -> None:
    """Make the folder and print its size and the command to run there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="to make; inside this repository it travels along")
    parser.add_argument("--python-version", default="3.12", help="of the machine")
    parser.add_argument("--platform", default="x86_64-manylinux_2_28", help="of the machine, as uv calls it")
    args = parser.parse_args(arguments)
    folder = args.folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        parser.error(f"{args.folder} is there and not empty; remove it or name another folder")
    try:
        fill(folder, python_version=args.python_version, platform=args.platform)
    except subprocess.CalledProcessError as error:
        parser.exit(1, f"`{' '.join(map(str, error.cmd))}` failed with exit code {error.returncode}\n")
    print(f"{args.folder}: {size_bytes(folder) / 2**20:.1f} MiB. There, in this repository's folder:\n")
    print(launch_command(folder))


def fill(folder: Path, *, python_version: str, platform: str) -> None:
    """Put everything into `folder`.

    Raises:
        subprocess.CalledProcessError: uv failed; its standard error says why.
    """
    requirements = export_requirements()
    packed = [line for line in requirements if project_name(line) == PACKED]
    others = [line for line in requirements if project_name(line) != PACKED]
    install(others, folder, python_version=python_version, platform=platform)
    strip(folder)
    write_versions(folder)
    with tempfile.TemporaryDirectory() as unpacked:
        install(packed, Path(unpacked), python_version=python_version, platform=platform)
        strip(Path(unpacked))
        pack(Path(unpacked), folder / f"{PACKED}.zip")


def export_requirements() -> list[str]:
    """Return what the lock file has for our packages on any machine, a requirement a line, without what is left out."""
    pruned = (flag for name in (*THERE, *UNUSED) for flag in ("--prune", name))
    options = ("--frozen", "--no-dev", "--no-emit-workspace", "--no-hashes", "--no-header", "--no-annotate")
    command = ["uv", "export", "--quiet", *options, *pruned]
    exported = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - a fixed command
    return exported.stdout.splitlines()


def project_name(requirement: str) -> str:
    """Return the name in a line such as `numpy==2.5.5 ; python_full_version >= '3.12'`."""
    return requirement.partition("==")[0].strip()


def install(requirements: list[str], folder: Path, *, python_version: str, platform: str) -> None:
    """Unpack the wheels of `requirements` for the machine into `folder`; markers choose among them."""
    into = ("--target", str(folder), "--link-mode", "copy", "--no-deps", "--only-binary", ":all:")
    machine = ("--python-version", python_version, "--python-platform", platform)
    command = ["uv", "pip", "install", "--quiet", *into, *machine, "--requirements", "-"]
    subprocess.run(command, input="\n".join(requirements), check=True, text=True)  # noqa: S603 - a fixed command


def strip(folder: Path) -> None:
    """Remove what nobody imports."""
    for path in sorted(folder.rglob("*")):  # a folder comes before what is in it
        if path.is_dir() and path.name in NEEDLESS_FOLDERS:
            shutil.rmtree(path)
        elif path.is_file() and path.suffix in NEEDLESS_FILES:
            path.unlink()


def write_versions(folder: Path) -> None:
    """Write what `importlib.metadata` reads the versions of our packages from."""
    for package in PACKAGES:
        project = tomllib.loads((ROOT / f"packages/infer-{package}/pyproject.toml").read_text())["project"]
        named = folder / f"infer_{package}-{project['version']}.dist-info"
        named.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (named / "METADATA").write_text(metadata)


def pack(folder: Path, archive: Path) -> None:
    """Write all files in `folder` to `archive`, as small as the standard library of any Python can read."""
    with zipfile.ZipFile(archive, "w", compression=zipfile.ZIP_LZMA) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, path.relative_to(folder))


def size_bytes(folder: Path) -> int:
    """Return the bytes of all files in `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def launch_command(folder: Path) -> str:
    """Return the command to run there; `folder` lies there as it does here."""
    place = f"$PWD/{folder.relative_to(ROOT)}" if folder.is_relative_to(ROOT) else str(folder)
    sources = (f"$PWD/packages/infer-{package}/src" for package in PACKAGES)
    unpack = f'python3 -c "{_HAS_NUMPY}" 2>/dev/null || python3 -m zipfile -e "{place}/{PACKED}.zip" "{place}"'
    run = f'PYTHONPATH="{":".join((place, *sources))}" python3 benchmarks/gpu/first_light.py --out first-light.json'
    return f"{unpack}; {run}"


if __name__ == "__main__":
    main()

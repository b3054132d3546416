"""The frame of every result (machine, versions, command, commit), and how it is printed and saved."""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from infer_bench.cpu_facts import cpu_facts
from infer_bench.shapes import SHAPES

ROOT = Path(__file__).resolve().parents[3]
"""The repository."""
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
COMMIT_VARIABLE = "INFER_BENCH_COMMIT"
"""What a publication says of the commit to the commands that it runs: its own results are no changes of the tree."""


def environment(*, commit: str | None = None) -> dict[str, Any]:
    """Return the machine, the versions, the command line and the commit of this run.

    Args:
        commit: where git cannot tell it, on a machine that has the files alone.
    """
    return {
        "command": " ".join(sys.argv),
        "commit": commit or current_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        **cpu_facts(),
        "cores": psutil.cpu_count(logical=False),
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": installed_version("triton"),
        "infer_engine": installed_version("infer-engine"),
        **_gpu_facts(),
    }


def current_commit() -> str:
    """Return what git says of the repository, or `unknown`; in a publication, what it says."""
    if told := os.environ.get(COMMIT_VARIABLE):
        return told
    if (git := shutil.which("git")) is None:
        return "unknown"
    command = [git, "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
    return completed.stdout.strip() or "unknown"


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution; None where it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def driver_version(find: Callable[[str], str | None] = shutil.which) -> str | None:
    """Return the version of the GPU's driver; None where its own tool is missing or finds no GPU."""
    if (tool := find("nvidia-smi")) is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603 - a fixed command
    lines = asked.stdout.split()
    return lines[0] if asked.returncode == 0 and lines else None


def save(name: str, result: dict[str, Any], folder: Path, *, commit: str | None = None) -> Path:
    """Write `result` with its environment to `folder/name.json`, say so, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(commit=commit), **result}, indent=2) + "\n")
    print("saved", path)
    return path


def documentation() -> str:
    """Return this project's guides, one after another: a text that every checkout has."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    first, *rest = (f"| {' | '.join(map(str, row))} |" for row in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *rest])


Columns = Mapping[str, str | Callable[[Any], object]]
"""By title, what a column shows of a row: a format whose fields are the row's, or a function of it."""


def columns_table(columns: Columns, rows: Iterable[Any]) -> str:
    """Return a Markdown table with a line for each of `rows`."""
    cells = [
        [show.format_map(row) if isinstance(show, str) else show(row) for show in columns.values()] for row in rows
    ]
    return table(list(columns), cells)


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every number of `rows`, which all have the same names."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def argument_parser(
    doc: str | None, *, quick: str | None = None, rounds: int | None = None, shape: str | None = None
) -> argparse.ArgumentParser:
    """Return a parser that shows `doc` as it is and knows `--out`.

    Args:
        doc: the docstring of the benchmark.
        quick: what is less with `--quick`; None: there is no such flag.
        rounds: default of `--rounds`; None: there is no such flag.
        shape: default of `--shape`; None: there is no such flag.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help=f"{quick}; result not saved")
    if rounds is not None:
        parser.add_argument(
            "--rounds", "--repeats", type=int, default=rounds, help=f"whose medians count; default {rounds}"
        )
    if shape is not None:
        parser.add_argument("--shape", choices=sorted(SHAPES), default=shape, help="of a model with random weights")
    return parser


def _gpu_facts() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"gpu": None}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "l2_cache_mib": round(properties.L2_cache_size / 2**20, 1),
        "cuda": torch.version.cuda,
        "driver": driver_version(),
    }

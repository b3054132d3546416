"""The frame of every result (machine, versions, command, commit), and how it is printed and saved."""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from infer_bench.shapes import SHAPES
from infer_kernels.compiler_versions import compiler_versions
from infer_kernels.optional_triton import HAS_TRITON

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[3]
"""The repository."""
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
COMMIT_VARIABLE = "INFER_BENCH_COMMIT"
"""What a publication says of the commit to the commands that it runs: its own results are no changes of the tree."""
FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
"""Flags of Linux that are noted where the CPU has them."""
AMD_GENERATIONS = {(25, False): "Zen 3", (25, True): "Zen 4", (26, True): "Zen 5"}
"""By CPU family and whether there is AVX512: hypervisors hide the rest of a model's name."""


def environment(*, commit: str | None = None) -> dict[str, Any]:
    """Return the machine, the versions, the command line and the commit of this run, which git tells if nobody does."""
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
        "triton": _installed_version("triton"),
        "infer_engine": _installed_version("infer-engine"),
        **_gpu_facts(),
    }


def current_commit(checkout: Path = ROOT) -> str:
    """Return what git says of a checkout, or `unknown`; of this one in a publication, what that says."""
    if checkout == ROOT and (told := os.environ.get(COMMIT_VARIABLE)):
        return told
    return _said_by("git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12") or "unknown"


def _said_by(program: str, *arguments: str) -> str | None:
    """Return what a program prints; None where it is missing or fails."""
    if (found := shutil.which(program)) is None:
        return None
    asked = subprocess.run([found, *arguments], capture_output=True, text=True, check=False, timeout=30)  # noqa: S603 - fixed commands
    return asked.stdout.strip() if asked.returncode == 0 else None


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """Return `cpu`, `cpu_generation` (None: unknown) and `cpu_features`, from the first processor in `cpuinfo`."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    found: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        found.setdefault(name.strip(), value.strip())
    flags = found.get("flags", "").split()
    generation = None
    if found.get("vendor_id") == "AuthenticAMD":
        generation = AMD_GENERATIONS.get((int(found.get("cpu family", "0")), "avx512f" in flags))
    return {
        "cpu": found.get("model name", platform.processor()),
        "cpu_generation": generation,
        "cpu_features": [feature for feature in FEATURES if feature in flags],
    }


def _gpu_facts() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"gpu": None}
    properties = torch.cuda.get_device_properties(0)
    driver = _said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    compilers = compiler_versions((properties.major, properties.minor)).as_json() if HAS_TRITON else {}
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "l2_cache_mib": round(properties.L2_cache_size / 2**20, 1),
        "cuda": torch.version.cuda,
        "driver": driver.split()[0] if driver else None,
        **compilers,
    }


def save(name: str, result: dict[str, Any], args: argparse.Namespace, *, commit: str | None = None) -> None:
    """Write `result` with its environment to `args.out/name.json`, and say so; a quick run saves nothing."""
    if args.quick:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    path: Path = args.out / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(commit=commit), **result}, indent=2) + "\n")
    print("saved", path)


def documentation() -> str:
    """Return this project's guides, one after another: a text that every checkout has."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    titles = list(head)
    first, *rest = (f"| {' | '.join(map(str, row))} |" for row in (titles, *rows))
    return "\n".join([first, "|" + "---|" * len(titles), *rest])


Columns = Mapping[str, str | Callable[[Any], object]]
"""By title, what a column shows of a row: a format whose fields are the row's, or a function of it."""


def _shown(show: str | Callable[[Any], object], row: Any) -> object:
    return show.format_map(row) if isinstance(show, str) else show(row)


def columns_table(columns: Columns, rows: Iterable[Any]) -> str:
    """Return a Markdown table with a line for each of `rows`."""
    return table(columns, [[_shown(show, row) for show in columns.values()] for row in rows])


def lines_table(lines: Columns, columns: Iterable[tuple[str, Any]], *, corner: str = "") -> str:
    """Return a Markdown table with a column for each of `columns`, title and what `lines` are shown of."""
    found = list(columns)
    cells = [[title, *(_shown(show, each) for _, each in found)] for title, show in lines.items()]
    return table([corner, *(title for title, _ in found)], cells)


def paragraph(text: str) -> str:
    """Return the text in lines as long as the pages have."""
    return textwrap.fill(text, 128, break_long_words=False, break_on_hyphens=False)


def sections(*parts: str) -> str:
    """Return paragraphs and tables with an empty line between them."""
    return "\n\n".join(parts)


def number(value: float) -> str:
    """Return a number with three digits, or all of those before the point, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def numbers(*names: str) -> dict[str, Callable[[Mapping[str, float]], str]]:
    """Return columns of a table: numbers of a row, each under its own name."""
    return {name: lambda row, name=name: number(row[name]) for name in names}  # type: ignore[misc]  # a default


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every number of `rows`, which all have the same names."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def in_turns(sides: Mapping[str, Callable[[int], T]], *, rounds: int, warm_up: int = 1) -> dict[str, list[T]]:
    """Let all sides act in each round, and return what each gave; who begins alternates.

    A side is called with the number of the round; those of the warm-up, which do not count, are below 0.
    """
    found: dict[str, list[T]] = {side: [] for side in sides}
    for number in range(-warm_up, rounds):
        for side in sides if number % 2 == 0 else reversed(list(sides)):
            given = sides[side](number)
            if number >= 0:
                found[side].append(given)
    return found


def seconds_of(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


def argument_parser(
    doc: str | None, *, quick: str, rounds: int | None = None, shape: str | None = None
) -> argparse.ArgumentParser:
    """Return a parser that shows `doc` as it is and knows `--out` and `--quick`.

    Args:
        doc: the docstring of the benchmark.
        quick: what is less with `--quick`.
        rounds: default of `--rounds`; None: there is no such flag.
        shape: default of `--shape`; None: there is no such flag.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--quick", action="store_true", help=f"{quick}; result not saved")
    if rounds is not None:
        parser.add_argument(
            "--rounds", "--repeats", type=int, default=rounds, help=f"whose medians count; default {rounds}"
        )
    if shape is not None:
        parser.add_argument("--shape", choices=sorted(SHAPES), default=shape, help="of a model with random weights")
    return parser

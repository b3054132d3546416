"""The parity part: greedy tokens of tiny models against the CPU's, and bits of logits in every batch.

For each family and dtype, a process compares engines of every mode and backend (`parity_checks.py`); all run side by
side, because most of their time goes into compiling kernels, which each does on one core. A check that fails is a
finding, and the rest goes on. The models are small: this says nothing about long contexts or real weights.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

from infer_bench.agreement import TOLERANCES
from infer_bench.gpu.parity_checks import Values, checked_configurations
from infer_bench.gpu.parts import Finding, PartReport, Place
from infer_bench.gpu.tiny_models import FAMILIES, write_tiny_model

LOGIT_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.2}
"""By dtype, differences of logits, in standard deviations, that rounding explains; on a CPU it makes 1e-5 and 0.08.

A wrong window, position or scale makes a larger difference before it changes a decided token.
"""
ANSWER_TOKENS, REHEARSED_TOKENS = 24, 6
_GRACE_S = 15.0
"""A process that runs so long after its time hangs; its last check may have compiled kernels."""
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*: .+", re.MULTILINE)

Record = dict[str, Any]
"""Of a check: its `config`, and what `CheckedModel.check` returns or the `error`."""


def run(place: Place) -> PartReport:
    """Compare everything that there is time for."""
    models = list(product(FAMILIES, LOGIT_TOLERANCES))
    planned = checked_configurations(is_rehearsal=place.is_rehearsal)
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(len(models)) as pool:
        folders = {family: write_tiny_model(family, Path(made) / family) for family in FAMILIES}
        checked = pool.map(lambda model: check_model(place, folders[model[0]], model[1], planned), models)
        records = dict(zip(models, checked, strict=True))
    findings = [judge(*model, found, num_planned=len(planned)) for model, found in records.items()]
    return PartReport(findings=findings, details={" ".join(model): found for model, found in records.items()})


def check_model(place: Place, folder: Path, dtype: str, planned: Sequence[Values]) -> list[Record]:
    """Perform the checks of one model until the part's time is over, in as many processes as that takes."""
    deadline_s = place.deadline_s - _GRACE_S
    output = folder / f"{dtype}.jsonl"
    asked: dict[str, Any] = {"folder": str(folder), "device": str(place.device), "dtype": dtype, "output": str(output)}
    asked["num_tokens"] = REHEARSED_TOKENS if place.is_rehearsal else ANSWER_TOKENS

    def perform(first: int) -> tuple[list[Record], str | None]:
        output.write_text("", encoding="utf-8")
        seconds = deadline_s - time.monotonic()
        command = ["-m", "infer_bench.gpu.parity_checks", json.dumps(asked | {"first": first, "seconds": seconds})]
        error = run_python(command, seconds=seconds + _GRACE_S)
        lines = output.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")], error

    return collect_records(planned, perform, is_time_left=lambda: time.monotonic() < deadline_s)


def collect_records(
    planned: Sequence[Values],
    perform: Callable[[int], tuple[list[Record], str | None]],
    *,
    is_time_left: Callable[[], bool],
) -> list[Record]:
    """Let one process after another `perform` the checks from a given number on, and return all records.

    `perform` returns the records of a process, and the error that it ended with, or None. The check during which a
    process ends has failed; the next process begins with the check after it.
    """
    records: list[Record] = []
    while len(records) < len(planned) and is_time_left():
        found, error = perform(len(records))
        records += found
        if error is None:
            break
        records += [{"config": config, "error": error} for config in planned[len(records) :][:1]]
    return records


def run_python(arguments: Sequence[str], *, seconds: float) -> str | None:
    """Run this Python with `arguments` and one thread, and kill it after `seconds`.

    Returns:
        None if it succeeds. Else the first exception in its standard error: an engine logs the cause before its request
        fails. Without one, how it ended.
    """
    command = [sys.executable, *arguments]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(  # noqa: S603 - modules of ours
            command, env=variables, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "killed after its time"
    if ended.returncode == 0:
        return None
    print(ended.stderr, file=sys.stderr)
    return next(iter(_EXCEPTION.findall(ended.stderr)), f"ended with exit code {ended.returncode}")


def judge(family: str, dtype: str, records: Sequence[Record], *, num_planned: int) -> Finding:
    """Judge whether all planned checks of a model were performed, and show what they should."""
    wrong = [record for record in records if not is_right(record, dtype)]
    found = f"{len(records) - len(wrong)} of {num_planned} configurations"
    found += f"; {num_planned - len(records)} left out: no time" if len(records) < num_planned else ""
    compared = [record for record in records if "error" not in record]
    if compared:
        decided, same = (sum(record[key] for record in compared) for key in ("num_decided", "num_decided_same"))
        rows, equal = (sum(record.get(key, 0) for record in compared) for key in ("num_rows", "num_equal_rows"))
        error = max(record["logit_error"] for record in compared)
        found += f"; {same} of {decided} tokens, logits within {error:.2g} sd, {equal} of {rows} rows of equal bits"
    if wrong:
        name = ", ".join(f"{name}={value}" for name, value in wrong[0]["config"].items())
        found += f"; not: {name} {wrong[0].get('error', '')[:160]}"
    tolerance = TOLERANCES[getattr(torch, dtype)]
    return Finding(
        f"{family} {dtype}: greedy tokens, bits with batch_invariant",
        found,
        wanted=f"all: tokens whose margin exceeds {tolerance:g} sd, logits within {LOGIT_TOLERANCES[dtype]:g} sd, bits",
        holds=not wrong and len(records) == num_planned,
    )


def is_right(record: Record, dtype: str) -> bool:
    """Return whether a check compared something, and shows what it should."""
    if "error" in record:
        return False
    are_tokens_right = record["num_decided_same"] == record["num_decided"] > 0
    are_logits_close = record["logit_error"] <= LOGIT_TOLERANCES[dtype]  # false for a NaN
    are_bits_right = not record["config"].get("batch_invariant") or record["num_equal_rows"] == record["num_rows"] > 0
    return bool(are_tokens_right and are_logits_close and are_bits_right)

"""The parity part: greedy tokens of tiny models against the CPU's, and bits of logits in every batch.

For each family and dtype, a process compares engines of every mode and backend (`parity_checks.py`). Two more processes
measure whether rows of plain `F.linear` keep their bits. A configuration that fails is a finding, and the rest goes on.
The models are small: this says nothing about long contexts or real weights.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import torch

from infer_bench.agreement import TOLERANCES
from infer_bench.gpu.device_memory import free_memory
from infer_bench.gpu.parity_checks import DEVICE_LOST, Check, Kind, all_checks
from infer_bench.gpu.parts import Finding, PartReport, Place
from infer_bench.gpu.tiny_models import FAMILIES, write_tiny_model

DTYPES = ("bfloat16", "float32")
LOGIT_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.2}
"""Differences of single logits, in standard deviations, that rounding explains; on a CPU it makes 1e-5 and 0.08.

A wrong window, position or scale makes a larger difference before it changes a decided token.
"""
ANSWER_TOKENS, REHEARSED_TOKENS = 24, 4
WORKSPACES: dict[str, dict[str, str]] = {
    "default workspace": {},
    "small workspace": {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"},
}
"""Environment variables of cuBLAS, which reads them once in a process."""
_GRACE_S = 15.0
"""A process that runs so long after its time hangs; its last check may have compiled kernels."""

Result = TypeVar("Result")
Record = dict[str, Any]
Ended = subprocess.CompletedProcess[str]


@dataclass(slots=True, kw_only=True)
class ModelResult:
    """What was found of one family in one dtype.

    Attributes:
        family: of the tiny model.
        dtype: of weights and activations.
        planned: the checks, in order.
        head: the first line of the process; empty if there was none.
        records: of the checks, in order, as `parity_checks.py` writes them.
        failure: why no check began; empty if one did.
    """

    family: str
    dtype: str
    planned: Sequence[Check]
    head: Record = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    failure: str = ""

    @property
    def name(self) -> str:
        """The name in the table."""
        return f"{self.family} {self.dtype}"

    def compared(self, kind: Kind) -> list[Record]:
        """Return the records of the checks of one kind that did not fail."""
        return [record for record in self.records if record["kind"] == kind and "error" not in record]

    def left_out(self, kind: Kind) -> str:
        """Say how many checks of one kind were not begun; nothing if all were."""
        count = sum(check.kind == kind for check in self.planned[len(self.records) :])
        return f"; {count} left out, no time left" if count else ""


def run(place: Place) -> PartReport:
    """Compare everything that there is time for."""
    free_memory()  # the other processes need it
    with tempfile.TemporaryDirectory() as made:
        folders = {family: write_tiny_model(family, Path(made) / family) for family in FAMILIES}
        first, second = (
            [partial(check_model, place, folders[family], family, dtype) for family in FAMILIES] for dtype in DTYPES
        )
        rows = [partial(measure_rows, place, workspace) for workspace in WORKSPACES]
        tasks: list[Callable[[float], Any]] = [*first, *rows, *second]
        found = run_tasks(tasks, deadline_s=place.deadline_s - _GRACE_S)
    row_results = dict(zip(WORKSPACES, found[len(first) : -len(second)], strict=True))
    return report_of([*found[: len(first)], *found[-len(second) :]], row_results)


def check_model(place: Place, folder: Path, family: str, dtype: str, deadline_s: float) -> ModelResult:
    """Perform the checks of one model until `deadline_s`, in as many processes as that takes."""
    result = ModelResult(family=family, dtype=dtype, planned=all_checks(is_rehearsal=place.is_rehearsal))
    output = folder / f"{dtype}.jsonl"
    asked: dict[str, Any] = {"folder": str(folder), "device": str(place.device), "dtype": dtype, "output": str(output)}
    asked["answer_tokens"] = REHEARSED_TOKENS if place.is_rehearsal else ANSWER_TOKENS

    def perform(first: int) -> tuple[Ended, list[Record]]:
        output.write_text("", encoding="utf-8")
        seconds = deadline_s - time.monotonic()
        arguments = json.dumps(asked | {"first": first, "seconds": seconds})
        ended = run_python(["-m", "infer_bench.gpu.parity_checks", arguments], seconds=seconds + _GRACE_S)
        return ended, read_lines(output)

    collect_records(result, perform, is_time_left=lambda: time.monotonic() < deadline_s)
    return result


def collect_records(
    result: ModelResult, perform: Callable[[int], tuple[Ended, list[Record]]], *, is_time_left: Callable[[], bool]
) -> None:
    """Let one process after another `perform` the checks from a given one on, and keep their records in `result`.

    The check during which a process dies has failed; the next process begins with the check after it.
    """
    while len(result.records) < len(result.planned) and is_time_left():
        ended, lines = perform(len(result.records))
        if not lines:
            result.failure = "no check was begun: the process " + describe_end(ended)
            return
        result.head, *records = lines
        result.records += records
        if ended.returncode == 0:
            return
        if ended.returncode == DEVICE_LOST and records:
            continue  # the last record says why
        if len(result.records) < len(result.planned):
            check = result.planned[len(result.records)]
            error = f"the process {describe_end(ended)}"
            result.records.append(
                {"kind": check.kind, "name": check.name, "error": error, "traceback": ended.stderr[-4000:]}
            )


def run_python(arguments: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run this Python with `arguments` and one thread, and kill it after `seconds`; `environment` adds variables.

    A kernel with an illegal access makes the GPU unusable for its whole process, so that the caller cannot do this work
    itself. Besides, a process compiles its kernels on one core; several compile side by side.
    """
    path = os.pathsep.join(folder for folder in sys.path if folder)
    variables = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | dict(environment or {})
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(  # noqa: S603 - modules of ours
            command, env=variables, capture_output=True, text=True, timeout=max(0.1, seconds), check=False
        )
    except subprocess.TimeoutExpired:
        return Ended(command, -signal.SIGKILL, stdout="", stderr="killed after its time")


def describe_end(ended: Ended) -> str:
    """Say in a line how a process ended, with the last line of its standard error."""
    last = ended.stderr.strip().rpartition("\n")[2]
    return f"ended with status {ended.returncode}" + (f": {last}" if last else "")


def run_tasks(
    tasks: Sequence[Callable[[float], Result]], *, deadline_s: float, num_workers: int | None = None
) -> list[Result]:
    """Call all `tasks`, several at a time, each with the `time.monotonic()` by which it should end.

    A task gets an equal share of the time that is left when it begins, so that all later ones get theirs.

    Args:
        tasks: in the order in which they begin.
        deadline_s: the `time.monotonic()` by which all should have ended.
        num_workers: tasks at a time; None is the number of cores.
    """
    workers = num_workers or len(os.sched_getaffinity(0))

    def begin(index: int) -> Result:
        now_s = time.monotonic()
        num_rounds_left = ceil((len(tasks) - index) / workers)
        return tasks[index](now_s + (deadline_s - now_s) / num_rounds_left)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(begin, range(len(tasks))))


def read_lines(path: Path) -> list[Record]:
    """Return the JSON of every complete line."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def measure_rows(place: Place, workspace: str, deadline_s: float) -> Record:
    """Return what `row_invariance` prints with one of `WORKSPACES`, or its `error`."""
    command = ["-m", "infer_bench.kernels.row_invariance", "--device", place.device.type]
    seconds = deadline_s - time.monotonic()
    if seconds <= 0:
        return {"error": "left out: no time"}
    ended = run_python(
        [*command, *(["--tiny"] if place.is_rehearsal else [])], seconds=seconds, environment=WORKSPACES[workspace]
    )
    if ended.returncode != 0:
        return {"error": describe_end(ended), "stderr": ended.stderr}
    found: Record = json.loads(ended.stdout)
    return found


def report_of(models: Sequence[ModelResult], rows: dict[str, Record]) -> PartReport:
    """Judge all results; `rows` are those of `measure_rows`, by workspace."""
    findings = []
    for model in models:
        findings += [judge_tokens(model), judge_bits(model)]
        findings += judge_failures(model)
    findings += [finding for workspace, found in rows.items() for finding in describe_rows(workspace, found)]
    details = {model.name: {"head": model.head, "failure": model.failure, "checks": model.records} for model in models}
    return PartReport(findings=findings, details={"models": details, "row_invariance": rows})


def judge_tokens(model: ModelResult) -> Finding:
    """Judge whether the tokens are those of the oracle wherever rounding cannot decide, and the logits close."""
    tolerance = TOLERANCES[getattr(torch, model.dtype)]
    most = LOGIT_TOLERANCES[model.dtype]
    what = f"{model.name}: greedy tokens against the CPU's in fp32"
    wanted = f"the same where the margin exceeds {tolerance:g} sd; logits within {most:g} sd"
    records = model.compared("oracle")
    if not records:
        return _nothing_compared(what, model, "oracle", wanted)
    decided, same = (sum(record[key] for record in records) for key in ("num_decided", "num_decided_same"))
    errors = [record["logit_error"] for record in records]
    found = (
        f"{len(records)} configurations, {model.head['num_prompts']} answers of {model.head['answer_tokens']} tokens: "
        f"{same} of {decided} decided tokens the same; logits within {max(errors):.2g} sd{model.left_out('oracle')}"
    )
    holds = same == decided > 0 and all(error <= most for error in errors)
    return Finding(what, found, wanted=wanted, holds=holds)


def judge_bits(model: ModelResult) -> Finding:
    """Judge whether logits with `batch_invariant` are the same bits in every batch."""
    what, wanted = f"{model.name}: bits of the logits with batch_invariant", "those of the request alone"
    records = model.compared("invariance")
    if not records:
        return _nothing_compared(what, model, "invariance", wanted)
    different = [record["name"] for record in records if not record["num_equal_rows"] == record["num_rows"] > 0]
    found = f"equal in {len(records) - len(different)} of {len(records)} ways"
    found += f"; not {', '.join(different)}" if different else ""
    return Finding(what, found + model.left_out("invariance"), wanted=wanted, holds=not different)


def judge_failures(model: ModelResult) -> list[Finding]:
    """Return a finding for each error that checks failed with."""
    names: dict[str, list[str]] = {}
    for record in model.records:
        if "error" in record:
            line = (record["error"].strip() or "no message").splitlines()[0][:160]
            names.setdefault(line, []).append(record["name"])
    return [
        Finding(f"{model.name}: {len(failed)} of its checks, first `{failed[0]}`", error, holds=False)
        for error, failed in names.items()
    ]


def describe_rows(workspace: str, found: Record) -> list[Finding]:
    """Describe, for each setting of the library, the layers whose rows have the same bits in every batch."""
    name = f"rows of F.linear, {workspace}"
    if "error" in found:
        return [Finding(name, found["error"], holds=False)]
    findings = []
    for setting, layers in found["differing_rows"].items():
        differing = [f"{layer} ({len(rows)} batches)" for layer, rows in layers.items() if rows]
        equal = f"equal for {len(layers) - len(differing)} of {len(layers)} layers"
        text = f"{equal}; not for {', '.join(differing)}" if differing else equal
        findings.append(Finding(f"{name}, {setting}", text))
    return findings


def _nothing_compared(what: str, model: ModelResult, kind: Kind, wanted: str) -> Finding:
    found = model.failure or f"nothing was compared{model.left_out(kind)}"
    return Finding(what, found, wanted=wanted, holds=False)

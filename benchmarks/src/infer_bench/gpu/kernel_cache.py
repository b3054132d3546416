"""The compile part: fills Triton's cache with the kernels of every engine that later parts build.

Without them the first engine of a shape would compile for tens of seconds, and a part would leave out what it has no
time for. An engine's start launches every kernel that its steps do, whichever its number of layers; so for each shape a
process builds an engine of a few layers, side by side with the others', because each compiles on one core.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from infer_bench.gpu import engine_speed, mode_speed, step_profile
from infer_bench.gpu.benchmark_core import BenchmarkCore, StepMode
from infer_bench.gpu.parts import Finding, PartReport, Place, left_out
from infer_engine.doctor.gpu_facts import ask_nvidia_smi, is_exclusive
from infer_kernels.gpu import cache_folder

SHAPES: Sequence[str] = tuple(dict.fromkeys((*engine_speed.ENGINES, *mode_speed.ENGINES, step_profile.SHAPE)))
NUM_LAYERS = 6
"""So many of the first layers of each shape have every kind of layer."""
MAX_BATCH_SIZE = max(mode_speed.ON_GPU.batches)
MODE = StepMode(use_cuda_graphs=True, use_async_scheduling=True)
SHAPE_COMMAND: Sequence[str] = (sys.executable, "-m", __name__)
"""Compiles for a shape; its arguments are the shape and the device."""


def run(place: Place) -> PartReport:
    """Compile for every shape; what is not done in time is said, and compiled later, by the part that needs it."""
    num_before = num_compiled()
    is_alone = not place.is_rehearsal and is_exclusive(ask_nvidia_smi())
    report = PartReport()
    for shapes in [[shape] for shape in SHAPES] if is_alone else [list(SHAPES)]:
        report.findings += compile_together(place, shapes)
    report.details["compiled"] = num_compiled() - num_before
    report.findings.append(Finding("kernels compiled", f"{report.details['compiled']}, {num_before} were there before"))
    return report


def compile_together(place: Place, shapes: Sequence[str]) -> list[Finding]:
    """Run a process for each of `shapes` at once, and return what came of each."""
    if place.seconds_left <= 0:
        return [left_out(shape) for shape in shapes]
    began = time.monotonic()
    processes = [
        subprocess.Popen([*SHAPE_COMMAND, shape, str(place.device)], start_new_session=True)  # noqa: S603 - this program
        for shape in shapes
    ]
    findings = []
    try:
        for shape, process in zip(shapes, processes, strict=True):
            try:
                code = process.wait(timeout=max(0.0, place.seconds_left))
            except subprocess.TimeoutExpired:
                findings.append(left_out(shape))
                continue
            seconds = time.monotonic() - began
            found = f"ready after {seconds:.0f} s" if code == 0 else f"exit code {code}; see standard error"
            findings.append(Finding(shape, found, wanted="ready", holds=code == 0))
    finally:
        for process in processes:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return findings


def compile_shape(shape: str, device: torch.device) -> None:
    """Build an engine of `shape` with few layers on `device`, whose start compiles its kernels."""
    place = Place(device=device, deadline_s=time.monotonic())
    BenchmarkCore(
        place,
        shape,
        **MODE.fields(place),
        num_layers=NUM_LAYERS,
        max_batch_size=MAX_BATCH_SIZE if not place.is_rehearsal else max(mode_speed.REHEARSED.batches),
        max_seq_len=None if not place.is_rehearsal else 64,
        kv_cache_memory="1GiB" if not place.is_rehearsal else "16MiB",
    )


def num_compiled() -> int:
    """Return how many kernels there are in Triton's cache."""
    return sum(1 for _ in Path(cache_folder()).glob("*/*.cubin"))


if __name__ == "__main__":
    compile_shape(sys.argv[1], torch.device(sys.argv[2]))

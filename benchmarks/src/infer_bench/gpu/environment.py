"""The first part: describes the machine, and measures the rates that all later shares refer to."""

from dataclasses import asdict

import torch

from infer_bench.ceilings import CeilingProbe, Ceilings
from infer_bench.gpu.parts import Finding, PartReport, Place
from infer_bench.results import environment

ROUNDS = 3
REHEARSED_BYTES, REHEARSED_MATMUL = 2**22, 64


def run(place: Place) -> PartReport:
    """Report the machine and its ceilings."""
    facts = environment()
    ceilings = measure_ceilings(place.device)
    gpu = f"{facts['gpu']} ({facts['gpu_memory_gib']} GiB), driver {facts['driver']}" if facts["gpu"] else "no GPU"
    findings = [
        Finding("machine", f"{gpu}, torch {facts['torch']}, triton {facts['triton']}, Python {facts['python']}"),
        Finding("copy rate", f"{ceilings.copy_bytes_per_s / 1e9:.0f} GB/s, read and written"),
        Finding("read rate of a sum", f"{ceilings.read_bytes_per_s / 1e9:.0f} GB/s"),
        Finding("bf16 matmul rate", f"{ceilings.operations_per_s / 1e12:.1f} TFLOP/s"),
    ]
    return PartReport(findings=findings, details={"machine": facts, "ceilings": asdict(ceilings)})


def measure_ceilings(device: torch.device) -> Ceilings:
    """Return the best of some rounds; in a rehearsal, of sizes that say nothing."""
    probe = (
        CeilingProbe(device, torch.bfloat16)
        if device.type == "cuda"
        else CeilingProbe(device, torch.bfloat16, num_bytes=REHEARSED_BYTES, matmul_sizes=[REHEARSED_MATMUL])
    )
    for _ in range(ROUNDS):
        probe.measure()
    return probe.best

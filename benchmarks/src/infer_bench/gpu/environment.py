"""The first part: describes the machine, and measures the rates that all later shares refer to."""

from dataclasses import asdict

import torch

from infer_bench.ceilings import READ_BYTES, CeilingProbe
from infer_bench.gpu.parts import Finding, PartReport, Place
from infer_bench.results import environment

ROUNDS = 3


def run(place: Place) -> PartReport:
    """Report the machine, and its best rates of some rounds; in a rehearsal, of sizes that say nothing."""
    facts = environment()
    num_bytes, sizes = (2**22, [64]) if place.is_rehearsal else (READ_BYTES, None)
    probe = CeilingProbe(place.device, torch.bfloat16, num_bytes=num_bytes, matmul_sizes=sizes)
    for _ in range(ROUNDS):
        probe.measure()
    ceilings = probe.best
    gpu = f"{facts['gpu']} ({facts['gpu_memory_gib']} GiB), driver {facts['driver']}" if facts["gpu"] else "no GPU"
    findings = [
        Finding("machine", f"{gpu}, torch {facts['torch']}, triton {facts['triton']}, Python {facts['python']}"),
        Finding("copy rate", f"{ceilings.copy_bytes_per_s / 1e9:.0f} GB/s, read and written"),
        Finding("read rate of a sum", f"{ceilings.read_bytes_per_s / 1e9:.0f} GB/s"),
        Finding("bf16 matmul rate", f"{ceilings.operations_per_s / 1e12:.1f} TFLOP/s"),
    ]
    return PartReport(findings=findings, details={"machine": facts, "ceilings": asdict(ceilings)})

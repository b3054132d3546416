"""Whether a GPU's memory is as fast as the card's: a copy, and decode attention of the model's heads.

Slow memory has causes that no other check sees: a card that is throttled or shared, or a driver for another one.
"""

from typing import Any

import torch

from infer_engine.doctor.gpu_facts import is_slice
from infer_engine.doctor.reporter import Reporter, describe
from infer_kernels.checks import ModelOps
from infer_kernels.checks.memory_rates import NUM_BYTES, MemoryRates, measure_memory_rates

LEAST_SHARE = 0.5
"""Share of the card's rate: a copy reaches about nine tenths of it, decode attention about three quarters."""
_LEAST_BYTES_PER_S = 20e9
"""A lower rate of a card is none: its driver does not tell."""
_MEMORY_SHARE = 0.25


def examine_memory_rate(reporter: Reporter, ops: ModelOps, device: torch.device) -> None:
    """Report how fast a GPU's memory is, while no other process of the doctor uses it.

    Args:
        reporter: takes the findings.
        ops: ops of the model whose attention reads the memory.
        device: the GPU.
    """
    properties = torch.cuda.get_device_properties(device)
    free, _ = torch.cuda.mem_get_info(device)
    try:
        rates = measure_memory_rates(ops, device, num_bytes=min(NUM_BYTES, int(_MEMORY_SHARE * free)))
    except torch.OutOfMemoryError as error:
        reporter.skip("memory rate", describe(error))
        return
    judge_memory_rate(reporter, rates, card=None if is_slice(properties.name) else rate_of_card(properties))


def rate_of_card(properties: Any) -> float | None:
    """Return the bytes per second that a card's memory has by its clock and its width; None: they are not known.

    Memory moves two bits for each of its bus's lines in a cycle, as the driver counts cycles: an H100 SXM of 2,619 MHz
    and 5,120 bits has 3.35 TB/s.

    Args:
        properties: those of `torch.cuda.get_device_properties`: `memory_clock_rate` in kHz, `memory_bus_width` in bits.
    """
    rate = float(2 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8)
    return rate if rate >= _LEAST_BYTES_PER_S else None


def judge_memory_rate(reporter: Reporter, rates: MemoryRates, *, card: float | None) -> None:
    """Report `rates`, and whether one is less than half of the card's; None: the card's rate is not known."""
    reporter.details(memory_rates={"copy": rates.copied, "decode_attention": rates.attended, "card": card})
    for what, rate in (("memory, copied", rates.copied), ("memory, read by decode attention", rates.attended)):
        found = f"{rate / 1e9:.0f} GB/s"
        if card is None:
            reporter.ok(what, f"{found}; the rate of this card or slice is not known")
            continue
        found += f", {rate / card:.0%} of the {card / 1e9:.0f} GB/s that clock and width of its memory make"
        if rate < LEAST_SHARE * card:
            fix = (
                "see `nvidia-smi -q -d PERFORMANCE,CLOCK` for throttling, and `nvidia-smi` for other processes; "
                "otherwise please report it"
            )
            reporter.warn(what, found, fix=fix)
        else:
            reporter.ok(what, found)

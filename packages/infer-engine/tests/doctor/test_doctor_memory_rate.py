"""The doctor says how fast a GPU's memory is, and warns if it is far slower than the card's."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infer_engine.doctor import engine, memory_rate
from infer_engine.doctor.engine import examine_engine
from infer_engine.doctor.memory_rate import judge_memory_rate, rate_of_card
from infer_engine.protocol.doctor import DoctorRequest
from infer_kernels.checks.memory_rates import MemoryRates
from infer_proofs.engine.doctor import examined, reporter_of

REQUEST = DoctorRequest(model=None, device="cuda", dtype="auto", seconds=1.0)
H100 = {"memory_clock_rate": 2_619_000, "memory_bus_width": 5120, "name": "NVIDIA H100 80GB HBM3"}
"""As its driver says, kHz and bits."""


@pytest.mark.parametrize(
    ("clock", "width", "gb_per_s"),
    [(2_619_000, 5120, 3352), (1_593_000, 5120, 2039), (10_501_000, 384, 1008), (14_001_000, 512, 1792), (0, 0, None)],
    ids=["H100 SXM", "A100 80 GB", "RTX 4090", "RTX 5090", "not told"],
)
def test_clock_and_width_make_the_rate_of_the_data_sheet(clock: int, width: int, gb_per_s: int | None) -> None:
    rate = rate_of_card(SimpleNamespace(memory_clock_rate=clock, memory_bus_width=width))
    assert (None if rate is None else round(rate / 1e9)) == gb_per_s


@pytest.mark.parametrize(
    ("copied", "attended", "card", "slow"),
    [
        (2900e9, 2400e9, 3352e9, set()),
        (2900e9, 1600e9, 3352e9, {"memory, read by decode attention"}),
        (300e9, 200e9, 3352e9, {"memory, copied", "memory, read by decode attention"}),
        (300e9, 200e9, None, set()),
    ],
)
def test_less_than_half_of_the_cards_rate_is_a_warning(
    copied: float, attended: float, card: float | None, slow: set[str]
) -> None:
    found, reporter = reporter_of(REQUEST)
    judge_memory_rate(reporter, MemoryRates(copied=copied, attended=attended), card=card)
    assert found.named("warning") == slow
    assert len(found.findings) == 2
    assert f"{copied / 1e9:.0f} GB/s" in found.findings["memory, copied"].found
    assert found.details["memory_rates"] == {"copy": copied, "decode_attention": attended, "card": card}


@pytest.mark.parametrize(("name", "is_known"), [(H100["name"], True), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", False)])
def test_an_engines_gpu_is_measured_and_a_slice_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, name: str, *, is_known: bool
) -> None:
    """The check of a GPU on a CPU, which really copies and attends."""
    properties: Any = SimpleNamespace(**H100 | {"name": name})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**20, 2**30))
    monkeypatch.setattr(engine, "DEVICE_CHECKS", {"cpu": engine.DEVICE_CHECKS["cuda"][2:]})
    found = examined(examine_engine)
    rates = found.details["memory_rates"]
    assert rates["copy"] > 0
    assert rates["decode_attention"] > 0
    assert (rates["card"] is not None) == is_known
    assert found.findings["memory, copied"].verdict == ("warning" if is_known else "ok")


def test_a_gpu_without_memory_to_spare_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> MemoryRates:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(memory_rate, "measure_memory_rates", full)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**H100))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 2**30))
    monkeypatch.setattr(engine, "DEVICE_CHECKS", {"cpu": engine.DEVICE_CHECKS["cuda"][2:]})
    assert examined(examine_engine).named("skipped") == {"memory rate"}

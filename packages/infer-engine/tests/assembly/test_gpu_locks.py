"""Engines that start on one GPU do so one after the other; no GPU is needed to see it."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from infer_engine.assembly.gpu_locks import gpu_locks

FIRST, SECOND = (torch.device("cuda", index) for index in range(2))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files; GPUs have an id each."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"id-{device.index}"))
    return tmp_path


def test_an_engine_waits_for_one_that_starts_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    waits = threading.Event()
    monkeypatch.setattr("infer_engine.assembly.gpu_locks.logger.info", lambda *_: waits.set())

    def start() -> None:
        with gpu_locks([FIRST, SECOND]):
            order.append("second")

    with gpu_locks([SECOND]):
        other = threading.Thread(target=start)
        other.start()
        assert waits.wait(30)
        order.append("first")
    other.join(30)
    assert order == ["first", "second"]


def test_nobody_waits_for_an_engine_on_another_gpu_or_after_a_failed_start() -> None:
    with gpu_locks([FIRST]), gpu_locks([SECOND]):
        pass
    with pytest.raises(ValueError, match="too large"), gpu_locks([FIRST]):
        raise ValueError("too large")
    with gpu_locks([FIRST]):
        pass


def test_a_lock_that_cannot_be_opened_stops_nobody(folder: Path) -> None:
    (folder / "infer-gpu-id-0.lock").mkdir()
    with gpu_locks([FIRST]), gpu_locks([FIRST]):
        pass

"""What is said of GPUs that NCCL cannot connect: from nccl#290, #342 and #473, vllm#1710 and #10626, llm-d#352."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from infer_engine.executor.gpu_links import LEAST_SHARED_MEMORY, SHARED_MEMORY, explain_gpu_links

DEVICES = [torch.device("cuda", index) for index in range(3)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A container with 64 MB of shared memory and three GPUs, of which the last is connected to none."""
    machine = SimpleNamespace(blocks=64 << 8, apart=2)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=machine.blocks, f_frsize=4096))
    monkeypatch.setattr(
        torch.cuda, "can_device_access_peer", lambda *pair: machine.apart not in [d.index for d in pair]
    )
    return machine


def test_little_shared_memory_and_gpus_without_direct_access_are_named(machine: SimpleNamespace) -> None:
    memory, peers = explain_gpu_links(DEVICES)
    assert memory.found.startswith(f"{SHARED_MEMORY} has 64 MiB")
    assert "--shm-size" in memory.fix
    assert peers.found == "cuda:0 and cuda:2, cuda:1 and cuda:2 have no direct access (P2P) to each other"
    machine.blocks, machine.apart = LEAST_SHARED_MEMORY // 4096, None
    assert explain_gpu_links(DEVICES) == []


def test_a_machine_without_shared_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: True)
    [link] = explain_gpu_links(DEVICES, tmp_path / "none")
    assert link.found == f"there is no shared memory: {tmp_path}/none: No such file or directory"

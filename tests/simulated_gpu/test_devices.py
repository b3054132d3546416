"""What is decided by a device: its name, its sizes, its group of ranks."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from infer_engine import EngineStartError
from infer_engine.assembly.replicas import config_of_replica
from infer_engine.executor.messages import (
    AllocateCache,
    Done,
    JoinGroup,
    MemoryReport,
    ReportMemory,
    WorkerSetup,
)
from infer_engine.executor.process_group import join_group, rank_device
from infer_engine.executor.worker import Worker
from infer_engine.model_runner.graphs.graph_capture import CUDAGraphCapture
from infer_engine.model_runner.runner import use_device
from infer_engine.protocol import EngineConfig, EngineInfo
from infer_engine.sizing import kv_memory, resolve_device, size_step
from infer_kernels.gpu import Gpu, describe_gpu
from infer_kernels.quantization.rounding import quantize_int4
from infer_proofs.engine.models import ModelEngine, save_servable
from infer_proofs.kernels.simulated_gpu import GpuSpec, Machine, simulated_gpus

GIB = 1 << 30
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def gpus() -> Iterator[Machine]:
    """Two GPUs of 2 GiB, of which others have a quarter."""
    spec = GpuSpec(capability=(8, 6), num_sms=84, total_bytes=2 * GIB, used_bytes=GIB // 2)
    with simulated_gpus(spec, spec) as machine, torch.inference_mode():
        yield machine


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:1"])
def test_device_of_any_name_can_be_made_current(name: str) -> None:
    device = resolve_device(name)
    use_device(device)
    assert torch.cuda.current_device() == device.index == int(name == "cuda:1")


def test_a_gpu_that_kernels_are_not_made_for_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_servable("llama", tmp_path, num_hidden_layers=1)
    monkeypatch.setattr("infer_engine.assembly.runner.load_rank", lambda *_, **__: pytest.fail("weights were read"))
    refused = pytest.raises(ValueError, match=r"^Tesla T4 has compute capability 7\.5, .*8\.0 and later")
    with simulated_gpus(GpuSpec(name="Tesla T4", capability=(7, 5))), refused:
        ModelEngine(tmp_path, device="cuda")


def test_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="`device` is 'cuda:2' but this machine has 2"):
        resolve_device("cuda:2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    with pytest.raises(ValueError, match="'1,2', and what it names is numbered from 0"):
        resolve_device("cuda:2")
    assert resolve_device("cpu") == CPU
    assert [rank_device(GPU, rank).index for rank in (0, 1)] == [0, 1]
    with pytest.raises(ValueError, match="`cuda:2` and this machine has 2"):
        rank_device(GPU, 2)


def test_kernels_are_chosen_for_the_gpu_that_torch_describes() -> None:
    assert describe_gpu(GPU) == Gpu((8, 6), 84)


def test_sizes_of_a_step_and_of_the_kv_cache_are_those_of_the_device() -> None:
    config = EngineConfig(gpu_memory_utilization=0.75)
    on_gpu, on_cpu = (size_step(config, device=device, model_max_seq_len=64) for device in (GPU, CPU))
    assert (on_gpu.max_num_batched_tokens, on_gpu.max_batch_size, on_gpu.prefill_chunk_size) == (8192, 256, 2048)
    assert (on_cpu.max_num_batched_tokens, on_cpu.max_batch_size, on_cpu.prefill_chunk_size) == (2048, 32, 512)
    memory = kv_memory(config, device=GPU, activation_bytes=GIB // 4)
    assert (memory.share, memory.free) == (GIB * 3 // 4, GIB * 3 // 2)


def test_the_page_cache_counts_as_free_where_a_gpus_memory_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_engine.sizing.host_memory", lambda: (5 * GIB, 5 * GIB))
    spec = GpuSpec(total_bytes=8 * GIB, used_bytes=7 * GIB)  # 4 of them are files that were read
    for is_integrated, free in ((False, GIB), (True, 5 * GIB)):
        with simulated_gpus(replace(spec, is_integrated=is_integrated)):
            memory = kv_memory(EngineConfig(gpu_memory_utilization=0.9), device=GPU, activation_bytes=0)
        assert memory.free == free
        assert memory.share == max(0, int(8 * GIB * 0.9) - (8 * GIB - free))


def test_replicas_take_the_gpus_in_turn() -> None:
    config = EngineConfig(device="cuda", data_parallel_size=2)
    first = EngineInfo(**_DESCRIPTION, device="cuda:0")
    assert config_of_replica(1, config, first).device == "cuda:1"
    with pytest.raises(ValueError, match="`use_cpu_graphs`"):
        EngineConfig(device="cuda", use_cpu_graphs=True)


_DESCRIPTION: dict[str, Any] = dict.fromkeys(("architecture", "model", "dtype"), "") | dict.fromkeys(
    ("num_parameters", "vocab_size", "max_seq_len", "num_kv_blocks", "block_size", "max_batch_size", "num_ranks"), 1
)


def test_replay_that_takes_too_long_is_noticed() -> None:
    capture = CUDAGraphCapture(GPU)
    host = torch.zeros(3, pin_memory=True)
    host.copy_(torch.ones(3, device=GPU), non_blocking=True)
    assert not capture.wait(-1.0)
    torch.cuda.synchronize()
    host.copy_(torch.ones(3, device=GPU), non_blocking=True)
    assert capture.wait(10.0)


def test_int4_is_the_same_on_both_devices() -> None:
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    one, other = quantize_int4(weight, group_size=32), quantize_int4(weight.to(GPU), group_size=32)
    assert torch.equal(one.values, other.values.cpu())
    assert torch.equal(one.scales, other.scales.cpu())


@pytest.fixture
def gloo_for_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's own `init_process_group` reach the last call for NCCL, which makes another group."""
    real = dist.init_process_group

    def init(backend: str, *, device_id: torch.device | None = None, **options: Any) -> None:
        assert backend == ("gloo" if device_id is None else "nccl")
        assert device_id is None or device_id.index is not None  # as NCCL wants it
        real("gloo", **options)

    monkeypatch.setattr(dist, "init_process_group", init)


@pytest.mark.usefixtures("gloo_for_nccl")
@pytest.mark.parametrize("device", [GPU, CPU])
def test_ranks_join_by_the_backend_of_their_device(tmp_path: Path, device: torch.device) -> None:
    join_group(str(tmp_path / "store"), rank=0, size=1, device=device, step_timeout_s=10.0)
    dist.destroy_process_group()


def test_the_error_of_a_group_that_nccl_cannot_make_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise dist.DistBackendError("NCCL error: unhandled system error")

    monkeypatch.setattr(dist, "init_process_group", fail)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=64 << 8, f_frsize=4096))
    with pytest.raises(EngineStartError, match=r"rank 1 to the other.*unhandled.*Shared memory: .*64 MiB.*--shm-size"):
        join_group(str(tmp_path / "store"), rank=1, size=2, device=torch.device("cuda", 1), step_timeout_s=10.0)
    with pytest.raises(dist.DistBackendError):
        join_group(str(tmp_path / "store"), rank=1, size=2, device=CPU, step_timeout_s=10.0)


@pytest.mark.usefixtures("gloo_for_nccl")
def test_rank_reports_the_memory_of_its_gpu(tmp_path: Path) -> None:
    save_servable("llama", tmp_path, num_hidden_layers=1)
    config = EngineConfig(device="cuda:1", dtype="float32", max_seq_len=32, max_batch_size=2)
    sent: list[Any] = []
    rank = Worker(
        WorkerSetup(config=config, folder=str(tmp_path), rank=0, store=str(tmp_path / "store"), log_level=0),
        send=sent.append,
    )
    assert torch.cuda.current_device() == 1
    try:
        rank.handle(JoinGroup())
        rank.handle(AllocateCache(num_blocks=[1]))
        rank.handle(ReportMemory())
    finally:
        dist.destroy_process_group()
    assert [type(message) for message in sent] == [Done, Done, MemoryReport]
    assert isinstance(sent[-1], MemoryReport)
    assert 0 < sent[-1].share < sent[-1].free < GIB * 3 // 2

"""The doctor on a made-up GPU: each part runs to its end and finds nothing wrong."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.doctor.checkpoint import examine_checkpoint
from infer_engine.doctor.engine import RecordedEngine, SmallModel, examine_rate_of_memory, examine_step_memory
from infer_engine.doctor.environment import examine_environment
from infer_engine.doctor.kernels import examine_kernels
from infer_engine.protocol import EngineConfig
from infer_engine.protocol.doctor import DoctorRequest
from infer_kernels.checks import CheckImpossibleError, ModelOps, model_checks
from infer_kernels.checks.cases.attention.long import large_pool_check
from infer_models import ModelConfig
from infer_proofs.engine.doctor import examined, reporter_of
from infer_proofs.engine.models import random_prompt, save_servable
from infer_proofs.kernels.simulated_gpu import GpuSpec, Machine, simulated_gpus

GPU = torch.device("cuda", 0)
QUICK = ("embedding", "resolve_token_ids")
OPS = ModelOps(
    dtype=torch.float32,
    vocab_size=300,
    hidden_size=48,
    intermediate_size=40,
    q_heads=2,
    kv_heads=1,
    head_dim=16,
    block_size=16,
    scale=0.25,
)


@pytest.fixture(autouse=True)
def gpus() -> Iterator[Machine]:
    """Two GPUs."""
    with simulated_gpus(GpuSpec(), GpuSpec()) as machine:
        yield machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with more positions than memory holds."""
    folder = tmp_path_factory.mktemp("tiny")
    save_servable("llama", folder, num_hidden_layers=1, max_position_embeddings=1 << 25)
    return folder


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_gpu_is_described_and_triton_is_ready(device: str) -> None:
    found = examined(examine_environment, device=device)
    assert found.details["device"] == ("cuda:1" if device == "cuda:1" else "cuda:0")
    assert found.findings["GPU"].verdict == "ok"
    assert "Simulated GPU, compute capability 9.0" in found.findings["GPU"].found
    assert not found.named("failed")


@pytest.mark.parametrize(
    ("device", "flag"), [("auto", "--gpu-memory-utilization"), ("cuda:1", "--gpu-memory-utilization"), ("cpu", "--kv-")]
)
def test_memory_of_the_model_is_estimated(folder: Path, device: str, flag: str) -> None:
    found = examined(examine_checkpoint, model=str(folder), device=device, dtype="float32")
    assert len(found.summaries) == 1
    assert "tokens, fewer than the" in found.findings["memory"].found
    assert flag in (found.findings["memory"].fix or "")


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doctor know of no ops but these: interpreted, the others take minutes."""
    monkeypatch.setattr(
        "infer_engine.doctor.kernels.model_checks",
        lambda ops, *, num_joins: [check for check in model_checks(ops, num_joins=num_joins) if check.op in QUICK],
    )


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize("device", ["auto", "cuda:1"])
def test_checks_run_on_the_device_and_on_the_other(
    folder: Path, gpus: Machine, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    made_current = torch.cuda.set_device

    def make_current(device: torch.device) -> None:
        made_current(device)
        ran.append(gpus.current)

    monkeypatch.setattr(torch.cuda, "set_device", make_current)
    found = examined(examine_kernels, model=str(folder), device=device, dtype="float32")
    first, other = (1, 0) if device == "cuda:1" else (0, 1)
    assert (ran, gpus.current) == ([first, other, first], first)
    assert (found.named("failed"), len(found.summaries)) == (set(), 1)
    assert f"checks of {len(QUICK)} ops agree" in found.findings["ops"].found


@pytest.mark.usefixtures("quick_checks")
def test_checks_run_on_a_cpu_beside_gpus(folder: Path) -> None:
    assert "ops" in examined(examine_kernels, model=str(folder), dtype="float32").named("ok")


def test_memory_of_a_step_and_its_rate_are_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, reporter = reporter_of(DoctorRequest(model=None, device="cuda:0", dtype="float32", seconds=600.0))
    values: dict[str, Any] = {"model": str(folder), "device": "cuda:0", "dtype": "float32", "max_seq_len": 32}
    values |= {"max_batch_size": 1, "max_num_batched_tokens": 4, "use_cuda_graphs": False}
    small = SmallModel(
        reporter=reporter,
        config=ModelConfig.from_folder(folder),
        values=values,
        engine=RecordedEngine(EngineConfig(**values)),
        prompts={"a": random_prompt(6)},
        device=GPU,
        dtype=torch.float32,
    )
    examine_step_memory(small)
    assert found.findings["step memory"].verdict == "ok"
    for name, value in {"NUM_SEQS": 2, "_NUM_ROUNDS": 1, "_NUM_CALLS": 1}.items():
        monkeypatch.setattr(f"infer_kernels.checks.memory_rates.{name}", value)
    monkeypatch.setattr("infer_engine.doctor.memory_rate.NUM_BYTES", 1 << 16)
    examine_rate_of_memory(small)
    assert "of the 3352 GB/s" in found.findings["memory, copied"].found


@torch.inference_mode()
def test_large_pool_is_checked_if_memory_has_room() -> None:
    large_pool_check(OPS, num_elements=1 << 16).run(GPU)
    with pytest.raises(CheckImpossibleError, match="are free"):
        large_pool_check(replace(OPS, dtype=torch.float16), num_elements=1 << 29).run(GPU)
    assert torch.cuda.memory_allocated() == 0

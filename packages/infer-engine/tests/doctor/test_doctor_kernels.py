"""The doctor's part `kernels`: right ops are right, a wrong one is a failure, and time that is over is said."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import infer_kernels
from infer_engine.doctor import kernels
from infer_engine.doctor.kernels import examine_kernels, run_checks, share_of
from infer_engine.doctor.model_ops import ops_of
from infer_engine.doctor.model_reading import read_model
from infer_engine.doctor.reporter import Reporter
from infer_engine.model_runner import runner
from infer_engine.model_runner.loading.warm_up import warm_up
from infer_engine.protocol.doctor import DoctorRequest
from infer_engine.scheduling import SchedulerLimits
from infer_kernels import resolve_token_ids
from infer_kernels.checks import CheckImpossibleError, SelfCheck, model_checks
from infer_kernels.cpu import library
from infer_models import ModelConfig
from infer_proofs.engine.doctor import examined, reporter_of
from infer_proofs.engine.models import ALL_FAMILIES, MAX_SEQ_LEN, ModelEngine, save_servable
from infer_proofs.kernels.compiled.ahead_of_time import record_variants
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

CPU = torch.device("cpu")
REQUEST = DoctorRequest(model=None, device="cpu", dtype="auto", seconds=600.0)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_ops_of_every_family_agree(folder_of: Callable[[str], Path], family: str) -> None:
    found = examined(examine_kernels, model=str(folder_of(family)), dtype="bfloat16")
    assert found.named("failed") == found.named("warning") == set()
    assert found.named("skipped") >= {"Triton kernels"}
    assert "agree with their references" in found.summaries[0]


def test_a_wrong_op_is_a_failure_and_the_others_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    right = infer_kernels.add_rms_norm

    def wrong(*args: Any, **options: Any) -> Any:
        out, total = right(*args, **options)
        return 1.1 * out, total

    monkeypatch.setattr(infer_kernels, "add_rms_norm", wrong)
    found = examined(examine_kernels)
    assert {what.split(",")[0] for what in found.named("failed")} == {"add_rms_norm"}
    assert "differs from its reference" in next(iter(found.findings[what] for what in found.named("failed"))).found


def test_an_op_that_raises_is_a_failure() -> None:
    def broken(_: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def impossible(_: torch.device) -> None:
        raise CheckImpossibleError("no memory")

    found, reporter = reporter_of(REQUEST)
    checks = [SelfCheck(op=op, label="x", run=run) for op, run in (("a", broken), ("b", impossible))]
    assert run_checks(reporter, checks, CPU) == 0
    assert "illegal memory access" in found.findings["a, x"].found
    assert found.named("skipped") == {"b, x"}


def test_checks_for_which_there_is_no_time_are_a_warning() -> None:
    found = examined(examine_kernels, seconds=0.0)
    assert found.named("warning") == {"not finished"}
    assert "left out: no time" in found.findings["not finished"].found
    assert "ops" not in found.findings


def test_several_processes_perform_every_check_once_and_an_ops_checks_together() -> None:
    config = ModelConfig.from_folder(demo_folder())
    checks = model_checks(ops_of(config, dtype=torch.bfloat16, block_size=64), num_joins=1)
    shares = [share_of(checks, index=index, count=4) for index in range(4)]
    assert sorted(map(str, checks)) == sorted(str(check) for share in shares for check in share)
    ops = [{check.op for check in share} for share in shares]
    assert sum(map(len, ops)) == len(set().union(*ops))
    assert all(ops)


def demo_folder() -> Path:
    found, reporter = reporter_of(REQUEST)
    assert found.findings == {}
    return read_model(reporter).folder


def test_a_model_that_cannot_be_read_is_skipped_here(tmp_path: Path) -> None:
    found = examined(examine_kernels, model=str(tmp_path))
    assert found.named("skipped") == {"kernels"}
    assert found.named("failed") == set()


def test_a_gpu_that_is_not_there_is_skipped_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert examined(examine_kernels, device="cuda").named("skipped") == {"kernels"}


def test_without_cpp_kernels_plain_pytorch_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFER_CPU_KERNELS", "0")
    monkeypatch.setattr("infer_kernels.dispatch.library", lambda _: None)
    found = examined(examine_kernels)
    assert "C++ kernels" in found.named("skipped")
    assert "ops" in found.named("ok")


@needs_cpu_kernels
def test_it_is_said_what_is_exact_in_quantized_layers() -> None:
    found = examined(examine_kernels, quantization="int8")
    assert "outliers of a row up to 23" in found.findings["quantized layers"].found
    assert "ops" in found.named("ok")
    assert "quantized layers" not in examined(examine_kernels, model="infer-demo").findings


@needs_cpu_kernels
def test_a_system_that_does_not_grant_amx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library(), "is_amx_refused", True)
    found = examined(examine_kernels)
    assert "without AMX, which this system does not grant" in found.findings["C++ kernels"].found


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_on_a_gpu_an_ops_checks_go_to_every_other_gpu_too(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """What a GPU would do is left out: devices are named, and checks write down where they are run."""
    ran: list[tuple[str, str]] = []

    def noted(op: str) -> SelfCheck:
        return SelfCheck(op=op, label="x", run=lambda device: ran.append((op, str(device))))

    monkeypatch.setattr(kernels, "model_checks", lambda *_, **__: [noted(op) for op in ("a", "b", "c")])
    monkeypatch.setattr("torch._C._cuda_setDevice", lambda index: ran.append(("current", f"cuda:{index}")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(kernels, "prepare_gpu", lambda *_, **__: None)
    found = examined(examine_kernels, device=device)
    assert found.named("failed") == set()
    assert [op for op, where in ran if where == "cuda:0"] == ["current", "a", "b", "c", "current"]
    elsewhere = [op for op, where in ran if where == "cuda:1"]
    assert elsewhere[0] == "current"
    assert len(elsewhere) == 3


def test_the_reporter_shortens_what_is_long() -> None:
    found, reporter = reporter_of(REQUEST)
    assert isinstance(reporter, Reporter)
    reporter.fail("x", "word\n" * 1000)
    assert len(found.findings["x"].found) <= 500
    assert "\n" not in found.findings["x"].found


def resolve_to_zeros(input_ids: torch.Tensor, latest_tokens: torch.Tensor) -> None:
    """Launch the kernel, which computes nothing, and let pending ids be 0."""
    resolve_token_ids(input_ids, latest_tokens)
    input_ids.clamp_(min=0)


@pytest.mark.covers("command-line-and-library/doctor-on-gpu")
@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "llama", "qwen2", "qwen3", "qwen3_moe"])
def test_the_checks_compile_every_kernel_that_the_start_of_an_engine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """No kernel computes anything here, so memory has to begin with values that PyTorch can index with."""
    save_servable(family, tmp_path, head_dim=64)
    config = ModelConfig.from_folder(tmp_path)
    with record_variants(90) as variants, monkeypatch.context() as patch:
        patch.setattr(torch, "empty", torch.zeros)
        patch.setattr(torch, "empty_like", torch.zeros_like)
        patch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
        patch.setattr(runner, "resolve_token_ids", resolve_to_zeros)
        engine = ModelEngine(tmp_path, use_cpu_graphs=False, dtype="bfloat16", max_batch_size=24)
        limits = SchedulerLimits(max_batch_size=24, max_num_batched_tokens=256, prefill_chunk_size=100)
        warm_up(engine.observer.runner, limits, max_seq_len=MAX_SEQ_LEN, vocab_size=config.vocab_size)
        needed = set(variants)
        variants.clear()
        for check in model_checks(ops_of(config, dtype=torch.bfloat16, block_size=64), num_joins=1):
            if "pool" not in check.label:
                with suppress(AssertionError):  # nothing was computed
                    check.run(CPU)
        assert len(needed) > 12
        assert {kernel for kernel, _ in needed - variants} == set()

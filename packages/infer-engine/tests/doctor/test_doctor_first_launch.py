"""The doctor launches a kernel and a product before anything larger, and says what to do about what fails."""

import pytest
import torch

from infer_engine.doctor.first_launch import examine_first_launches, examine_launch
from infer_engine.protocol.doctor import DoctorRequest
from infer_proofs.engine.doctor import examined, reporter_of

CPU = torch.device("cpu")


def test_the_first_launches_compute() -> None:
    found = examined(examine_first_launches)
    assert found.named("ok") == {"a Triton kernel", "a matrix product"}
    assert len(found.findings) == 2


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("CUDA error: no kernel image is available for execution on the device", "built for this GPU"),
        ("the provided PTX was compiled with an unsupported toolchain.", "upgrade the driver"),  # NVIDIA/nvbandwidth#61
        ("CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "LD_LIBRARY_PATH"),
        ("CUDA-capable device(s) is/are busy or unavailable", "end the other process"),
        ("ptxas fatal: Value 'sm_121a' is not defined", "TRITON_PTXAS_BLACKWELL_PATH"),  # triton-lang/triton#8539
        ("something else", "nvidia-smi"),
    ],
)
def test_a_launch_that_fails_has_a_fix(message: str, fix: str) -> None:
    def fail(_: torch.device) -> bool:
        raise RuntimeError(message)

    found, reporter = reporter_of(DoctorRequest(model=None, device="cuda", dtype="auto", seconds=1.0))
    examine_launch(reporter, "it", fail, CPU)
    assert fix in found.findings["it"].fix
    assert found.findings["it"].verdict == "failed"


def test_a_launch_with_a_wrong_result_fails() -> None:
    found, reporter = reporter_of(DoctorRequest(model=None, device="cuda", dtype="auto", seconds=1.0))
    examine_launch(reporter, "it", lambda _: False, CPU)
    assert "computes wrongly" in found.findings["it"].found

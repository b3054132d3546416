"""A made-up GPU for the whole engine, whose kernels Triton interprets: `nox -s simulated_gpu`."""

import os
from collections.abc import Iterator

import pytest
import torch

from infer_proofs.kernels.interpreted.bounds import check_addresses
from infer_proofs.kernels.interpreted.faster import make_interpreter_faster
from infer_proofs.kernels.interpreted.interpreter import make_interpreter_faithful
from infer_proofs.kernels.simulated_gpu import Machine, simulated_gpus

if os.environ.get("TRITON_INTERPRET") != "1":
    raise pytest.UsageError("these tests interpret kernels: start pytest with `TRITON_INTERPRET=1`")
make_interpreter_faithful()
make_interpreter_faster()
check_addresses()


@pytest.fixture
def gpu() -> Iterator[Machine]:
    """One GPU."""
    with simulated_gpus() as machine, torch.inference_mode():
        yield machine

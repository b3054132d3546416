"""The checks of models with states find nothing wrong with right ops, and those that are wrong. Both paths of a CPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import infer_kernels
from infer_kernels.checks import ConvolutionOps, DeltaRuleOps, ModelOps, ScanOps
from infer_kernels.checks.cases.mamba2 import MAMBA2
from infer_kernels.checks.cases.states import STATES

CPU = torch.device("cpu")
QWEN3_5 = ModelOps(
    dtype=torch.bfloat16,
    vocab_size=300,
    hidden_size=96,
    intermediate_size=40,
    q_heads=4,
    kv_heads=2,
    head_dim=16,
    block_size=16,
    scale=0.25,
    convolution=ConvolutionOps(channels=192, width=4, has_silu=True),
    delta_rule=DeltaRuleOps(key_heads=2, value_heads=4, key_dim=32, value_dim=16),
    has_output_gate=True,
    has_shared_expert_gate=True,
)
LFM2 = replace(
    QWEN3_5,
    convolution=ConvolutionOps(channels=96, width=3, is_gated=True, has_bias=True),
    delta_rule=None,
    has_output_gate=False,
    has_shared_expert_gate=False,
)
GRANITE = replace(
    QWEN3_5,
    convolution=ConvolutionOps(channels=128, width=4, has_bias=True, has_silu=True),
    delta_rule=None,
    scan=ScanOps(heads=4, head_dim=16, groups=2, state_size=32),
    has_output_gate=False,
    has_shared_expert_gate=False,
)
OPS = {"causal_convolution", "gated_delta_rule", "gated_rms_norm", "sigmoid_gate"}


def failing(ops: ModelOps) -> set[str]:
    """Return the ops of the checks that fail."""
    found = set()
    for table in (STATES, MAMBA2):
        for check in (*table.checks(ops), *table.misaligned_checks(ops)):
            try:
                check.run(CPU)
            except AssertionError:
                found.add(check.op)
    return found


def test_every_op_of_a_model_is_checked_and_no_other() -> None:
    assert {check.op for check in STATES.checks(QWEN3_5)} == OPS
    assert {check.op for check in STATES.checks(LFM2)} == {"gated_convolution"}
    assert not [*STATES.checks(replace(LFM2, convolution=None))]
    assert {check.op for check in MAMBA2.checks(GRANITE)} == {"mamba2_scan", "rms_norm_of_gated"}
    assert not [*MAMBA2.checks(QWEN3_5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ops", [QWEN3_5, LFM2, GRANITE], ids=["qwen3_5", "lfm2", "granite"])
@pytest.mark.usefixtures("cpu_path")
def test_right_ops_agree_with_their_references(ops: ModelOps, dtype: torch.dtype) -> None:
    assert failing(replace(ops, dtype=dtype)) == set()


@pytest.mark.parametrize(
    ("ops", "name"),
    [*((QWEN3_5, name) for name in sorted(OPS)), (GRANITE, "mamba2_scan"), (GRANITE, "rms_norm_of_gated")],
)
def test_an_op_with_wrong_values_fails_and_the_others_do_not(
    monkeypatch: pytest.MonkeyPatch, ops: ModelOps, name: str
) -> None:
    right = getattr(infer_kernels, name)

    def a_little_more(*args: Any, **options: Any) -> Tensor:
        result: Tensor = right(*args, **options)
        return result.mul_(1.03)

    monkeypatch.setattr(infer_kernels, name, a_little_more)
    assert failing(ops) == {name}


@pytest.mark.parametrize(
    ("ops", "name", "at"),
    [(QWEN3_5, "causal_convolution", 1), (QWEN3_5, "gated_delta_rule", 3), (GRANITE, "mamba2_scan", 2)],
)
def test_a_state_that_is_not_written_fails(monkeypatch: pytest.MonkeyPatch, ops: ModelOps, name: str, at: int) -> None:
    right = getattr(infer_kernels, name)

    def forgetful(*args: Any, **options: Any) -> Any:
        return right(*args[:at], args[at].clone(), *args[at + 1 :], **options)

    monkeypatch.setattr(infer_kernels, name, forgetful)
    assert failing(ops) == {name}

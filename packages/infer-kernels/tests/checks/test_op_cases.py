"""The tables of cases leave no op out, and calls at odd shapes agree with their references on every path."""

import pytest
import torch

import infer_kernels
from infer_kernels import reference
from infer_kernels.checks import ModelOps
from infer_kernels.checks.cases.all_ops import ALL_OPS, IN_A_LAYER
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.op_call import EQUAL
from infer_kernels.checks.self_check import misaligned
from infer_proofs.kernels.compiled.shipped import SHIPPED_CASES
from infer_proofs.kernels.paths import DTYPES, INTERPRETED

CPU = torch.device("cpu")
OPS = [op for cases in ALL_OPS for op in cases.ops]
WITH_CALLS = [cases for cases in ALL_OPS if [*cases.calls(torch.float32)]]
BY_KERNEL = {
    "fused_products": ("linear", "gated_linear", "linear_add_norm"),
    **dict.fromkeys(("paged_decode", "paged_prefill", "decode_work_list", "prefill_work_list"), ("paged_attention",)),
    "linear_fp8": ("linear_fp8", "quantize_rows_fp8"),
}
"""Of launches that are named by their kernels, the ops that they belong to."""
WITHOUT_KERNEL = {"embedding", "sum_of_squares", "sharded_rms_norm"}
PARTS = {"kept_tokens", "uniform"}
"""Of `sample`."""


def test_every_reference_has_cases_and_every_op_with_cases_a_reference() -> None:
    assert sorted(f"{op}_reference" for op in OPS) == sorted(reference.__all__)


def test_both_orders_hold_every_table_once() -> None:
    assert sorted(map(str, IN_A_LAYER)) == sorted(map(str, ALL_OPS))
    assert len(set(OPS)) == len(OPS)


def test_every_op_that_has_a_kernel_is_compiled_and_no_other() -> None:
    launched = {op for case in SHIPPED_CASES for op in BY_KERNEL.get(case.op, (case.op,))}
    assert launched == set(OPS) - WITHOUT_KERNEL - PARTS


def test_every_op_has_calls_but_those_with_tests_of_their_own() -> None:
    called = {call.op for cases in WITH_CALLS for call in cases.calls(torch.float32)}
    has_several_right_results = {"sample"}
    takes_a_quantized_weight = {"embedding_quantized"}
    leaves_a_norm_pending = {"fused_moe_add_norm"}
    left_out = has_several_right_results | takes_a_quantized_weight | leaves_a_norm_pending
    assert set(infer_kernels.__all__) & set(OPS) - called == left_out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cases", WITH_CALLS, ids=str)
@pytest.mark.usefixtures("every_path")
def test_calls_at_odd_shapes_agree_with_their_references(cases: OpCases, dtype: torch.dtype) -> None:
    for call in cases.calls(dtype):
        # Interpreted kernels compute the same wherever rows lie: in one dtype they lie at odd addresses.
        if not (INTERPRETED and dtype == torch.bfloat16 and call.rows):
            call.compare(CPU)
        if call.rows and (not INTERPRETED or dtype == torch.bfloat16):
            call.compare(CPU, place_rows=misaligned)


def test_a_call_that_is_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    call = next(call for cases in WITH_CALLS for call in cases.calls(torch.float32) if call.op == "apply_rope")
    call.compare(CPU)
    monkeypatch.setattr(infer_kernels, "apply_rope", lambda q, k, *_: (q, k))
    with pytest.raises(AssertionError):
        call.compare(CPU)


def test_a_call_changes_none_of_its_tensors() -> None:
    for call in (call for cases in WITH_CALLS for call in cases.calls(torch.float16)):
        before = [each.clone() for each in call.tensors]
        call.compare(CPU)
        for own, given in zip(call.tensors, before, strict=True):
            EQUAL(own, given)


def test_a_model_without_an_op_has_no_checks_of_it() -> None:
    ops = ModelOps(
        dtype=torch.float32,
        vocab_size=65,
        hidden_size=32,
        intermediate_size=32,
        q_heads=2,
        kv_heads=1,
        head_dim=16,
        block_size=16,
        scale=0.25,
        norm=None,
        activation=None,
    )
    checked = {str(cases) for cases in ALL_OPS if [*cases.checks(ops)]}
    left_out = {str(cases) for cases in ALL_OPS} - checked
    assert {op for names in left_out for op in names.split(", ")} >= {
        "rms_norm",
        "silu_and_mul",
        "fused_moe",
        "sigmoid_gate",
    }

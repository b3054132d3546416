"""RMS norms on every path: in place, inside wider rows, of heads, and where they round. `NORMS` has their values."""

from typing import Any

import pytest
import torch
from torch import Tensor

import infer_kernels
from infer_kernels import NormVariant, norm_add, reference, rms_norm
from infer_kernels.checks.cases.norm import OPERANDS, norm_call
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.op_call import EQUAL
from infer_kernels.checks.self_check import EPS
from infer_kernels.reference import norm_add_reference, rms_norm_reference

pytestmark = pytest.mark.usefixtures("every_path")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant] = ["llama", "gemma"]
OUTS: dict[str, tuple[str, ...]] = {
    "rms_norm": ("out",),
    "add_rms_norm": ("out", "residual_out"),
    "norm_add": ("out",),
    "norm_add_norm": ("out", "residual_out"),
}
"""By op, the results that may be given memory."""


def results(op: str, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    returned = getattr(infer_kernels, op)(*tensors, **options)
    return [returned] if isinstance(returned, Tensor) else list(returned)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPERANDS)
def test_results_may_take_the_place_of_inputs(op: str, dtype: torch.dtype, *, swapped: bool) -> None:
    call = norm_call(op, 5, 40, dtype, "gemma")
    places = range(OPERANDS[op][0])[:: -1 if swapped else 1]
    expected = results(op, [*call.tensors], **call.options)
    inputs = [tensor.clone() for tensor in call.tensors]
    outs = {name: inputs[place] for name, place in zip(OUTS[op], places, strict=False)}
    found = results(op, inputs, **call.options, **outs)
    assert all(own is out for own, out in zip(found, outs.values(), strict=True))
    EQUAL(found, expected)


@pytest.mark.parametrize("op", OPERANDS)
def test_results_may_lie_in_wider_rows_of_which_the_rest_stays(op: str) -> None:
    call = norm_call(op, 5, 40, torch.float32, "llama")
    wide = torch.randn(len(OUTS[op]), 5, 71)
    rest = wide.clone()
    results(op, [*call.tensors], **call.options, **dict(zip(OUTS[op], wide[..., 3:43], strict=True)))
    EQUAL([*wide[..., 3:43]], results(op, [*call.tensors], **call.options))
    rest[..., 3:43] = wide[..., 3:43]
    assert torch.equal(wide, rest)


@pytest.mark.parametrize("op", OPERANDS)
def test_no_rows_have_no_norm(op: str) -> None:
    call = norm_call(op, 0, 8, torch.float32, "llama")
    assert all(each.shape == (0, 8) for each in results(op, [*call.tensors], **call.options))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_normed_inside_packed_qkv_and_others_stay(dtype: torch.dtype) -> None:
    qkv, weight = torch.randn(5, 9 * 32).to(dtype), torch.randn(32).to(dtype)
    heads, others = qkv[:, 32:128].view(5, 3, 32), qkv[:, 128:].clone()
    expected = rms_norm_reference(heads, weight, 1e-6)
    assert_within_roundings(rms_norm(heads, weight, 1e-6), expected)
    rms_norm(heads, weight, 1e-6, out=heads)
    assert_within_roundings(heads, expected)
    assert torch.equal(qkv[:, 128:], others)


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize(("q_heads", "kv_heads", "head_dim"), [(1, 1, 2), (9, 3, 20), (16, 16, 128)])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_query_heads_have_one_norm_and_all_key_heads_one_inside_packed_qkv(
    dtype: torch.dtype, variant: NormVariant, q_heads: int, kv_heads: int, head_dim: int, tokens: int
) -> None:
    qkv = torch.randn(tokens, (q_heads + 2 * kv_heads) * head_dim).to(dtype)
    q, k, v = torch.split(qkv, [q_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    values = v.clone()
    for x in (q, k):
        weight = torch.randn(x.shape[1]).to(dtype)
        expected = rms_norm_reference(x, weight, 1e-6, variant=variant)
        assert rms_norm(x, weight, 1e-6, variant=variant, out=x) is x
        assert_within_roundings(x, expected)
    assert torch.equal(v, values)


def test_more_than_three_dimensions_are_taken() -> None:
    x, weight = torch.randn(2, 3, 4, 24), torch.randn(24)
    assert_within_roundings(rms_norm(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_add_has_the_bits_of_its_parts(dtype: torch.dtype, every_path: str) -> None:
    x, residual, weight = (torch.randn(shape).to(dtype) for shape in ((7, 96), (7, 96), (96,)))
    if every_path != "triton":
        assert torch.equal(norm_add(x, residual, weight, 1e-6), residual + rms_norm(x, weight, 1e-6))
        return
    whole = torch.randint(-8, 9, (7, 96)).to(dtype)  # squares of small integers add up exactly in any order
    assert torch.equal(norm_add(whole, residual, weight, 1e-6), norm_add_reference(whole, residual, weight, 1e-6))


def test_variants_round_where_they_say() -> None:
    x, weight = torch.randn(50, 64).bfloat16(), torch.randn(64).bfloat16()
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    once = (exact * (1 + weight.double())).bfloat16()
    twice = exact.bfloat16() * weight
    # fp32 arithmetic may fall on the other side of a rounding here and there; rounding elsewhere shows in a fifth.
    assert (rms_norm(x, weight, 1e-6) != twice).float().mean() < 0.01
    assert (rms_norm(x, weight, 1e-6, variant="gemma") != once).float().mean() < 0.01


def test_the_second_norm_of_a_sum_that_cancels_is_close() -> None:
    # A sum that cancels shows a rounding of its terms many times over after the second norm.
    for dtype in DTYPES:
        call = norm_call("norm_add_norm", 33, 576, dtype, "gemma")
        x, residual, *weights = call.tensors
        expected = reference.norm_add_norm_reference(x, residual, weights[0], weights[1], EPS, variant="gemma")
        normalized, total = results("norm_add_norm", [*call.tensors], **call.options)
        assert_within_roundings(total, expected[1], 4)
        assert_within_roundings(normalized, expected[0], 16)

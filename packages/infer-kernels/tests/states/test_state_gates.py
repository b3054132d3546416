"""The norm and the gates around layers with states, on every path."""

import pytest
import torch

from infer_kernels import gated_rms_norm, sigmoid_gate
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import gated_rms_norm_reference, sigmoid_gate_reference
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("every_path")


@parametrize_pairwise(
    dtype=DTYPES,
    tokens=[0, 1, 7, 65],
    heads=[1, 3, 16],
    head_dim=[1, 37, 48, 128],
    eps=[1e-6, 1e-3],
    is_strided=[False, True],
)
def test_a_gated_norm_equals_its_reference(
    dtype: torch.dtype, tokens: int, heads: int, head_dim: int, eps: float, *, is_strided: bool
) -> None:
    x = torch.randn(tokens, heads + 1, head_dim + 2).to(dtype)[:, 1:, 1:-1]
    gate = torch.randn(tokens, heads * head_dim + 3).to(dtype)[:, 1:-2]
    if not is_strided:
        x, gate = x.contiguous(), gate.contiguous()
    weight = torch.randn(head_dim).to(dtype)
    actual, expected = gated_rms_norm(x, gate, weight, eps), gated_rms_norm_reference(x, gate, weight, eps)
    assert_within_roundings(actual, expected, roundings=4.0)


@parametrize_pairwise(
    dtype=DTYPES,
    tokens=[0, 1, 7, 65],
    width=[1, 16, 37, 1500],
    is_one_of_row=[False, True],
    has_addend=[False, True],
    is_strided=[False, True],
)
def test_a_sigmoid_gate_equals_its_reference(
    dtype: torch.dtype, tokens: int, width: int, *, is_one_of_row: bool, has_addend: bool, is_strided: bool
) -> None:
    x, gate, addend = torch.randn(3, tokens, width + 3).to(dtype)[..., 1:-2]
    if not is_strided:
        x, gate, addend = x.contiguous(), gate.contiguous(), addend.contiguous()
    gate = gate[:, :1] if is_one_of_row else gate
    options = {"addend": addend if has_addend else None}
    assert_within_roundings(sigmoid_gate(x, gate, **options), sigmoid_gate_reference(x, gate, **options))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, of what is asked for
@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_of_any_size_stay_finite(dtype: torch.dtype) -> None:
    x, gate = torch.randn(2, 64).to(dtype), torch.tensor([100.0, -100.0]).to(dtype)[:, None].expand(2, 64).contiguous()
    opened, closed = sigmoid_gate(x, gate)
    assert torch.equal(opened, x[0])
    assert not closed.any()
    normed = gated_rms_norm(x.view(2, 2, 32), gate, torch.ones(32, dtype=dtype), 1e-6)
    assert normed.isfinite().all()
    assert not normed[1].any()


@pytest.mark.parametrize("threads", [1] if INTERPRETED else [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype, threads: int) -> None:
    x, gate, addend = torch.randn(3, 65, 603).to(dtype)
    weight = torch.randn(67).to(dtype)
    with torch_threads(threads):
        normed, gated = gated_rms_norm(x.view(65, 9, 67), gate, weight, 1e-6), sigmoid_gate(x, gate, addend=addend)
    for row in (0, 7, 64) if INTERPRETED else range(65):
        own = slice(row, row + 1)
        assert torch.equal(gated_rms_norm(x[own].view(1, 9, 67), gate[own], weight, 1e-6), normed[own])
        assert torch.equal(sigmoid_gate(x[own], gate[own], addend=addend[own]), gated[own])


@pytest.mark.usefixtures("cpu_only")
def test_gradients_equal_those_of_the_references() -> None:
    x, gate, addend = torch.randn(3, 5, 12).unbind()
    weight = torch.randn(4)
    leaves = [each.requires_grad_() for each in (x, gate, addend, weight)]
    for norm, gated in ((gated_rms_norm, sigmoid_gate), (gated_rms_norm_reference, sigmoid_gate_reference)):
        out = gated(norm(x.view(5, 3, 4), gate, weight, 1e-6), gate[:, :1], addend=addend)
        gradients = torch.autograd.grad((out * torch.linspace(-1, 1, 60).view(5, 12)).sum(), leaves)
        assert all(each.any() for each in gradients)
        if norm is gated_rms_norm:
            actual = gradients
    torch.testing.assert_close(actual, gradients)

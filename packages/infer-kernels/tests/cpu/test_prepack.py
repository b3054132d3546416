"""A prepacked weight gives what the plain one gives, and a row's bits depend on no other row."""

import pytest
import torch
from torch import Tensor

from infer_kernels import linear, linear_invariant, prepack
from infer_kernels.cpu import PackedWeight
from infer_kernels.reference import linear_invariant_reference
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.kernels.threads import torch_threads

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def layer(out_features: int, in_features: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A weight that keeps the size of what it multiplies, and a bias."""
    return (torch.randn(out_features, in_features) / in_features**0.5).to(dtype), torch.randn(out_features).to(dtype)


@needs_cpu_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (31, 33), (32, 64), (80, 7), (576, 1536)])
@pytest.mark.parametrize("rows", [0, 1, 2, 12, 13, 64, 200])
def test_a_prepacked_layer_equals_the_reference(
    rows: int, out_features: int, in_features: int, dtype: torch.dtype
) -> None:
    weight, bias = layer(out_features, in_features, dtype)
    x = torch.randn(rows, in_features).to(dtype)
    tolerance = TOLERANCES[dtype]
    for each in (None, bias):
        actual, expected = linear(x, prepack(weight), each), linear_invariant_reference(x, weight, each)
        torch.testing.assert_close(actual, expected, atol=tolerance * 2, rtol=tolerance)


@needs_cpu_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype, threads: int) -> None:
    weight, bias = layer(100, 333, dtype)
    packed, x = prepack(weight), torch.randn(67, 333).to(dtype)
    whole = linear(x, packed, bias)
    with torch_threads(threads):
        for first, last in [(0, 1), (66, 67), (3, 5), (10, 23), (0, 24), (5, 67)]:
            assert torch.equal(linear(x[first:last], packed, bias), whole[first:last])
    assert torch.equal(linear_invariant(x, packed, bias), whole)


@needs_cpu_kernels
def test_leading_dimensions_and_strides_are_kept() -> None:
    weight, _ = layer(8, 32, torch.bfloat16)
    x = torch.randn(7, 3, 64).bfloat16().transpose(0, 1)[..., :32]
    torch.testing.assert_close(linear(x, prepack(weight)), linear(x, weight), atol=2e-2, rtol=2e-2)


@needs_cpu_kernels
def test_a_prepacked_weight_is_checked_like_any_other() -> None:
    weight, bias = layer(48, 32, torch.bfloat16)
    packed = prepack(weight)
    assert isinstance(packed, PackedWeight)
    with pytest.raises(ValueError, match="`x` has shape"):
        linear(torch.randn(2, 31).bfloat16(), packed)
    with pytest.raises(TypeError, match="`weight` has dtype"):
        linear(torch.randn(2, 32), packed)
    with pytest.raises(ValueError, match="`bias` has shape"):
        linear(torch.randn(2, 32).bfloat16(), packed, bias[:47])


@needs_cpu_kernels
def test_one_copy_of_a_weight_is_as_large_as_the_weight() -> None:
    packed = prepack(layer(64, 128, torch.bfloat16)[0])
    assert isinstance(packed, PackedWeight)
    assert packed.panels.nbytes == 64 * 128 * 2


@pytest.mark.usefixtures("plain_pytorch")
def test_without_kernels_a_weight_is_left_alone() -> None:
    weight, _ = layer(8, 8, torch.bfloat16)
    assert prepack(weight) is weight


def test_a_weight_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="`weight`"):
        prepack(torch.randn(8).bfloat16())

"""The dense layer whose rows have the same bits in every batch, on every path; machine code, and wrong arguments."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import linear, prepack
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.linear.linear_invariant import linear_invariant, linear_invariant_reference
from infer_proofs.kernels.compiled.ahead_of_time import SHARED_MEMORY, LaunchLog, compile_only
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED
from infer_proofs.kernels.threads import torch_threads

FEATURES = [(1, 1), (33, 130), (80, 37), (144, 129), (576, 48), (17, 5), (130, 1)]
"""(in_features, out_features)."""
CAPABILITIES = [80, 90, 120]

on_every_path = pytest.mark.usefixtures("every_path")


def some_layer(in_features: int, out_features: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    weight = torch.randn(out_features, in_features) / in_features**0.5
    return weight.to(dtype), torch.randn(out_features).to(dtype)


@on_every_path
@parametrize_pairwise(dtype=DTYPES, features=FEATURES, rows=[0, 1, 7, 16, 65], with_bias=[True, False])
def test_layer_equals_the_reference_and_the_dense_layer(
    rows: int, features: tuple[int, int], dtype: torch.dtype, *, with_bias: bool
) -> None:
    weight, bias = some_layer(*features, dtype)
    x, given_bias = torch.randn(rows, features[0]).to(dtype), bias if with_bias else None
    y = linear_invariant(x, weight, given_bias)
    assert_within_roundings(y, linear_invariant_reference(x, weight, given_bias))
    if not INTERPRETED:
        assert_within_roundings(y, linear(x, weight, given_bias), 4)


@on_every_path
@parametrize_pairwise(dtype=DTYPES, features=FEATURES, packed=[True, False], threads=[1, 2])
def test_rows_of_any_slice_equal_rows_of_the_whole(
    features: tuple[int, int], dtype: torch.dtype, threads: int, *, packed: bool
) -> None:
    plain, bias = some_layer(*features, dtype)
    weight, x = prepack(plain) if packed else plain, torch.randn(70, features[0]).to(dtype)
    slices = [(start, stop) for start in range(18) for stop in (start + 1, 39)]
    if INTERPRETED:
        slices = [(0, 1), (69, 70), (3, 10), (5, 69), (0, 65), (63, 65)]
    with torch_threads(threads):
        whole = linear_invariant(x, weight, bias)
        for start, stop in slices:
            assert torch.equal(linear_invariant(x[start:stop], weight, bias), whole[start:stop])
        shuffled = torch.randperm(70)
        assert torch.equal(linear_invariant(x[shuffled], weight, bias), whole[shuffled])


@pytest.mark.usefixtures("every_path", "triton_only")
@pytest.mark.parametrize("rows", [129, 600])
def test_every_tile_has_one_program(rows: int) -> None:
    # Groups of tiles of rows: less than one, one and a bit.
    x, weight = torch.randn(rows, 16), torch.randn(70, 16)
    assert_within_roundings(linear_invariant(x, weight), linear_invariant_reference(x, weight), 8)


@given(st.data())
def test_a_row_has_the_same_bits_in_any_company_and_any_memory(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    in_features, out_features = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    weight, bias = some_layer(in_features, out_features, dtype)
    x = torch.randn(40, in_features).to(dtype)
    whole = linear_invariant(x, weight, bias)
    index = torch.tensor(data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=70)))
    # Rows that start anywhere, at any distance from each other.
    left, right = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    buffer = torch.empty(len(index), left + in_features + right, dtype=dtype)
    rows = buffer[:, left : left + in_features]
    rows.copy_(x[index])
    assert torch.equal(linear_invariant(rows, weight, bias), whole[index])


@on_every_path
@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows_leading_dimensions_and_out_are_kept(dtype: torch.dtype) -> None:
    weight, bias = some_layer(24, 7, dtype)
    x, wide = torch.randn(3, 6, 24).to(dtype), torch.full((18, 20), 3.0, dtype=dtype)
    expected = linear_invariant(x.view(18, 24), weight, bias)
    out = torch.empty(3, 6, 7, dtype=dtype)
    assert linear_invariant(x, weight, bias, out=out) is out
    assert torch.equal(out.view(18, 7), expected)
    assert torch.equal(linear_invariant(x, weight, bias), out)
    assert torch.equal(linear_invariant(x[0, 0], weight, bias), expected[0])
    rows, columns = torch.randn(18, 96).to(dtype)[:, 32:56], torch.randn(7, 64).to(dtype)[:, :24]
    linear_invariant(rows, columns, out=wide[:, 5:12])
    assert torch.equal(wide[:, 5:12], linear_invariant(rows.contiguous(), columns.contiguous()))
    assert (wide[:, :5] == 3.0).all()
    assert (wide[:, 12:] == 3.0).all()


def test_no_features_leave_the_bias() -> None:
    bias = torch.randn(3)
    assert torch.equal(linear_invariant(torch.empty(2, 0), torch.empty(3, 0), bias), bias.expand(2, 3))
    assert linear_invariant(torch.randn(2, 4), torch.empty(0, 4)).shape == (2, 0)


def test_gradients_equal_references() -> None:
    leaves = [tensor.requires_grad_() for tensor in (torch.randn(37, 5), torch.randn(3, 5), torch.randn(3))]
    factors = torch.randn(37, 3)
    actual, expected = (
        torch.autograd.grad((layer(*leaves) * factors).sum(), leaves)
        for layer in (linear_invariant, linear_invariant_reference)
    )
    torch.testing.assert_close(actual, expected)


def compiled(
    capability: int, in_features: int, out_features: int, *, dtype: torch.dtype, rows: int = 7, with_bias: bool = True
) -> LaunchLog:
    weight, bias = torch.empty(out_features, in_features, dtype=dtype), torch.empty(out_features, dtype=dtype)
    with compile_only(capability) as log:
        linear_invariant(torch.empty(rows, in_features, dtype=dtype), weight, bias if with_bias else None)
    return log


@parametrize_each_value(capability=CAPABILITIES, dtype=DTYPES, in_features=[576, 80, 17])
def test_layer_fits_shared_memory_and_registers(in_features: int, dtype: torch.dtype, capability: int) -> None:
    log = compiled(capability, in_features, 1536, dtype=dtype)
    assert len(log.launches) == 1
    (kernel,) = log.compiled
    assert kernel.spilled_bytes == 0
    assert kernel.shared_memory <= SHARED_MEMORY[capability]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_hopper_multiplies_by_warpgroups_with_three_tiles_in_flight(dtype: torch.dtype) -> None:
    (kernel,) = compiled(90, 2048, 4096, dtype=dtype, with_bias=False).compiled
    assert "wgmma.mma_async" in kernel.ptx
    bytes_of_stage = (64 + 128) * 64 * 2
    assert kernel.shared_memory >= 3 * bytes_of_stage


def test_full_precision_multiplies_without_tensor_cores() -> None:
    (kernel,) = compiled(90, 2048, 4096, dtype=torch.float32, with_bias=False).compiled
    assert "mma" not in kernel.ptx
    assert "fma.rn.f32" in kernel.ptx


@pytest.mark.parametrize(("dtype", "capability"), [(torch.bfloat16, 80), (torch.bfloat16, 90), (torch.float32, 90)])
def test_one_variant_serves_every_number_of_rows_and_on_hopper_another_many(
    dtype: torch.dtype, capability: int
) -> None:
    compiled(capability, 1024, 4096, dtype=dtype)
    for rows in (1, 8, 16, 64, 65, 255, 400):  # 400 rows make 128 programs of 128 x 128, fewer than multiprocessors
        assert compiled(capability, 1024, 4096, dtype=dtype, rows=rows).compiled == []
    of_many = [compiled(capability, 1024, 4096, dtype=dtype, rows=rows).compiled for rows in (600, 2048)]
    rows_of_tiles = [[kernel.constants["BLOCK_ROWS"] for kernel in each] for each in of_many]
    assert rows_of_tiles == ([[128], []] if (dtype, capability) == (torch.bfloat16, 90) else [[], []])


RIGHT: dict[str, Any] = {
    "x": torch.zeros(3, 8),
    "weight": torch.zeros(5, 8),
    "bias": torch.zeros(5),
    "out": torch.zeros(3, 5),
}


@pytest.mark.parametrize("name", RIGHT)
def test_tensor_of_wrong_dtype_or_device_is_refused(name: str) -> None:
    linear_invariant(**RIGHT)
    with pytest.raises(TypeError, match=r"`\w+` has dtype torch\.float64"):
        linear_invariant(**RIGHT | {name: RIGHT[name].double()})
    with pytest.raises(ValueError, match=r"`\w+` is on (meta|cpu) but .* move one"):
        linear_invariant(**RIGHT | {name: RIGHT[name].to("meta")})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", torch.zeros(3, 9), r"`x` has shape \[3, 9\]; pass \[\.\.\., 8\], as many as `weight` has columns"),
        ("x", torch.zeros(()), r"`x` has shape \[\]; pass \[\.\.\., 8\]"),
        ("x", torch.zeros(8, 3).T, r"`x` has stride 3 in its last dimension"),
        ("weight", torch.zeros(8), r"`weight` has shape \[8\]; pass \[out_features, in_features\]"),
        ("weight", torch.zeros(8, 5).T, r"`weight` has stride 5 in its last dimension"),
        ("bias", torch.zeros(4), r"`bias` has shape \[4\]; pass \[5\], as many as `weight` has rows"),
        ("bias", torch.zeros(10)[::2], r"`bias` has stride 2 in its last dimension"),
        ("out", torch.zeros(3, 6), r"`out` has shape \[3, 6\]; pass \[3, 5\], the rows of `x` and as many columns"),
        ("out", torch.zeros(5, 3).T, r"`out` has stride 3 in its last dimension"),
    ],
)
def test_wrong_value_is_named_with_its_fix(name: str, value: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_invariant(**RIGHT | {name: value})


def test_an_out_of_more_dimensions_that_is_not_contiguous_is_refused() -> None:
    out = torch.zeros(3, 2, 10)[..., :5]
    with pytest.raises(ValueError, match=r"`out` has strides \[20, 10, 1\]; pass a contiguous tensor"):
        linear_invariant(torch.zeros(3, 2, 8), torch.zeros(5, 8), out=out)

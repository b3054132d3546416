"""The canary: if Triton's interpreter changes how it treats numbers, these fail before anything is believed."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

pytestmark = pytest.mark.usefixtures("triton_only")


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _product(out: tl.tensor, a: tl.tensor, b: tl.tensor) -> None:
    index = tl.arange(0, 16)
    at = index[:, None] * 16 + index[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _rounded(out: tl.tensor, x: tl.tensor) -> None:
    at = tl.arange(0, 1024)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _twice(x: tl.tensor) -> tl.tensor:
    return tl.sum(x[None, :] + x[None, :], axis=0)


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _doubled(out: tl.tensor, x: tl.tensor) -> None:
    at = tl.program_id(0) * 16 + tl.arange(0, 16)
    tl.store(out + at, _twice(tl.load(x + at)))


def test_the_language_is_patched_once_for_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    patched: list[Any] = []
    patch_builtin = interpreter._patch_builtin  # noqa: SLF001 - there is no public one

    def count(*arguments: Any) -> None:
        patched.append(arguments)
        patch_builtin(*arguments)

    monkeypatch.setattr(interpreter, "_patch_builtin", count)
    x, out = torch.randn(64), torch.empty(64)
    _doubled[(1,)](out, x)
    patched.clear()
    _doubled[(1,)](out, x)
    num_of_one = len(patched)
    _doubled[(4,)](out, x)
    assert len(patched) == 2 * num_of_one > 0
    assert torch.equal(out, 2 * x)


@pytest.mark.parametrize("element", [tl.float32, tl.int1, tl.pointer_type(tl.float16), tl.pointer_type(tl.int32)])
@pytest.mark.parametrize("shape", [[16], [4, 8], [tl.constexpr(1), 2, 2]])
def test_shared_types_are_those_that_triton_makes(element: Any, shape: list[Any]) -> None:
    anew = object.__new__(tl.block_type)
    tl.block_type.init_anew(anew, element, shape)
    for shared in (tl.block_type(element, shape), tl.block_type(element, shape)):
        assert type(shared.shape) is type(anew.shape)
        assert vars(shared).keys() == vars(anew).keys()
        assert (shared, shared.name, shared.numel, shared.scalar) == (anew, anew.name, anew.numel, element)
        assert list(shared.shape) == list(anew.shape)
    assert tl.block_type(element, shape) != tl.block_type(tl.float64, shape)
    with pytest.raises(ValueError, match="power of 2"):
        tl.block_type(element, [*shape, 3])


def test_dot_of_bfloat16_is_the_exact_product() -> None:
    a, b = torch.randn(2, 16, 16).bfloat16()
    out = torch.empty(16, 16)
    _product[(1,)](out, a, b)
    torch.testing.assert_close(out, a.float() @ b.float())


def test_cast_to_bfloat16_rounds_to_nearest_even() -> None:
    x = torch.cat([torch.randn(1021), torch.tensor([1.00390625, 1.01171875, float("nan")])])
    out = torch.empty(1024, dtype=torch.bfloat16)
    _rounded[(1,)](out, x)
    torch.testing.assert_close(out, x.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_dot_gives_a_row_the_same_bits_wherever_it_stands() -> None:
    a, b = torch.randn(2, 16, 16)
    out, rolled = torch.empty(2, 16, 16)
    _product[(1,)](out, a, b)
    for places in range(1, 16):
        _product[(1,)](rolled, a.roll(places, 0), b)
        assert torch.equal(rolled, out.roll(places, 0))


def test_casts_of_float8_are_those_of_torch() -> None:
    codes = torch.arange(1024).to(torch.uint8).view(torch.float8_e4m3fn)
    out = torch.empty(1024)
    _rounded[(1,)](out, codes)
    torch.testing.assert_close(out, codes.float(), rtol=0, atol=0, equal_nan=True)
    x = torch.cat([torch.randn(1020) * 100, torch.tensor([448.0, 1.0625, 2.0**-10, float("nan")])]).clamp(-448, 448)
    rounded = torch.empty(1024, dtype=torch.float8_e4m3fn)
    _rounded[(1,)](rounded, x)
    torch.testing.assert_close(rounded.float(), x.to(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True)


def test_casts_to_fp8_and_back_are_those_of_pytorch() -> None:
    x = torch.cat([torch.randn(1000) * 10, torch.tensor([15.6, 31.9, -448.0, 448.0, 1e-3, 2**-10, float("nan"), 0.0])])
    x = torch.cat([x, torch.zeros(16)])
    codes = torch.empty(1024, dtype=torch.float8_e4m3fn)
    _rounded[(1,)](codes, x)
    assert torch.equal(codes.view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        numbers = torch.empty(1024, dtype=dtype)
        _rounded[(1,)](numbers, codes)
        torch.testing.assert_close(numbers.float(), codes.float(), rtol=0, atol=0, equal_nan=True)

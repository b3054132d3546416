"""Prepacked weights give what plain ones give, and weights stay plain where packing has nothing to offer."""

import pytest
import torch
from torch.nn import functional

from infer_kernels import linear, prepack
from infer_kernels.dense.linear import _multiply


@pytest.mark.parametrize("rows", [0, 1, 3, 16, 17, 65, 513])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_prepacked_weight_gives_what_the_plain_one_gives(rows: int, *, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(48, 32, generator=generator).bfloat16()
    bias = torch.randn(48, generator=generator).bfloat16() if with_bias else None
    x = torch.randn(rows, 32, generator=generator).bfloat16()
    packed = linear(x, prepack(weight), bias)
    assert packed.shape == (rows, 48)
    torch.testing.assert_close(packed, linear(x, weight, bias), atol=2e-2, rtol=2e-2)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each product that oneDNN is asked for."""
    met: list[int] = []

    def note(x: torch.Tensor, weight: torch.Tensor, *_: object) -> torch.Tensor:
        met.append(len(x))
        return functional.linear(x, weight)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", note, raising=False)
    return met


def test_rows_are_filled_up_to_one_of_few_numbers(met: list[int]) -> None:
    # oneDNN keeps the code that it makes for each number of rows: a server would grow with every new length.
    x, weight = torch.randn(2048, 8), torch.randn(8, 8)
    numbers = range(1, 2049)
    for rows in numbers:
        assert _multiply(x[:rows], weight, None).shape == (rows, 8)
    assert len(set(met)) == 104
    assert met[:16] == list(range(1, 17))  # decodes are not filled up
    assert all(rows <= filled <= rows * 1.25 for rows, filled in zip(numbers, met, strict=True))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_one_and_two_rows_meet_a_large_weight_as_four(rows: int, met: list[int]) -> None:
    x, weight = torch.randn(rows, 2048), torch.randn(1024, 2048)
    torch.testing.assert_close(_multiply(x, weight, None), functional.linear(x, weight), atol=1e-3, rtol=0)
    assert met == [4 if rows < 3 else rows]
    assert _multiply(x.unsqueeze(1), weight, None).shape == (rows, 1, 1024)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_large_prepacked_weight_gives_what_the_plain_one_gives(rows: int) -> None:
    weight = (torch.randn(1024, 2048) / 45).bfloat16()
    x, bias = torch.randn(rows, 2048).bfloat16(), torch.randn(1024).bfloat16()
    torch.testing.assert_close(linear(x, prepack(weight), bias), linear(x, weight, bias), atol=4e-2, rtol=2e-2)


def test_leading_dimensions_are_kept() -> None:
    weight, x = torch.randn(8, 32).bfloat16(), torch.randn(3, 7, 32).bfloat16()  # 21 rows are filled up
    torch.testing.assert_close(linear(x, prepack(weight)), linear(x, weight), atol=2e-2, rtol=2e-2)


def test_a_prepacked_weight_keeps_its_shape_and_is_checked_like_any_other() -> None:
    packed = prepack(torch.randn(48, 32).bfloat16())
    assert packed.shape == (48, 32)
    with pytest.raises(ValueError, match="`x` has shape"):
        linear(torch.randn(2, 31).bfloat16(), packed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_of_other_types_are_left_alone(dtype: torch.dtype) -> None:
    weight = torch.randn(8, 8).to(dtype)
    assert prepack(weight) is weight


def test_a_weight_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="`weight`"):
        prepack(torch.randn(8).bfloat16())


def test_a_machine_without_bf16_instructions_keeps_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    from infer_kernels.dense.linear import _packs_bf16  # noqa: PLC0415 - its answer is remembered: asked anew here

    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    _packs_bf16.cache_clear()
    try:
        weight = torch.randn(8, 8).bfloat16()
        assert prepack(weight) is weight
    finally:
        _packs_bf16.cache_clear()

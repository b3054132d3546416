"""Casts have PyTorch's bits, whichever way they go."""

import itertools
import warnings

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from infer_kernels.pytorch.casting import cast, widened_for

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
PAIRS = list(itertools.product(DTYPES, DTYPES))


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """All bit patterns of a dtype of 16 bits, or for fp32 those whose lower half is one of three."""
    halves = torch.arange(-(2**15), 2**15)
    if dtype != torch.float32:
        return halves.to(torch.int16).view(dtype)
    return torch.cat([(halves * 2**16 + low).to(torch.int32) for low in (0, 0x8000, 0xFFFF)]).view(dtype)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_cast_has_the_bits_of_a_direct_conversion(source: torch.dtype, target: torch.dtype) -> None:
    numbers = every_number(source)
    found, wanted = cast(numbers, target), numbers.to(target)
    assert found.dtype == target
    assert torch.equal(found.isnan(), wanted.isnan())  # their signs may differ, and say nothing
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())
    assert torch.equal(found.signbit() & ~found.isnan(), wanted.signbit() & ~wanted.isnan())


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_only_what_pytorch_converts_slowly_is_widened_first(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.zeros(2, 3, dtype=source)
    is_slow = {source, target} == {torch.bfloat16, torch.float16}
    assert widened_for(x, target).dtype == (torch.float32 if is_slow else source)
    assert (cast(x, target) is x) == (source == target)


def test_a_captured_cast_goes_by_the_size_that_it_is_replayed_with() -> None:
    def cast_it(x: torch.Tensor) -> torch.Tensor:
        return cast(x, torch.bfloat16)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its deprecation
        captured = torch.jit.trace(cast_it, torch.zeros(2, dtype=torch.float16))  # type: ignore[no-untyped-call]
    for size, steps in ((4095, 1), (4096, 2)):
        x = torch.randn(size).half()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            found = captured(x)
        assert torch.equal(found, x.bfloat16())
        assert sum(event.count for event in seen.key_averages() if event.key == "aten::_to_copy") == steps

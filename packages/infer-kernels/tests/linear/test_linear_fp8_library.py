"""Products in fp8 that PyTorch's library computes, of rows that the interpreted kernel quantized."""

from unittest.mock import patch

import pytest
import torch
from torch.nn import functional

from infer_kernels import linear, linear_invariant
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.gpu import Gpu
from infer_kernels.linear.quantized import linear_fp8_library as library
from infer_kernels.linear.quantized.linear_fp8 import linear_fp8_reference

HAS_SCALED_MM = hasattr(functional, "scaled_mm") and torch._C._dispatch_has_kernel_for_dispatch_key(  # noqa: SLF001
    "aten::_scaled_mm_v2", "CPU"
)
pytestmark = [
    pytest.mark.usefixtures("triton_only"),
    pytest.mark.skipif(not HAS_SCALED_MM, reason="this PyTorch has no `scaled_mm` on a CPU"),
]
ROWS, INPUTS, OUTPUTS = 70, 64, 256


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device be an H100."""
    monkeypatch.setattr(library, "describe_gpu", lambda _: Gpu(capability=(9, 0), num_sms=132))


@pytest.mark.parametrize("with_bias", [True, False])
def test_a_layer_of_many_rows_equals_the_reference(*, with_bias: bool) -> None:
    x = (torch.randn(ROWS, INPUTS) * torch.logspace(-3, 3, ROWS)[:, None]).bfloat16()
    x[3] = 0.0
    weight = random_quantized(OUTPUTS, INPUTS, encoding="fp8_e4m3")
    bias = torch.randn(OUTPUTS).bfloat16() if with_bias else None
    with patch.object(functional, "scaled_mm", wraps=functional.scaled_mm) as called:
        actual = linear(x, weight, bias)
    assert called.call_count == 1
    assert called.call_args.kwargs["use_fast_accum"] is False
    row_scales = called.call_args.args[2]
    assert row_scales.shape == (ROWS, 1)
    assert row_scales.untyped_storage().nbytes() == 256 * 4  # read in tiles of 256: pytorch/pytorch#133334
    assert_within_roundings(actual, linear_fp8_reference(x, weight, bias), roundings=4)


def test_others_are_multiplied_by_our_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(ROWS, INPUTS).bfloat16()
    rows = random_quantized(OUTPUTS, INPUTS, encoding="fp8_e4m3")
    grouped = random_quantized(OUTPUTS, INPUTS, encoding="fp8_e4m3", group_size=32)
    narrow = random_quantized(OUTPUTS - 8, INPUTS, encoding="fp8_e4m3")
    assert library.takes_library_fp8(x, rows)
    for other, weight in ((x[:64], rows), (x.half(), rows), (x, grouped), (x, narrow)):
        assert not library.takes_library_fp8(other, weight)
    with patch.object(functional, "scaled_mm") as called:
        linear_invariant(x, rows)
        for major in (8, 10, 12):  # no kernel there: pytorch/pytorch#192707
            monkeypatch.setattr(library, "describe_gpu", lambda _, major=major: Gpu(capability=(major, 0), num_sms=132))
            linear(x, rows)
    assert not called.called

"""Dense layers of many rows, whose quantized weights are dequantized in pieces; the rows are interpreted."""

import pytest
import torch

from infer_kernels import linear, linear_invariant
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.linear.quantized import linear_dequantized, multiply
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_reference
from infer_kernels.quantization import Encoding
from infer_proofs.kernels.interpreted.recorded_launches import record_launches

pytestmark = pytest.mark.usefixtures("triton_only")

FORMATS: list[tuple[Encoding, int | None, bool]] = [
    *(("int4", 32, False), ("int8", None, False), ("e2m1", 32, False), ("fp8_e4m3", 16, False)),
    *(("int4", 32, True), ("int8", 32, True)),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("encoding", "group_size", "has_minimums"), FORMATS)
def test_weights_are_rounded_once_and_in_pieces(
    encoding: Encoding,
    group_size: int | None,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_minimums: bool,
) -> None:
    # microsoft/onnxruntime#32129: the scratch of a large vocabulary took gigabytes.
    monkeypatch.setattr(linear_dequantized, "SCRATCH", 64 * 7)
    monkeypatch.setattr(linear_dequantized, "LEAST_ROWS", 5)
    weight = random_quantized(24, 64, encoding=encoding, group_size=group_size, has_minimums=has_minimums)
    weight = weight.in_words() if weight.can_be_words() else weight
    x, bias = torch.randn(5, 64).to(dtype), torch.randn(24).to(dtype)
    expected = x.double() @ weight.dequantize(dtype).double().T + bias.double()
    with record_launches() as launches:
        actual = linear(x, weight, bias)
    assert len(launches) == 4  # pieces of seven outputs
    torch.testing.assert_close(actual, expected.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
    # The rounding of weights, at most half an epsilon of each product, and that of the sum.
    products = x.float().abs() @ weight.dequantize().abs().T
    error = (actual.float() - linear_quantized_reference(x.float(), weight, bias.float())).abs()
    assert (error <= torch.finfo(dtype).eps * (0.5 * products + actual.float().abs() + 1e-3)).all()


def test_few_rows_and_invariant_layers_are_not_dequantized(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = linear_dequantized.linear_dequantized

    def count(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return real(*args, **kwargs)  # type: ignore[arg-type] # passed on as they are

    monkeypatch.setattr(multiply, "linear_dequantized", count)
    monkeypatch.setattr(linear_dequantized, "LEAST_ROWS", 4)
    weight = random_quantized(8, 32, encoding="int4", group_size=32)
    x = torch.randn(4, 32).bfloat16()
    linear(x[:3], weight)
    linear(x.float(), weight)
    assert torch.equal(linear_invariant(x, weight)[:1], linear_invariant(x[:1], weight))
    assert not calls
    linear(x, weight)
    assert calls == [1]

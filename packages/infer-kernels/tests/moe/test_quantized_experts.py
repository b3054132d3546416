"""Experts whose weights have eight or four bits, in C++: near the formula, each row the same in any company."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from infer_kernels import QuantizedWeight, fused_moe, linear, prepack, prepack_experts
from infer_kernels.checks.inputs.experts import Experts, random_experts
from infer_kernels.checks.inputs.quantized_experts import quantized_experts
from infer_kernels.cpu import CapturedStep, PackedQuantizedExperts
from infer_kernels.quantization import Encoding, quantize_int4, quantize_int8
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

pytestmark = needs_cpu_kernels
ENCODINGS: tuple[Encoding, ...] = ("int8", "int4", "e2m1")


def draw(tokens: int, dtype: torch.dtype = torch.float32) -> Experts:
    return random_experts(tokens=tokens, experts=4, experts_per_token=2, hidden=96, intermediate=40, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("encoding", "beside"), [*((each, "nothing") for each in ENCODINGS), ("int4", "minimums")])
def test_one_expert_computes_its_two_layers(encoding: Encoding, beside: str, dtype: torch.dtype) -> None:
    """With one expert of weight 1 the layers are dense ones, whose bits are known."""
    drawn = random_experts(tokens=60, experts=1, experts_per_token=1, hidden=96, intermediate=40, dtype=dtype)
    experts = quantized_experts(drawn, encoding=encoding, group_size=32, has_minimums=beside == "minimums")
    gate_up, down = (prepack_experts(each) for each in (experts.gate_up, experts.down))
    assert isinstance(gate_up, PackedQuantizedExperts)
    scale = 0.05
    x = (drawn.x.float() * scale).to(dtype)
    actual = fused_moe(x, gate_up, down, drawn.expert_ids, torch.ones(60, 1), activation="silu_and_mul")
    gates, ups = linear(x, prepack(experts.gate_up.item(0))).chunk(2, dim=-1)
    silu = (gates.float() / (1 + (-gates.float()).exp())).to(dtype)
    expected = linear((silu.float() * ups.float()).to(dtype), prepack(experts.down.item(0)))
    largest = expected.float().abs().max().item()
    torch.testing.assert_close(
        actual.float(), expected.float(), rtol=0, atol=largest * (0.02 if dtype == torch.float32 else 0.05)
    )


@pytest.mark.covers("quantization/experts")
@pytest.mark.parametrize("quantize", [quantize_int8, lambda weight: quantize_int4(weight, group_size=32)])
def test_results_are_near_those_of_plain_weights(quantize: Callable[[Tensor], QuantizedWeight]) -> None:
    drawn = draw(50)
    gate_up, down = (quantize(each) for each in (drawn.gate_up, drawn.down))
    plain = fused_moe(
        drawn.x,
        gate_up.dequantize(),
        down.dequantize(),
        drawn.expert_ids,
        drawn.expert_weights,
        activation="clamped_swiglu",
        **drawn.biases,
    )
    packed = fused_moe(
        drawn.x,
        prepack_experts(gate_up),
        prepack_experts(down),
        drawn.expert_ids,
        drawn.expert_weights,
        activation="clamped_swiglu",
        **drawn.biases,
    )
    assert (packed - plain).norm() <= 0.02 * plain.norm()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_row_has_the_same_bits_in_any_company_and_in_a_captured_step(encoding: Encoding) -> None:
    drawn = draw(230, torch.bfloat16)  # more than a block of rows for each expert
    experts = quantized_experts(drawn, encoding=encoding, group_size=32)
    gate_up, down = prepack_experts(experts.gate_up), prepack_experts(experts.down)

    def compute(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return fused_moe(x, gate_up, down, ids, weights, activation="silu_and_mul", **drawn.biases)

    x, ids, weights = drawn.x, drawn.expert_ids, drawn.expert_weights
    whole = compute(x, ids, weights)
    for rows in (1, 5, 17, 100):
        assert torch.equal(compute(x[:rows], ids[:rows], weights[:rows]), whole[:rows])
    step = CapturedStep(230)
    with torch.inference_mode(), step.recording():
        out = compute(x, ids, weights)
    for rows in (1, 230, 33):
        step.replay(rows)
        assert torch.equal(out[:rows], whole[:rows])


def test_one_quantized_stack_of_two_is_refused() -> None:
    drawn = draw(3)
    gate_up = quantize_int8(drawn.gate_up)
    for first, message in ((gate_up, "is quantized"), (prepack_experts(gate_up), "is packed")):
        with pytest.raises(TypeError, match=message):
            fused_moe(drawn.x, first, drawn.down, drawn.expert_ids, drawn.expert_weights, activation="silu_and_mul")

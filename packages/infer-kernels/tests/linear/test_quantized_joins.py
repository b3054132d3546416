"""Quantized products whose inputs are divided over programs, joined by the program that ends last, interpreted."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from infer_kernels import FusedProducts, prepack
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_triton
from infer_kernels.quantization import Encoding, QuantizedWeight
from infer_proofs.kernels.interpreted.recorded_launches import record_launches
from infer_proofs.kernels.pairwise import parametrize_each_value

pytestmark = pytest.mark.usefixtures("triton_only")

INPUTS, OUTPUTS = 2048, 200


def random_weight(encoding: Encoding, group_size: int | None) -> QuantizedWeight:
    weight = prepack(random_quantized(OUTPUTS, INPUTS, encoding=encoding, group_size=group_size))
    assert isinstance(weight, QuantizedWeight)
    return weight


def multiply(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, semaphores: Tensor | None) -> tuple[Tensor, int]:
    """Return the product, and how many kernels were launched for it."""
    out = torch.full((len(x), OUTPUTS), torch.nan, dtype=x.dtype)
    with record_launches() as launches:
        linear_quantized_triton(x, weight, bias, out=out, is_invariant=False, semaphores=semaphores)
    return out, len(launches)


@parametrize_each_value(form=[("int4", 128), ("int8", None), ("mxfp4", 32), ("fp8_e4m3", 128)], rows=[1, 13])
def test_a_joined_product_has_the_bits_of_two_launches(form: tuple[Encoding, int | None], rows: int) -> None:
    encoding, group_size = form
    weight = random_weight(encoding, group_size)
    x, bias, semaphores = torch.randn(rows, INPUTS).bfloat16(), torch.randn(OUTPUTS).bfloat16(), torch.zeros(64).int()
    expected, num_apart = multiply(x, weight, bias, None)
    for _ in range(2):  # as a captured step is replayed
        found, num_joined = multiply(x, weight, bias, semaphores)
        assert torch.equal(found, expected)
        assert not semaphores.any()
        assert (num_joined, num_apart) == (1, 2)


def test_larger_tiles_and_more_tiles_than_semaphores_are_joined_by_a_launch() -> None:
    weight = random_weight("int4", 128)
    x = torch.randn(20, INPUTS).bfloat16()
    assert multiply(x, weight, None, torch.zeros(64).int())[1] == 2
    assert multiply(x[:3], weight, None, torch.zeros(1).int())[1] == 2


@pytest.mark.parametrize("first", [1, 2])
def test_which_program_ends_last_changes_no_bit(first: int) -> None:
    weight, x = random_weight("int4", 128), torch.randn(5, INPUTS).bfloat16()
    expected, _ = multiply(x, weight, None, None)
    set_index = interpreter.InterpreterBuilder.set_grid_idx

    def in_another_order(self: Any, tile: int, split: int, rest: int) -> None:
        set_index(self, tile, (split + first) % self.grid_dim[1], rest)

    with patch.object(interpreter.InterpreterBuilder, "set_grid_idx", in_another_order):
        found, _ = multiply(x, weight, None, torch.zeros(64).int())
    assert torch.equal(found, expected)


def test_layers_of_a_decoder_are_joined() -> None:
    weight, x = random_weight("int4", 128), torch.randn(3, INPUTS).bfloat16()
    with record_launches() as launches:
        found = FusedProducts("cpu").linear(x, weight)
    assert len(launches) == 1
    assert torch.equal(found, multiply(x, weight, None, None)[0])

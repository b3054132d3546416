"""The distance that two results may have, by dtype."""

import torch
from torch import Tensor


def assert_within_roundings(actual: Tensor, expected: Tensor, roundings: float = 2.0) -> None:
    """Raise `AssertionError` unless the tensors differ by at most so many roundings of their dtype, for values near 1.

    Two roundings is what separates implementations that round at the same points but sum in another order; in fp32,
    where each operation of the arithmetic rounds too, it is eight times as many.
    """
    bound = roundings * torch.finfo(expected.dtype).eps * (8 if expected.dtype == torch.float32 else 1)
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


def assert_attention_close(actual: Tensor, expected: Tensor) -> None:
    """Raise `AssertionError` unless two attention results of unit-variance inputs agree to what their dtype allows.

    fp32 1e-5; fp16 4e-3 and bf16 2e-2, which is the rounding of the probabilities before the second product.
    """
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)

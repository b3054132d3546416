"""`QuantizedWeight`: parts of a weight are worth what the whole is worth there, however groups and bytes are cut."""

import pytest
import torch

from infer_kernels.quantization import Encoding
from infer_kernels.testing.quantized_weights import random_quantized

ENCODINGS: tuple[Encoding, ...] = ("int8", "int4", "e2m1", "fp8_e4m3")


@pytest.mark.parametrize("group_size", [None, 16, 24])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_columns_are_worth_those_of_the_whole(encoding: Encoding, group_size: int | None) -> None:
    weight = random_quantized(5, 101, encoding=encoding, group_size=group_size, has_zeros=encoding == "int4")
    whole = weight.dequantize()
    for start, size in ((0, 101), (0, 17), (48, 53), (20, 9), (7, 30), (33, 68), (100, 1)):
        part = weight.columns(start, size)
        assert part.shape == (5, size)
        assert torch.equal(part.dequantize(), whole[:, start : start + size]), (start, size)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_and_items_are_views(encoding: Encoding) -> None:
    weight = random_quantized(3, 8, 32, encoding=encoding, group_size=16)
    whole = weight.dequantize()
    part = weight.item(1).rows(2, 5)
    assert torch.equal(part.dequantize(), whole[1, 2:7])
    part.values.view(torch.uint8).zero_()
    assert not weight.values.view(torch.uint8)[1, 2:7].any()


def test_groups_that_do_not_divide_are_refused() -> None:
    weight = random_quantized(4, 64, encoding="int4", group_size=32)
    with pytest.raises(ValueError, match="`group_size` is 24, which does not divide 32"):
        weight.with_group_size(24)
    with pytest.raises(ValueError, match=r"`source` is int4 \[4, 64\]; pass int4 \[4, 32\]"):
        random_quantized(4, 32, encoding="int4", group_size=32).copy_(weight)

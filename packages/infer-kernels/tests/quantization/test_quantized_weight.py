"""`QuantizedWeight`: parts of a weight are worth what the whole is worth there, however groups and bytes are cut."""

import pytest
import torch

from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.quantization import Encoding, tile_microscaled

ENCODINGS: tuple[Encoding, ...] = ("int8", "int4", "e2m1", "nvfp4", "fp8_e4m3")


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
    with pytest.raises(ValueError, match=r"`source` is int4 \[4, 64\] in rows; pass int4 \[4, 32\] in rows"):
        random_quantized(4, 32, encoding="int4", group_size=32).copy_(weight)


@pytest.mark.parametrize(("encoding", "in_features"), [("int4", 96), ("int8", 48), ("fp8_e4m3", 48)])
def test_words_are_worth_what_rows_are(encoding: Encoding, in_features: int) -> None:
    weight = random_quantized(3, 5, in_features, encoding=encoding, group_size=None)
    words = weight.in_words()
    assert words.shape == weight.shape
    assert torch.equal(words.in_rows().values.view(torch.uint8), weight.values.view(torch.uint8))
    assert torch.equal(words.item(1).rows(2, 3).dequantize(), weight.item(1).rows(2, 3).dequantize())
    assert torch.equal(words.columns(7, 20).dequantize(), weight.columns(7, 20).dequantize())


@pytest.mark.parametrize("encoding", ["int4", "int8"])
def test_words_keep_minimums(encoding: Encoding) -> None:
    weight = random_quantized(3, 5, 96, encoding=encoding, group_size=32, has_minimums=True)
    assert weight.can_be_words()
    words = weight.in_words()
    assert torch.equal(words.dequantize(), weight.dequantize())
    assert torch.equal(words.columns(7, 20).dequantize(), weight.dequantize()[..., 7:27])


@pytest.mark.parametrize(("encoding", "group_size"), [("mxfp4", 32), ("nvfp4", 16)])
def test_tiles_are_worth_what_rows_are(encoding: Encoding, group_size: int) -> None:
    weight = random_quantized(3, 5, 112, encoding=encoding, group_size=group_size)
    tiled = tile_microscaled(weight)
    assert tiled.encoding == f"{encoding}_tiled"
    assert tiled.shape == weight.shape
    assert torch.equal(tiled.dequantize(), weight.dequantize())
    assert torch.equal(tiled.item(1).rows(2, 3).dequantize(), weight.item(1).rows(2, 3).dequantize())
    with pytest.raises(ValueError, match="`columns` of a tiled weight"):
        tiled.columns(0, 32)


def test_nvfp4_takes_four_and_a_half_bits() -> None:
    weight = random_quantized(8, 1024, encoding="nvfp4", group_size=16)
    assert weight.num_bytes == 8 * (1024 * 4.5 / 8 + 4)
    target = random_quantized(8, 1024, encoding="nvfp4", group_size=16, seed=1)
    target.copy_(weight)
    assert torch.equal(target.dequantize(), weight.dequantize())


def test_words_hold_neighbours_in_both_halves() -> None:
    codes = torch.arange(32) % 16
    values = (codes[0::2] | codes[1::2] << 4).to(torch.uint8)
    weight = random_quantized(1, 32, encoding="int4")
    weight.values.copy_(values)
    words = weight.in_words().values.view(torch.int32)[0].tolist()
    for thread, word in enumerate(words):
        for j in range(4):
            assert word >> 4 * j & 15 == codes[2 * thread + 8 * j]
            assert word >> 16 + 4 * j & 15 == codes[2 * thread + 1 + 8 * j]


def test_what_words_cannot_hold_stays_in_rows() -> None:
    assert not random_quantized(2, 48, encoding="int4").can_be_words()
    assert not random_quantized(2, 64, encoding="int4", group_size=16).can_be_words()
    assert not random_quantized(2, 64, encoding="e2m1", group_size=32).can_be_words()
    weight = random_quantized(2, 64, encoding="fp8_e4m3")
    assert weight.can_be_words()
    weight.values.view(torch.uint8)[1, 3] = 0xFF  # NaN, which would become -480
    assert not weight.can_be_words()
    with pytest.raises(ValueError, match="in words; pass"):
        random_quantized(2, 64, encoding="int4").copy_(random_quantized(2, 64, encoding="int4").in_words())

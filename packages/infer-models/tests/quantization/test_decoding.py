"""Every kind of quantized weight becomes the numbers that its own library, or a slow packer, says that it is worth."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from infer_kernels import QuantizedWeight
from infer_models.quantization import QuantizationScheme, StoredFormat
from infer_models.quantization.scaled_format import ScaledFormat, ScaleGrid
from infer_proofs.models import QUANTIZED_CHECKPOINTS
from infer_proofs.models.quantized import read_scheme
from infer_proofs.models.quantized_layers import quantize_fp8_blocks

NAME = "model.layers.0.mlp.up_proj"
SPELLINGS = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8", torch.int32: "I32",
    torch.int64: "I64", torch.float8_e4m3fn: "F8_E4M3",
}  # fmt: skip
DENSE = {"compressed_w8a16_asymmetric", "gptq_act_order", "gptq_int8_asymmetric"}
"""What no kernel could keep."""


def draw(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def scheme_of(kind: str) -> QuantizationScheme:
    return read_scheme(QUANTIZED_CHECKPOINTS[kind].config())


def stored_format(kind: str) -> StoredFormat:
    found = scheme_of(kind).format_of(NAME)
    assert found is not None
    return found


def packed(kind: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    tensors, worth = QUANTIZED_CHECKPOINTS[kind].quantize(weight)
    return {f"{NAME}.{end}": tensor for end, tensor in tensors.items()}, worth


def numbers(weight: Tensor | QuantizedWeight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.dequantize()


@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
@pytest.mark.parametrize("shape", [(64, 96), (96, 64), (16, 160), (104, 32)])
def test_the_numbers_are_what_was_packed(kind: str, shape: tuple[int, int]) -> None:
    tensors, worth = packed(kind, draw(*shape))
    stored = stored_format(kind)
    decoded = stored.decode(NAME, shape, tensors)
    assert decoded.shape == shape
    torch.testing.assert_close(numbers(decoded), worth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
def test_what_is_decoded_is_kept_as_was_announced(kind: str) -> None:
    tensors, _ = packed(kind, draw(48, 96))
    stored = stored_format(kind)
    decoded = stored.decode(NAME, (48, 96), tensors)
    assert (stored.storage is None) == (kind in DENSE) == isinstance(decoded, Tensor)
    if stored.storage is not None:
        assert isinstance(decoded, QuantizedWeight)
        assert decoded.encoding == stored.storage.encoding
        assert decoded.group_size == (stored.storage.group_size or 96)
        assert (decoded.zeros is not None) == stored.storage.has_zeros
        empty = QuantizedWeight.empty(
            48,
            96,
            encoding=stored.storage.encoding,
            group_size=stored.storage.group_size,
            has_zeros=stored.storage.has_zeros,
            device=torch.device("cpu"),
        )
        empty.copy_(decoded)
        assert torch.equal(empty.dequantize(), decoded.dequantize())


@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
@pytest.mark.parametrize("shape", [(64, 96), (16, 32)])
def test_the_tensors_that_are_there_are_announced(kind: str, shape: tuple[int, int]) -> None:
    tensors, _ = packed(kind, draw(*shape))
    specs = stored_format(kind).tensors(NAME, shape)
    ignored = {f"{NAME}.input_scale"}
    assert tensors.keys() - ignored <= specs.keys()
    assert {name for name, spec in specs.items() if spec.is_required} <= tensors.keys()
    for name, tensor in tensors.items():
        if name not in ignored:
            assert specs[name].shape in (tuple(tensor.shape), ()), name
            assert specs[name].shape == tuple(tensor.shape) or tensor.numel() == 1, name
            assert SPELLINGS[tensor.dtype] in specs[name].dtypes, name


@pytest.mark.parametrize("kind", ["compressed_w4a16_channel", "compressed_w8a16", "compressed_w8a8_asymmetric"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (1, 37), (31, 1)])
def test_rows_of_any_length_are_read(kind: str, shape: tuple[int, int]) -> None:
    tensors, worth = packed(kind, draw(*shape))
    decoded = stored_format(kind).decode(NAME, shape, tensors)
    torch.testing.assert_close(numbers(decoded), worth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["gptq_without_groups", "awq_without_groups", "gptq_asymmetric", "awq"])
def test_a_single_word_is_read(kind: str) -> None:
    tensors, worth = packed(kind, draw(8, 8))
    decoded = stored_format(kind).decode(NAME, (8, 8), tensors)
    torch.testing.assert_close(numbers(decoded), worth, rtol=1e-6, atol=1e-6)


@settings(deadline=None)
@given(rows=st.integers(1, 70), columns=st.integers(1, 90), height=st.integers(1, 80), width=st.integers(1, 100))
def test_blocks_at_edges_may_be_partial(rows: int, columns: int, height: int, width: int) -> None:
    tensors, worth = quantize_fp8_blocks(draw(rows, columns), block=(height, width))
    grid = ScaleGrid(rows=height, columns=width)
    stored = ScaledFormat(encoding="fp8_e4m3", grid=grid, scale_names=("weight_scale_inv",))
    decoded = stored.decode(NAME, (rows, columns), {f"{NAME}.{end}": each for end, each in tensors.items()})
    assert torch.equal(numbers(decoded), worth)


@pytest.mark.parametrize(("shape", "block"), [((96, 80), (48, 40)), ((128, 256), (128, 128)), ((6, 4), (6, 4))])
def test_blocks_are_what_transformers_makes_of_them(shape: tuple[int, int], block: tuple[int, int]) -> None:
    values = draw(*shape).to(torch.float8_e4m3fn)
    scales = draw(shape[0] // block[0], shape[1] // block[1]).abs()
    oracle: Any = Fp8Dequantize
    expected = oracle(None)._dequantize_one(values, scales, torch.float32)  # noqa: SLF001 - it has no public one
    stored = read_scheme({"quant_method": "fp8", "weight_block_size": list(block)}).format_of(NAME)
    assert stored is not None
    decoded = stored.decode(NAME, shape, {f"{NAME}.weight": values, f"{NAME}.weight_scale_inv": scales})
    assert torch.equal(numbers(decoded), expected)


def test_scales_may_be_powers_of_two_in_a_byte() -> None:
    stored = stored_format("fp8_block")
    values = draw(48, 40).to(torch.float8_e4m3fn)
    tensors = {f"{NAME}.weight": values, f"{NAME}.weight_scale_inv": torch.tensor([[125]], dtype=torch.uint8)}
    assert torch.equal(numbers(stored.decode(NAME, (48, 40), tensors)), values.float() / 4)


@pytest.mark.parametrize("kind", ["fp8_tensor", "compressed_fp8", "compressed_w8a8_tensor"])
def test_one_scale_becomes_one_for_each_row(kind: str) -> None:
    tensors, _ = packed(kind, draw(6, 8))
    for shape in ((), (1,)):
        name = f"{NAME}.weight_scale"
        decoded = stored_format(kind).decode(NAME, (6, 8), tensors | {name: tensors[name].reshape(shape)})
        assert isinstance(decoded, QuantizedWeight)
        assert decoded.scales.shape == (6, 1)


@pytest.mark.parametrize("kind", ["compressed_w4a16", "compressed_w8a16_group", "compressed_w8a16_asymmetric"])
def test_compressed_groups_in_another_order(kind: str) -> None:
    how = QUANTIZED_CHECKPOINTS[kind]
    config = how.config()
    config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1))
    weight = draw(40, 96)
    # The library rounds groups that lie side by side: then inputs, and the groups that they are in, are moved.
    side_by_side, worth = how.quantize(weight)
    bits = config["config_groups"]["group_0"]["weights"]["num_bits"]
    codes = unpack(side_by_side["weight_packed"], bits)
    moved = {
        **side_by_side,
        "weight_packed": pack(codes[:, order], bits),
        "weight_g_idx": (torch.arange(96) // 32)[order].int(),
    }
    stored = read_scheme(config).format_of(NAME)
    assert stored is not None
    assert stored.storage is None
    decoded = stored.decode(NAME, (40, 96), {f"{NAME}.{end}": each for end, each in moved.items()})
    torch.testing.assert_close(decoded, worth[:, order], rtol=1e-6, atol=1e-6)


def unpack(words: Tensor, bits: int) -> Tensor:
    """Return the codes of words [rows, words]."""
    places = torch.arange(32 // bits) * bits
    codes: Tensor = (words.long()[..., None] >> places) & (2**bits - 1)
    return codes.flatten(1)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return the words of codes [rows, count]."""
    places = torch.arange(32 // bits) * bits
    words = torch.sum(codes.unfold(1, 32 // bits, 32 // bits) << places, dim=-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()

"""The numbers of quantized GGUF tensors are those of the `gguf` package, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import gguf
from infer_models import CheckpointError
from infer_models.gguf.block_types import BLOCK_TYPES, OTHER_TYPES, QUANTIZED
from infer_models.quantization.gguf.block_codes import read_blocks
from infer_models.quantization.gguf.block_format import BlockFormat
from infer_proofs.models.gguf_files import KINDS, random_blocks

ROWS, BLOCKS = 64, 3


def any_bytes(kind: str, seed: int) -> NDArray[np.uint8]:
    """Return bytes as they come; all of them are blocks, but for MXFP4's exponent 255, which is NaN."""
    size = QUANTIZED[kind].num_bytes
    data = np.random.default_rng(seed).integers(0, 256, (ROWS, BLOCKS * size), dtype=np.uint8)
    if kind == "MXFP4":
        exponents = data[:, ::size]
        exponents[exponents == 255] = 254
    return data


def numbers_of(kind: str, data: NDArray[np.uint8]) -> torch.Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))


def bits(kind: str, numbers: torch.Tensor) -> torch.Tensor:
    """Return the bits of fp32 numbers; MXFP4 has a code for -0, which the package reads as 0."""
    return (numbers + 0.0 if kind == "MXFP4" else numbers).view(torch.int32)


@pytest.mark.covers("gguf/types")
@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32))
def test_all_bytes_are_the_numbers_of_the_gguf_package(kind: str, seed: int) -> None:
    data = any_bytes(kind, seed)
    found, expected = read_blocks(kind, torch.from_numpy(data)).dequantize(), numbers_of(kind, data)
    is_number = ~expected.isnan()
    assert torch.equal(found.isnan(), ~is_number)
    assert torch.equal(bits(kind, found[is_number]), bits(kind, expected[is_number]))


@pytest.mark.covers("gguf/types")
@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_memory_have_the_same_numbers(kind: str) -> None:
    columns = BLOCKS * QUANTIZED[kind].numbers
    data = random_blocks(kind, ROWS, columns, seed=3)
    form = BlockFormat(kind=kind)
    weight = form.decode("layer", (ROWS, columns), {"layer.weight": torch.from_numpy(data)})
    assert weight.shape == (ROWS, columns)
    storage = form.storage
    assert (weight.encoding, weight.group_size) == (storage.encoding, storage.group_size)
    assert (weight.minimums is not None) == storage.has_minimums
    assert weight.scales.dtype == (torch.uint8 if kind == "MXFP4" else storage.scale_dtype)
    assert torch.equal(bits(kind, weight.dequantize()), bits(kind, numbers_of(kind, data)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "MXFP4"])
def test_blocks_of_zeros_are_zeros(kind: str) -> None:
    """As pruned experts and unused tokens have them: all bytes are 0, and all scales with them."""
    columns = 2 * QUANTIZED[kind].numbers
    data = np.zeros((3, 2 * QUANTIZED[kind].num_bytes), dtype=np.uint8)
    weight = BlockFormat(kind=kind).decode("layer", (3, columns), {"layer.weight": torch.from_numpy(data)})
    assert not weight.dequantize().any()


@pytest.mark.parametrize(("kind", "at"), [("Q4_0", 0), ("Q8_0", 0), ("Q4_1", 2), ("Q4_K", 2), ("Q6_K", 208)])
def test_a_scale_that_is_no_number_is_an_error_that_names_the_tensor(kind: str, at: int) -> None:
    columns = QUANTIZED[kind].numbers
    data = random_blocks(kind, 4, columns, seed=0)
    data[2, at : at + 2] = np.array([np.inf], dtype=np.float16).view(np.uint8)
    with pytest.raises(CheckpointError, match=r"`layer\.weight` has a scale that is NaN or infinite"):
        BlockFormat(kind=kind).decode("layer", (4, columns), {"layer.weight": torch.from_numpy(data)})


def test_sizes_of_blocks_and_names_of_types_are_those_of_the_gguf_package() -> None:
    for number, of in BLOCK_TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == of.name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (of.numbers, of.num_bytes)
    known = {each.value: each.name for each in gguf.GGMLQuantizationType}
    assert {number for number in known if number not in BLOCK_TYPES} <= OTHER_TYPES.keys()
    assert all(OTHER_TYPES[number] == name for number, name in known.items() if number in OTHER_TYPES)

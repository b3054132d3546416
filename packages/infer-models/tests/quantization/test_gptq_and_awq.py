"""GPTQ and AWQ number by number, both versions of zeros, groups in any order, and labels that lie."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_models import CheckpointError
from infer_models.quantization import StoredFormat
from infer_models.quantization.gptq import GptqFormat
from infer_proofs.models.quantized import read_scheme
from infer_proofs.models.quantized_layers import quantize_gptq

NAME = "model.layers.0.mlp.up_proj"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": False, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}


def stored_format(fields: dict[str, Any]) -> StoredFormat:
    found = read_scheme(fields).format_of(NAME)
    assert found is not None
    return found


def words(*numbers: int) -> Tensor:
    """Words from unsigned numbers, in one row."""
    return torch.tensor([[each - 2**32 if each >= 2**31 else each for each in numbers]], dtype=torch.int32)


def named(**tensors: Tensor) -> dict[str, Tensor]:
    return {f"{NAME}.{end}": tensor for end, tensor in tensors.items()}


def dense(weight: Tensor | QuantizedWeight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.dequantize()


def gptq_layer(zero_words: int) -> dict[str, Tensor]:
    """Eight inputs and outputs; the codes of output o are o, o + 1, .., the scale is 1."""
    columns = [sum(((out + i) % 16) << 4 * i for i in range(8)) for out in range(8)]
    return named(qweight=words(*columns), qzeros=words(zero_words), scales=torch.ones(1, 8, dtype=torch.float16))


@pytest.mark.parametrize(("label", "stored"), [("gptq", 0x76543210), ("gptq_v2", 0x87654321)])
def test_zeros_are_stored_less_one_in_the_first_version(label: str, stored: int) -> None:
    layer = stored_format(GPTQ | {"checkpoint_format": label})
    decoded = dense(layer.decode(NAME, (8, 8), gptq_layer(stored)))
    expected = [[(out + i) % 16 - (out + 1) for i in range(8)] for out in range(8)]
    assert decoded.tolist() == expected


def test_a_stored_zero_of_15_is_a_zero_of_0_in_the_first_version() -> None:
    decoded = dense(stored_format(GPTQ).decode(NAME, (8, 8), gptq_layer(0xFFFFFFFF)))
    assert decoded.tolist() == [[(out + i) % 16 for i in range(8)] for out in range(8)]


@pytest.mark.parametrize("label", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("stored", [0x77777777, 0x88888888])
def test_symmetric_zeros_are_eight_whatever_the_label(label: str, stored: int) -> None:
    layer = stored_format(GPTQ | {"sym": True, "checkpoint_format": label})
    decoded = layer.decode(NAME, (8, 8), gptq_layer(stored))
    assert isinstance(decoded, QuantizedWeight)
    assert decoded.zeros is None
    assert dense(decoded).tolist() == [[(out + i) % 16 - 8 for i in range(8)] for out in range(8)]


@pytest.mark.parametrize("stored", [0x77777778, 0x99999999, 0])
def test_symmetric_zeros_that_are_none_are_named(stored: int) -> None:
    layer = stored_format(GPTQ | {"sym": True})
    with pytest.raises(CheckpointError, match=rf"tensor `{NAME}\.qzeros` holds zeros from"):
        layer.decode(NAME, (8, 8), gptq_layer(stored))


def test_int8_symmetric_zeros_tell_their_version() -> None:
    tensors, worth = quantize_gptq(torch.randn(8, 8), bits=8, group_size=8, version=2)
    layer = stored_format(GPTQ | {"sym": True, "bits": 8})
    assert torch.equal(dense(layer.decode(NAME, (8, 8), named(**tensors))), worth)


@given(st.permutations(range(12)), st.integers(1, 6), st.booleans())
def test_inputs_may_be_in_groups_of_any_order(order: list[int], group_size: int, is_symmetric: bool) -> None:  # noqa: FBT001 - drawn
    groups = torch.tensor(order) // group_size
    generator = torch.Generator().manual_seed(group_size)
    num_groups = int(groups.max()) + 1
    codes, zeros = (torch.randint(16, (8, size), generator=generator) for size in (12, num_groups))
    zeros = torch.full_like(zeros, 8) if is_symmetric else zeros
    scales = torch.rand(8, num_groups, generator=generator).half().float()
    expected = torch.tensor(
        [
            [float((codes[out, i] - zeros[out, groups[i]]) * scales[out, groups[i]]) for i in range(12)]
            for out in range(8)
        ]
    )
    padded = torch.nn.functional.pad(codes, (0, 4))
    qweight = torch.cat([words(*(pack(row[i : i + 8]) for row in padded)) for i in (0, 8)])
    qzeros = torch.cat([words(pack(zeros[:, group])) for group in range(num_groups)])
    layer = GptqFormat(bits=4, group_size=group_size, is_symmetric=is_symmetric, is_reordered=True, zero_offset=0)
    tensors = named(qweight=qweight, qzeros=qzeros, scales=scales.T, g_idx=groups.int())
    assert {name: spec.shape for name, spec in layer.tensors(NAME, (8, 12)).items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    torch.testing.assert_close(layer.decode(NAME, (8, 12), tensors), expected, rtol=1e-6, atol=0)


def pack(codes: Tensor) -> int:
    return sum(int(code) << 4 * place for place, code in enumerate(codes))


def test_groups_set_before_inputs_are_ordered_lie_in_order() -> None:
    tensors, worth = quantize_gptq(torch.randn(8, 16), group_size=8)
    layer = stored_format(GPTQ | {"sym": True, "desc_act": True, "static_groups": True})
    assert layer.storage is not None
    assert torch.equal(dense(layer.decode(NAME, (8, 16), named(**tensors))), worth)


def test_one_group_needs_no_order() -> None:
    layer = stored_format(GPTQ | {"desc_act": True, "group_size": -1})
    assert layer.storage is not None


@pytest.mark.parametrize(
    ("fields", "groups", "message"),
    [
        ({"desc_act": True}, [0] * 8 + [2] * 8, "holds groups from 0 to 2; there are those from 0 to 1"),
        ({"desc_act": True}, [-1] + [0] * 15, "holds groups from -1 to 0"),
        ({"desc_act": True}, None, "is missing, though `desc_act` is true"),
        ({"desc_act": False}, [1] * 8 + [0] * 8, "in another order|of another order, but `desc_act` is false"),
        ({"desc_act": True, "static_groups": True}, [1] * 8 + [0] * 8, "of another order"),
    ],
)
def test_groups_that_cannot_be_are_named(fields: dict[str, Any], groups: list[int] | None, message: str) -> None:
    tensors = dict(quantize_gptq(torch.randn(8, 16), group_size=8, is_symmetric=False, has_groups=False)[0])
    if groups is not None:
        tensors["g_idx"] = torch.tensor(groups, dtype=torch.int32)
    with pytest.raises(CheckpointError, match=rf"tensor `{NAME}\.g_idx` .*({message})"):
        stored_format(GPTQ | fields).decode(NAME, (8, 16), named(**tensors))


def test_awq_interleaves_eight_outputs_in_a_word() -> None:
    # Output 0 is in the lowest bits, then 2, 4 and 6; output 1 comes fifth.
    codes, zeros = 0x75316420, 0x11111111
    tensors = named(
        qweight=words(codes).repeat(8, 1), qzeros=words(zeros), scales=torch.full((1, 8), 0.5, dtype=torch.float16)
    )
    decoded = dense(stored_format(AWQ).decode(NAME, (8, 8), tensors))
    assert decoded.tolist() == [[(out - 1) / 2] * 8 for out in range(8)]


def test_awq_without_zeros_has_them_at_eight() -> None:
    layer = stored_format(AWQ | {"zero_point": False})
    tensors = named(qweight=words(0x75316420).repeat(8, 1), scales=torch.ones(1, 8))
    expected = [[out - 8.0] * 8 for out in range(8)]
    assert dense(layer.decode(NAME, (8, 8), tensors)).tolist() == expected
    eights = named(qzeros=words(0x88888888))
    assert dense(layer.decode(NAME, (8, 8), tensors | eights)).tolist() == expected
    with pytest.raises(CheckpointError, match=rf"`{NAME}\.qzeros` holds other zeros than 8"):
        layer.decode(NAME, (8, 8), tensors | named(qzeros=words(0x88888887)))

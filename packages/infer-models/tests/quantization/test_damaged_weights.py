"""Values that no quantized weight has are errors that name the tensor; scales of zero are weights of zero."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from infer_models import CheckpointError, load_model
from infer_proofs.models import QUANTIZED_CHECKPOINTS, save_quantized
from infer_proofs.models.quantized import read_scheme

NAME = "model.layers.0.mlp.up_proj"
SHAPE = (32, 96)
CPU = torch.device("cpu")


def layer_of(kind: str) -> dict[str, Tensor]:
    weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    return {f"{NAME}.{end}": each for end, each in QUANTIZED_CHECKPOINTS[kind].quantize(weight)[0].items()}


def decode(kind: str, tensors: dict[str, Tensor]) -> Tensor:
    stored = read_scheme(QUANTIZED_CHECKPOINTS[kind].config()).format_of(NAME)
    assert stored is not None
    weight = stored.decode(NAME, SHAPE, tensors)
    return weight if isinstance(weight, Tensor) else weight.dequantize()


def scales_of(tensors: dict[str, Tensor]) -> str:
    return next(name for name in tensors if "scale" in name and "input" not in name)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
def test_scales_that_are_not_finite_are_named(kind: str, value: float) -> None:
    tensors = layer_of(kind)
    name = scales_of(tensors)
    tensors[name] = tensors[name].contiguous().clone()
    tensors[name].view(-1)[-1] = value
    with pytest.raises(CheckpointError, match=f"tensor `{name}` holds scales that are NaN or infinite"):
        decode(kind, tensors)


@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
def test_scales_of_zero_make_zeros(kind: str) -> None:
    tensors = layer_of(kind)
    name = scales_of(tensors)
    tensors[name] = torch.zeros_like(tensors[name])
    assert not decode(kind, tensors).any()


@pytest.mark.parametrize("kind", [name for name in QUANTIZED_CHECKPOINTS if "fp8" in name or "naive" in name])
def test_numbers_in_fp8_that_are_none_are_named(kind: str) -> None:
    for code in (127, 255):
        tensors = layer_of(kind)
        tensors[f"{NAME}.weight"].view(torch.uint8)[3, 5] = code
        with pytest.raises(CheckpointError, match=rf"tensor `{NAME}\.weight` holds NaN"):
            decode(kind, tensors)


def test_a_scale_that_is_no_power_of_two_is_named() -> None:
    tensors = layer_of("fp8_block")
    name = scales_of(tensors)
    tensors[name] = torch.full(tensors[name].shape, 255, dtype=torch.uint8)
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        decode("fp8_block", tensors)


def test_one_of_two_names_of_scales_must_be_there() -> None:
    tensors = layer_of("fp8_tensor")
    del tensors[scales_of(tensors)]
    with pytest.raises(CheckpointError, match=rf"`{NAME}\.weight_scale` or `{NAME}\.weight_scale_inv` is missing"):
        decode("fp8_tensor", tensors)


def test_a_shape_in_the_file_that_differs_is_named() -> None:
    tensors = layer_of("compressed_w4a16") | {f"{NAME}.weight_shape": torch.tensor([96, 32])}
    with pytest.raises(CheckpointError, match=r"weight_shape` holds \[96, 32\] but `config.json` makes it \[32, 96\]"):
        decode("compressed_w4a16", tensors)


@pytest.mark.parametrize("value", [0, 1])
def test_zeros_of_symmetric_weights_must_be_zero(value: int) -> None:
    tensors = layer_of("compressed_w8a8")
    expected = decode("compressed_w8a8", tensors)
    tensors[f"{NAME}.weight_zero_point"] = torch.full((SHAPE[0], 1), value, dtype=torch.int8)
    if value == 0:
        assert torch.equal(decode("compressed_w8a8", tensors), expected)
        return
    with pytest.raises(CheckpointError, match="weight_zero_point` holds other numbers than 0"):
        decode("compressed_w8a8", tensors)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (torch.arange(96) // 32, None),
        (torch.full((96,), -1), None),
        (torch.arange(96).flip(0) // 32, "weight_g_idx` puts inputs into groups of another order"),
    ],
)
def test_groups_must_lie_in_order_unless_the_configuration_says_more(groups: Tensor, message: str | None) -> None:
    tensors = layer_of("compressed_w4a16")
    expected = decode("compressed_w4a16", tensors)
    tensors[f"{NAME}.weight_g_idx"] = groups.int()
    if message is None:
        assert torch.equal(decode("compressed_w4a16", tensors), expected)
        return
    with pytest.raises(CheckpointError, match=message):
        decode("compressed_w4a16", tensors)


@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
def test_tensors_that_are_missing_or_of_another_shape_or_kind_are_named(tmp_path: Any, kind: str) -> None:
    save_quantized(tmp_path, kind)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    ends = QUANTIZED_CHECKPOINTS[kind].quantize(torch.randn(64, 96))[0].keys() - {"input_scale", "g_idx"}
    for end in sorted(ends):
        name = f"{NAME}.{end}"
        damaged = [
            ({each: tensor for each, tensor in stored.items() if each != name}, "missing"),
            (stored | {name: torch.cat([stored[name].reshape(-1), stored[name].reshape(-1)])}, "has shape"),
            (stored | {name: stored[name].to(torch.uint8)}, "is U8; it must be one of"),
            (stored | {f"{name}s": stored[name].clone()}, "unexpected"),
        ]
        for tensors, message in damaged:
            if message == "missing" and end == "qzeros" and kind == "awq_symmetric":
                continue  # there, they say nothing
            save_file(tensors, path)
            with pytest.raises(CheckpointError, match=f"`{name}s?`.* {message}"):
                load_model(tmp_path, device=CPU, dtype=torch.float32)

"""The memory of a model's weights: every storage once, packed and quantized ones too, computed tables never."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from infer_bench.weight_memory import bf16_bytes, weight_bytes
from infer_kernels.quantization import QuantizedWeight, quantize_int4, quantize_int8
from infer_models import load_model
from infer_models.hub import demo_model_folder


@dataclass(frozen=True)
class Layout:
    """Stands for what some product reads: a weight, and tensors beside it."""

    weight: QuantizedWeight
    parts: tuple[Tensor, ...]


class Holder(nn.Module):
    """A layer with `weight` as an attribute, whatever that is."""

    def __init__(self, weight: object) -> None:
        """Keep `weight`."""
        super().__init__()
        self.weight = weight


def test_parameters_are_counted_once_however_many_share_them() -> None:
    shared = nn.Parameter(torch.zeros(3, 5, dtype=torch.bfloat16))
    model = nn.ModuleList([Holder(shared), Holder(shared), Holder(shared.detach()[1:])])
    assert weight_bytes(model) == 30


@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (7, 33), (64, 96)])
def test_quantized_weights_are_counted_whole(out_features: int, in_features: int) -> None:
    weight = torch.randn(out_features, in_features)
    int8, int4 = quantize_int8(weight), quantize_int4(weight, group_size=32)
    assert weight_bytes(Holder(int8)) == int8.num_bytes
    assert weight_bytes(Holder(Layout(weight=int4, parts=(torch.zeros(3),)))) == int4.num_bytes + 12
    assert weight_bytes(nn.ModuleList([Holder({"a": int8}), Holder([int4])])) == int8.num_bytes + int4.num_bytes


def test_buffers_count_where_checkpoints_have_them() -> None:
    model = nn.Module()
    model.register_buffer("scale", torch.zeros(2))
    model.register_buffer("table", torch.zeros(100), persistent=False)
    assert weight_bytes(nn.ModuleList([model])) == 8


def test_a_packed_model_holds_its_weights_and_a_copy_of_a_tied_head() -> None:
    model = load_model(demo_model_folder(), device=torch.device("cpu"), dtype=torch.bfloat16)
    plain = bf16_bytes(model.num_parameters)
    assert weight_bytes(model) == plain
    model.prepack()
    head = bf16_bytes(model.config.vocab_size * model.config.hidden_size)
    assert weight_bytes(model) in (plain, plain + head)  # without a compiler nothing is packed

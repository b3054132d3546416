"""Checkpoints whose norms make a few channels many times as large as the rest, as real models have them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from infer_models import CausalView, load_model
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import QUANTIZED_CHECKPOINTS, QuantizedTwin, save_quantized

pytestmark = needs_cpu_kernels
IDS = torch.tensor([5, 9, 200, 17, 3, 3, 42, 311, 8, 77, 1, 60])
CHANNELS, FACTOR = (3, 17, 40), 30.0
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")


def make_channels_large(twin: QuantizedTwin, folder: Path) -> None:
    """Multiply some channels of each layer's norms, in the file and in the twin."""
    path, channels = folder / "model.safetensors", list(CHANNELS)
    stored = load_file(path)
    for name in stored:
        if name.endswith(NORMS):
            stored[name][channels] *= FACTOR
    save_file(stored, path, metadata={"format": "pt"})
    with torch.no_grad():
        for name, weight in twin.model.named_parameters():
            if name.endswith(NORMS):
                weight[channels] *= FACTOR


def round_by_rows(_: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    """Round to eight bits with one scale for each row."""
    scales = inputs[0].abs().amax(dim=-1, keepdim=True) / 127
    return (inputs[0] / scales).round() * scales


@torch.no_grad()
@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
def test_large_channels_do_not_round_the_others_away(tmp_path: Path, kind: str) -> None:
    """Kernels are nearer to exact inputs than one scale for each row would be."""
    twin = save_quantized(tmp_path, kind)
    make_channels_large(twin, tmp_path)
    model = load_model(tmp_path, device=torch.device("cpu"), dtype=torch.float32, quantization="auto")
    model.prepack()
    logits = model(IDS, torch.arange(len(IDS)), CausalView())
    exact = twin.model(IDS[None]).logits[0]
    for name in twin.quantized:
        twin.model.get_submodule(name).register_forward_pre_hook(round_by_rows)
    error, error_of_rows = ((each - exact).norm() for each in (logits, twin.model(IDS[None]).logits[0]))
    assert error <= 0.7 * error_of_rows

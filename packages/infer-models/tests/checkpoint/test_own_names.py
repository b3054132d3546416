"""A registered family whose tensors have names of their own finds them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from infer_kernels import linear
from infer_models import ModelConfig
from infer_models.checkpoint import load_weights
from infer_models.families.llama.model import Llama
from infer_models.layers import OwnWeight, ParameterFactory
from infer_models.weights import StoredWeight
from infer_proofs.models import save_tiny


class Renamed(Llama):
    """Llama whose checkpoints have `model.decoder.` where others have `model.`."""

    def stored_by_module(self) -> Iterator[tuple[nn.Module, OwnWeight, Mapping[str, StoredWeight]]]:
        for module, weight, tensors in super().stored_by_module():
            yield module, weight, {renamed(name): each for name, each in tensors.items()}


def renamed(name: str) -> str:
    return name.replace("model.", "model.decoder.", 1)


def test_names_of_a_family_come_before_those_that_most_have(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({renamed(name): tensor for name, tensor in stored.items()}, tmp_path / "model.safetensors")
    factory = ParameterFactory(device=torch.device("cpu"), dtype=torch.float32, linear=linear)
    model = Renamed(ModelConfig.from_folder(tmp_path), factory)
    load_weights(model, tmp_path)
    assert all(
        torch.equal(each.stored(), stored[name.replace(".decoder", "")])
        for name, each in model.stored_weights().items()
    )

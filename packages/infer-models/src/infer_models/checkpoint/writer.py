"""Saves a model's weights under the names that checkpoints use."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from infer_models.causal_lm import CausalLM
from infer_models.checkpoint.expert_stacks import stack_experts


def save_model(model: CausalLM, folder: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write `model.safetensors` with the tensors that `load_model` reads, and `transformers` where it has the family.

    Args:
        model: a whole one; packed weights are written in parts, a tied LM head not at all.
        folder: made if it is not there.
        dtype: dtype of the written weights; None: the model's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Parts of a packed weight share its storage, which the format does not allow.
    tensors = {
        name: stored.to(device="cpu", dtype=dtype or stored.dtype, copy=True)
        for name, stored in ((name, each.stored()) for name, each in model.stored_weights().items())
    }
    if model.stacks_experts:
        tensors = stack_experts(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

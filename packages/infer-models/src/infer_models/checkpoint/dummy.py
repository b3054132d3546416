"""Random weights in place of a checkpoint's."""

import torch

from infer_models.causal_lm import CausalLM

_STANDARD_DEVIATION = 0.02


@torch.no_grad()
def draw_weights(model: CausalLM, *, seed: int = 0) -> None:
    """Fill the model's matrices with small random weights, the same for the same seed and device.

    Vectors (norms and biases) keep the neutral values they were allocated with, so the model can be trained from here.
    """
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=_STANDARD_DEVIATION, generator=generator)

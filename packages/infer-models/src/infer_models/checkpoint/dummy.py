"""Random weights in place of a checkpoint's."""

import torch

from infer_models.causal_lm import CausalLM

_STANDARD_DEVIATION = 0.02


@torch.no_grad()
def draw_weights(model: CausalLM, *, seed: int = 0) -> None:
    """Fill the model's matrices with small random weights, the same for the same seed and device.

    Vectors (norms and biases) keep the neutral values they were allocated with, so the model can be trained from here.
    Each rank of a divided model draws the whole of every matrix and keeps its part: that of the undivided model.
    """
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    for parameter, slices in model.slices_of_parameters():
        if parameter.dim() == 1:
            continue
        heights = [each.shape[0] for each in slices.values()]
        whole_shape = (sum(heights), next(iter(slices.values())).shape[1])
        is_whole = parameter.shape == whole_shape
        whole = parameter if is_whole else torch.empty(whole_shape, dtype=parameter.dtype, device=parameter.device)
        whole.normal_(std=_STANDARD_DEVIATION, generator=generator)
        if not is_whole:
            for each, drawn in zip(slices.values(), torch.split(whole, heights), strict=True):
                each.target.copy_(each.of(drawn))

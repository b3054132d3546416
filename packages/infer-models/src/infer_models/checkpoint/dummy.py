"""Random weights in place of a checkpoint's."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from infer_models.causal_lm import CausalLM
from infer_models.weights import ArrangedWeight, FusedWeight

_STANDARD_DEVIATION = 0.02


@torch.no_grad()
def draw_weights(model: CausalLM, *, seed: int = 0) -> None:
    """Fill the model's matrices with small random weights, the same for the same seed and device.

    Vectors (norms and biases) keep the neutral values they were allocated with, so the model can be trained from here.
    Each rank of a divided model draws the whole of every matrix and keeps its part: that of the undivided model. So
    does a quantized model, which has the numbers of the plain one, quantized.
    """
    first = next(model.parameters())
    generator = torch.Generator(first.device).manual_seed(seed)
    for weight, stored in model.stored_by_parameter():
        if len(weight.shape) == 1:
            continue
        if all(isinstance(each, ArrangedWeight) for each in stored.values()):
            for each in stored.values():
                each.fill(_drawn(each.shape, first, generator))
            continue
        rows = [math.prod(each.shape[:-1]) for each in stored.values()]
        columns = next(iter(stored.values())).shape[-1]
        is_in_order = not any(isinstance(each, FusedWeight) for each in stored.values())  # else perhaps in turns
        if is_in_order and isinstance(weight, Tensor) and weight.numel() == sum(rows) * columns:
            weight.normal_(std=_STANDARD_DEVIATION, generator=generator)
            continue
        whole = _drawn((sum(rows), columns), first, generator)
        for each, drawn in zip(stored.values(), torch.split(whole, rows), strict=True):
            each.fill(drawn.view(each.shape))


def _drawn(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    return like.new_empty(shape).normal_(std=_STANDARD_DEVIATION, generator=generator)

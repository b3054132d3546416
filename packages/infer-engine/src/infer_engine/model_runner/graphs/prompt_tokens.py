"""The largest step with prompts that is worth capturing, and the prompt tokens that are computed beside decodes.

A step that is not captured takes the longer of two times: the host's for the launches of its kernels, and the device's.
A replay takes the device's alone, padding included. So a size is captured if the device is done with all its rows
before the host would be: then a replay is never slower, however much of it is padding.

    host      layers * HOST_S_PER_LAYER
    device    2 * weights * rows / (multiprocessors * operations in a cycle * CYCLES_PER_S * REACHED)

The device's time is counted, not measured, so that an engine captures the same sizes at every start. Of a mixture of
experts all weights are counted, as if each token went to all of them: nothing beyond `MAX_CAPTURED_TOKENS` is captured.

A step with decodes has no more prompt tokens than fill that size beside its decodes, of which at least
`DECODES_BESIDE_PROMPTS` are counted, even if it would be allowed more by what steps have taken: one token more, and the
host launches the step kernel by kernel. (2,272 tokens beside 128 decodes took an H200 22 ms, of which kernels were 10.)
"""

from dataclasses import replace

import torch

from infer_engine.model_runner.graphs.padded_shapes import LARGER_SIZES, MAX_CAPTURED_TOKENS
from infer_engine.scheduling import SchedulerLimits
from infer_kernels.gpu import Gpu, describe_gpu
from infer_models import CausalLM

HOST_S_PER_LAYER = 0.0002
"""Seconds in which the host launches a layer's nine kernels: the least of what was measured, 5.5 ms for 28 layers."""

DECODES_BESIDE_PROMPTS = 32
"""Decodes that fit into the largest captured step beside the most prompt tokens of a step in which requests decode."""

CYCLES_PER_S = 1.7e9
REACHED = 0.7
"""Share of a device's operations that matrix products reach."""

_OPERATIONS_PER_CYCLE = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192}
"""By compute capability, those of one multiprocessor in bf16 with fp32 sums (NVIDIA's data sheets)."""
_FEWEST = 512
"""Those of GeForce cards, and of architectures that are not listed."""


def most_prompt_tokens_of(model: CausalLM, device: torch.device) -> int:
    """Return the rows of the largest step with prompts of `model`, which is on `device`, that is worth capturing."""
    config = model.config
    return most_prompt_tokens(
        num_weights=model.num_parameters - config.vocab_size * config.hidden_size,  # without the embedding
        num_layers=config.num_layers,
        gpu=describe_gpu(device),
    )


def most_prompt_tokens(*, num_weights: int, num_layers: int, gpu: Gpu) -> int:
    """Return the rows of the largest step with prompts that is worth capturing.

    Args:
        num_weights: weights of all layers; each row is multiplied by them.
        num_layers: layers.
        gpu: computes.
    """
    in_a_cycle = gpu.num_sms * _OPERATIONS_PER_CYCLE.get(gpu.capability, _FEWEST)
    seconds_per_row = 2 * num_weights / (in_a_cycle * CYCLES_PER_S * REACHED)
    host_s = num_layers * HOST_S_PER_LAYER
    worth = [size for size in LARGER_SIZES if size * seconds_per_row < host_s]
    return max(worth, default=MAX_CAPTURED_TOKENS)


def limit_prompts_beside_decodes(limits: SchedulerLimits, *, most_prompt_tokens: int) -> SchedulerLimits:
    """Return the limits of a step on a GPU, with prompt tokens beside decodes that suit the model if none were set.

    Args:
        limits: as they are configured.
        most_prompt_tokens: as `most_prompt_tokens_of` says of the model.
    """
    if limits.max_prefill_tokens_beside_decodes is not None:
        return limits
    return replace(
        limits,
        max_prefill_tokens_beside_decodes=most_prompt_tokens - DECODES_BESIDE_PROMPTS,
        max_captured_tokens=most_prompt_tokens,
    )

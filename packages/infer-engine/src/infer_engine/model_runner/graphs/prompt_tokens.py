"""The largest step with prompts that is worth capturing, and the prompt tokens that are computed beside decodes.

A step that is not captured takes the longer of two times: the host's for the launches of its kernels, and the device's.
A replay takes the device's alone, padding included. So a size is captured if the device is done with all its rows
before the host would be: then a replay is never slower, however much of it is padding.

    host        layers * HOST_S_PER_LAYER
    reading     bytes of all weights / (multiprocessors * bytes in a cycle * CYCLES_PER_S)
    products    2 * weights of a token * rows / (multiprocessors * operations in a cycle * CYCLES_PER_S * REACHED)
    device      the longer one of both

The device's time is counted, not measured, so that an engine captures the same sizes at every start.

A step with decodes has no more prompt tokens than fill that size beside its decodes, of which at least
`DECODES_BESIDE_PROMPTS` are counted, even if it would be allowed more by what steps have taken: one token more, and the
host launches the step kernel by kernel. (2,272 tokens beside 128 decodes took an H200 22 ms, of which kernels were 10.)

But a mixture of experts reads all of them for a few hundred tokens already, and takes no longer for as many as it
multiplies meanwhile. Where these are `MANY_TIMES` the largest captured step, a step with decodes has so many.
"""

from dataclasses import dataclass, replace

from infer_engine.model_runner.graphs.padded_shapes import LARGER_SIZES, MAX_CAPTURED_TOKENS
from infer_engine.scheduling import SchedulerLimits
from infer_kernels.gpu import Gpu
from infer_models import CausalLM
from infer_models.layers.moe import Experts

HOST_S_PER_LAYER = 0.0002
"""Seconds in which the host launches a layer's nine kernels: the least of what was measured, 5.5 ms for 28 layers."""

DECODES_BESIDE_PROMPTS = 32
"""Decodes that fit into the largest captured step beside the most prompt tokens of a step in which requests decode."""

MANY_TIMES = 2
"""How many times the largest captured step pays for launches of kernel by kernel."""

CYCLES_PER_S = 1.7e9
REACHED = 0.7
"""Share of a device's operations that matrix products reach."""

_OPERATIONS_PER_CYCLE = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192}
"""By compute capability, those of one multiprocessor in bf16 with fp32 sums (NVIDIA's data sheets)."""
_FEWEST = 512
"""Those of GeForce cards, and of architectures that are not listed."""
_BYTES_PER_CYCLE = {(8, 0): 9, (9, 0): 13, (10, 0): 28, (10, 3): 28}
"""By compute capability, those of one multiprocessor's share of the memory's rate: an H100 has shown 3.0 TB/s; of the
others nine tenths of their data sheets."""
_FEWEST_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """The weights of a model's layers.

    Attributes:
        num_layers: layers.
        of_a_token: weights that each row is multiplied by.
        num_bytes: bytes of all weights.
    """

    num_layers: int
    of_a_token: int
    num_bytes: int

    @classmethod
    def of(cls, model: CausalLM) -> "LayerWeights":
        """Return those of `model`, of all ranks."""
        config = model.config
        of_all = of_a_token = model.num_parameters - config.vocab_size * config.hidden_size  # without the embedding
        num_bytes = 0
        for experts in (each for each in model.modules() if isinstance(each, Experts)):
            assert config.moe is not None
            num_ranks = experts.inner.total / experts.inner.size
            of_experts = int(experts.num_weights * num_ranks)
            of_all -= of_experts
            of_a_token -= of_experts - of_experts * config.moe.experts_per_token // experts.num_experts
            num_bytes += int(experts.num_bytes * num_ranks)
        return cls(num_layers=config.num_layers, of_a_token=of_a_token, num_bytes=num_bytes + 2 * of_all)

    def read_s(self, gpu: Gpu) -> float:
        """Return the seconds in which `gpu` reads all of them."""
        in_a_cycle = gpu.num_sms * _BYTES_PER_CYCLE.get(gpu.capability, _FEWEST_BYTES)
        return self.num_bytes / (in_a_cycle * CYCLES_PER_S)

    def row_s(self, gpu: Gpu) -> float:
        """Return the seconds in which `gpu` multiplies a row."""
        in_a_cycle = gpu.num_sms * _OPERATIONS_PER_CYCLE.get(gpu.capability, _FEWEST)
        return 2 * self.of_a_token / (in_a_cycle * CYCLES_PER_S * REACHED)


def most_captured_tokens(weights: LayerWeights, gpu: Gpu) -> int:
    """Return the rows of the largest step with prompts that is worth capturing."""
    host_s = weights.num_layers * HOST_S_PER_LAYER
    worth = [size for size in LARGER_SIZES if max(weights.read_s(gpu), size * weights.row_s(gpu)) < host_s]
    return max(worth, default=MAX_CAPTURED_TOKENS)


def limit_prompts_beside_decodes(limits: SchedulerLimits, weights: LayerWeights, gpu: Gpu) -> SchedulerLimits:
    """Return the limits of a step on a GPU, with prompt tokens beside decodes that suit the model if none were set."""
    if limits.max_prefill_tokens_beside_decodes is not None:
        return limits
    most_prompt_tokens = most_captured_tokens(weights, gpu)
    while_reading = int(weights.read_s(gpu) / weights.row_s(gpu))
    if while_reading >= MANY_TIMES * most_prompt_tokens:
        return replace(limits, max_prefill_tokens_beside_decodes=while_reading)
    return replace(
        limits,
        max_prefill_tokens_beside_decodes=most_prompt_tokens - DECODES_BESIDE_PROMPTS,
        max_captured_tokens=most_prompt_tokens,
    )

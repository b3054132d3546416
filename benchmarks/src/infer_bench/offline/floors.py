"""The least time of a step: its weights read once, or its dense layers and experts one after another."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from infer_bench.weight_memory import bf16_bytes, weight_bytes
from infer_models import CausalLM, CausalView
from infer_models.layers import Experts, LinearBase, Router

if TYPE_CHECKING:
    from infer_kernels import Routing

READ_BYTES = 2**31
"""More than any cache holds."""
NUM_READS = 3
PLAIN = "none"
"""The quantization of weights that stay as they are."""


class Floors:
    """The least time of an engine's step."""

    def __init__(self, model: CausalLM, *, dtype: torch.dtype, device: torch.device) -> None:
        """Measure `model`, which an engine computes with in `dtype` on `device`: its weights are there once."""
        self._model, self._dtype, self._device = model, dtype, device
        layers = [each for each in self._model.modules() if isinstance(each, LinearBase)]
        self._widths = {each: in_features(each) for each in layers}
        self._num_bytes = sum(weight_bytes(each) for each in layers)
        self._expert_bytes = 0
        for each in self._model.modules():
            if isinstance(each, Experts):
                self._expert_bytes = weight_bytes(each) // each.num_experts
        self.weight_bytes = weight_bytes(self._model)
        self.bf16_bytes = bf16_bytes(self._model.num_parameters)
        self._bytes_per_s = 0.0

    def measure(self, num_rows: int, *, num_logits: int, num_context: int = 0) -> dict[str, float]:
        """Return the floors of a step, in milliseconds: of `num_rows` rows, `num_logits` of which reach the LM head.

        On a GPU each row reads the keys and values of `num_context` tokens.
        """
        self._measure_read_rate()
        num_bytes = self._num_bytes + self._expert_bytes * self._num_chosen(num_rows)
        if self._device.type != "cpu":
            num_bytes += num_rows * self._key_value_bytes(num_context)
        compute = self._products(num_rows, num_logits)
        return {
            "read": 1e3 * num_bytes / self._bytes_per_s,
            "products": min(self._milliseconds(compute) for _ in range(3)),
        }

    @torch.inference_mode()
    def _measure_read_rate(self) -> None:
        """Note the rate of a sum over a tensor that no cache holds; the best one so far is kept."""
        source = torch.ones(READ_BYTES // 4, device=self._device)
        for number in range(1 + NUM_READS):
            self._wait()
            began_s = time.perf_counter()
            source.sum()
            self._wait()
            if number:
                self._bytes_per_s = max(self._bytes_per_s, source.nbytes / (time.perf_counter() - began_s))

    def _key_value_bytes(self, num_context: int) -> int:
        config = self._model.config
        read = sum(num_context if window is None else min(num_context, window) for window in config.windows)
        return int(2 * config.kv_heads * config.head_dim * self._dtype.itemsize * read)

    @torch.inference_mode()
    def _num_chosen(self, num_rows: int) -> int:
        """Return how many experts a step of random tokens chooses, of all layers together."""
        chosen: list[int] = []
        hooks = [
            each.register_forward_hook(lambda _, __, routing: chosen.append(len(routing.choice.expert_ids.unique())))
            for each in self._model.modules()
            if isinstance(each, Router)
        ]
        if hooks:
            ids = torch.randint(3, self._model.config.vocab_size, (num_rows,), device=self._device)
            positions = torch.zeros(num_rows, dtype=torch.int64, device=self._device)
            self._model.hidden_states(ids, positions, CausalView([1] * num_rows))
        for hook in hooks:
            hook.remove()
        return sum(chosen)

    @torch.inference_mode()
    def _products(self, num_rows: int, num_logits: int) -> Callable[[], None]:
        """Return what computes the layers; on a GPU captured, where launches would take the host longer."""
        widths = set(self._widths.values())
        inputs = {width: torch.randn(num_rows, width, device=self._device, dtype=self._dtype) for width in widths}
        compute = partial(self._multiply, inputs, num_logits)
        if self._device.type == "cpu":
            return compute
        compute()  # compiles kernels, which cannot be done in a capture
        self._wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compute()
        return graph.replay

    def _multiply(self, inputs: Mapping[int, Tensor], num_logits: int) -> None:
        routing: Routing | None = None
        for layer in self._model.modules():
            if isinstance(layer, Experts):
                assert routing is not None
                layer(routing)
            elif isinstance(layer, LinearBase):
                rows = inputs[self._widths[layer]]
                result = layer(rows[:num_logits] if layer is self._model.lm_head else rows)
                routing = result if isinstance(layer, Router) else routing

    @torch.inference_mode()
    def _milliseconds(self, compute: Callable[[], None]) -> float:
        self._wait()
        began_s = time.perf_counter()
        compute()
        self._wait()
        return 1e3 * (time.perf_counter() - began_s)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def quantization_option(quantization: str) -> dict[str, Any]:
    """Return the keyword that quantizes weights so; none where they stay as they are."""
    return {} if quantization == PLAIN else {"quantization": quantization}


def in_features(layer: LinearBase) -> int:
    """Return how many inputs a dense layer has, whatever its weight is."""
    weight = layer.weight
    return weight.shape[-1] if isinstance(weight, torch.Tensor) else weight.in_features

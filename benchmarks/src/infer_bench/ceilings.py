"""What a machine can do, measured, and what a model asks of it.

A step reads each weight once, however many tokens are in it, and the keys and values before each of its tokens; it
multiplies and adds once for each weight and token. Whatever the engine, it takes at least

    max(bytes / (bytes read a second), operations / (operations a second))

What is small beside that is left out, so the time is a little too short and a share of it a little too small:
activations, norms, keys and values as they are written, and those that a prompt reads of itself.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional

from infer_models import ModelConfig

READ_BYTES = 2**31
"""More than any cache holds; a copy takes as much again."""
MATMUL_SIZES = {"cpu": (1024, 2048, 4096), "cuda": (4096, 8192)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best that a machine has shown: what else ran on it can only have slowed it down.

    Attributes:
        read_bytes_per_s: of a sum over a tensor larger than every cache.
        copy_bytes_per_s: of its copy, read and written bytes together.
        operations_per_s: of the library's product of square matrices, two for each multiplication and addition.
    """

    read_bytes_per_s: float
    copy_bytes_per_s: float
    operations_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """The memory's rate: the better one of reading and copying."""
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)


class CeilingProbe:
    """Measures a device, round by round, between the rounds of whatever is compared with it."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        num_bytes: int = READ_BYTES,
        matmul_sizes: Iterable[int] | None = None,
    ) -> None:
        """Measure nothing yet; `dtype` is that of the matrices, whose sizes are `matmul_sizes` or `MATMUL_SIZES`."""
        self._device = device
        self._dtype = dtype
        self._num_bytes = num_bytes
        self._sizes = tuple(matmul_sizes or MATMUL_SIZES[device.type])
        self._rounds: list[Ceilings] = []

    def measure(self) -> Ceilings:
        """Measure once more and return what this round found; its memory is given back."""
        with torch.inference_mode():
            source = torch.ones(self._num_bytes // 4, device=self._device)
            target = torch.ones_like(source)  # written, so that its pages are there before the clock runs
            read_s = self._best_seconds(source.sum)
            copy_s = self._best_seconds(lambda: target.copy_(source))
            operations_per_s = max(map(self._matmul_rate, self._sizes))
        found = Ceilings(
            read_bytes_per_s=source.nbytes / read_s,
            copy_bytes_per_s=2 * source.nbytes / copy_s,
            operations_per_s=operations_per_s,
        )
        self._rounds.append(found)
        return found

    @property
    def best(self) -> Ceilings:
        """The best of all rounds."""
        return Ceilings(**{name: max(values) for name, values in self._by_name().items()})

    def as_json(self) -> dict[str, Any]:
        """What is saved: every round."""
        return {"num_bytes": self._num_bytes, "matmul_sizes": self._sizes, "rounds": self._by_name()}

    def _by_name(self) -> dict[str, list[float]]:
        rounds = [asdict(found) for found in self._rounds]
        return {name: [found[name] for found in rounds] for name in rounds[0]}

    def _matmul_rate(self, size: int) -> float:
        rows, weight = (torch.randn(size, size, device=self._device).to(self._dtype) for _ in range(2))
        return 2 * size**3 / self._best_seconds(lambda: functional.linear(rows, weight))

    def _best_seconds(self, run: Callable[[], object], repeats: int = 3) -> float:
        seconds = []
        for _ in range(1 + repeats):
            self._wait()
            started = time.perf_counter()
            run()
            self._wait()
            seconds.append(time.perf_counter() - started)
        return min(seconds[1:])

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What has to be read and computed, at the least.

    Attributes:
        num_bytes: weights, once a step, keys and values.
        operations: two for each multiplication and addition.
    """

    num_bytes: float
    operations: float

    def least_seconds(self, ceilings: Ceilings) -> float:
        """Return the time that the machine needs for it."""
        return max(self._seconds(ceilings).values())

    def limit(self, ceilings: Ceilings) -> str:
        """Return what sets that time: `memory` or `arithmetic`."""
        seconds = self._seconds(ceilings)
        return max(seconds, key=seconds.__getitem__)

    def _seconds(self, ceilings: Ceilings) -> dict[str, float]:
        return {
            "memory": self.num_bytes / ceilings.bytes_per_s,
            "arithmetic": self.operations / ceilings.operations_per_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """What a model reads and computes.

    Attributes:
        config: its architecture.
        num_parameters: its weights, tied ones counted once.
        element_bytes: of a weight, and of an element of a key or value.
    """

    config: ModelConfig
    num_parameters: int
    element_bytes: int

    @property
    def step_bytes(self) -> int:
        """Weights that a step reads: all but an embedding of its own, of which it reads a row a token."""
        embedding = 0 if self.config.tie_word_embeddings else self._head_weights
        return (self.num_parameters - embedding) * self.element_bytes

    def prefill(self, num_tokens: int) -> Work:
        """Return the work of a prompt, up to the logits of its last token."""
        layers = self.num_parameters - (1 if self.config.tie_word_embeddings else 2) * self._head_weights
        attended = sum(self._attended(position) for position in range(1, num_tokens + 1))
        operations = 2 * (layers * num_tokens + self._head_weights) + self._attention_operations(attended)
        return Work(num_bytes=self.step_bytes, operations=operations)

    def decode(self, num_prompt_tokens: int, num_steps: int) -> Work:
        """Return the work of one sequence's decode steps, the first of which has read one token beyond the prompt."""
        first = num_prompt_tokens + 1
        attended = sum(self._attended(position) for position in range(first, first + num_steps))
        operations = 2 * self.step_bytes / self.element_bytes * num_steps + self._attention_operations(attended)
        return Work(num_bytes=self.step_bytes * num_steps + self._key_value_bytes(attended), operations=operations)

    @property
    def _head_weights(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    def _attended(self, position: int) -> int:
        """Keys that one token attends to, in all layers together."""
        return sum(position if window is None else min(position, window) for window in self.config.windows)

    def _attention_operations(self, attended: int) -> int:
        return 4 * self.config.q_heads * self.config.head_dim * attended

    def _key_value_bytes(self, attended: int) -> int:
        return 2 * self.config.kv_heads * self.config.head_dim * self.element_bytes * attended

"""What a step of decodes and chunks of prompts takes a card, from bytes, operations and launches. No measurement.

A step is its kernels one after another, as in `expectations`, whose assumptions it shares. A layer has nine launches:

    4 products        the longest of: bytes of the weight and of its rows; 2 * inputs * outputs * rows operations
    2 of attention    decodes: keys and values; prompts: 4 * q_heads * head_dim operations for each pair that is seen
    rest              what norms, gates and rotations read and write

Each takes a launch at least. A step that is captured computes the rows that it is padded to; another one takes the
longer of the device's time and the host's, which launches kernel by kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from infer_bench.kernels.expectations import ASSUMPTIONS
from infer_bench.shapes import Shape
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.graphs.prompt_tokens import HOST_S_PER_LAYER, most_prompt_tokens
from infer_kernels.checks.compiled.gpu_cards import CARDS
from infer_kernels.gpu import Gpu

CAPABILITY = 90
LAUNCHES_OF_LAYER = 9
LAUNCHES_OF_STEP = 8
"""Beside the layers': embedding, last norm, work lists of attention, LM head, choice."""
PREFILL_ATTENTION_OPERATIONS = 350e12
"""A second that prefill attention reaches on a card that it fills: what first light asks for. Assumed, not counted."""
ROWS_OF_TILE = 128
"""Rows that a program of prefill attention takes: queries times the query heads of a key-value head."""

Chunk = tuple[int, int]
"""Tokens of a prompt before a chunk, and those of the chunk."""


@dataclass(frozen=True)
class MixedSteps:
    """Times of the steps of a model whose weights, keys and values are in bf16.

    Attributes:
        shape: fields of its `config.json`: a dense model.
        max_batch_size: decodes of the largest step.
        max_tokens: tokens of the largest step.
    """

    shape: Shape
    max_batch_size: int = 256
    max_tokens: int = 8192

    def seconds(self, contexts: Sequence[int], chunks: Sequence[Chunk]) -> float:
        """Return the time of a step of a decode for each of `contexts`, its tokens so far, and of `chunks`."""
        num_rows = len(contexts) + sum(count for _, count in chunks)
        num_seqs = len(contexts) + len(chunks)
        captured = self._captured.least(num_rows, num_seqs, is_decode_only=not chunks)
        of_layer = self._products(captured.num_tokens if captured else num_rows)
        num_attentions = bool(contexts) + bool(chunks)
        of_layer += self._decode_attention(contexts) if contexts else 0.0
        of_layer += self._prefill_attention(chunks) if chunks else 0.0
        of_layer += (LAUNCHES_OF_LAYER - 5) * self._small_kernel(num_rows)
        of_layer += (LAUNCHES_OF_LAYER - 1 + num_attentions) * ASSUMPTIONS.gap_s
        once = (LAUNCHES_OF_STEP - 1) * (ASSUMPTIONS.launch_s + ASSUMPTIONS.gap_s)
        head = self._product(self.shape["hidden_size"], self.shape["vocab_size"], num_seqs)
        device = self.num_layers * of_layer + once + head
        return device if captured else max(device, self.num_layers * HOST_S_PER_LAYER)

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return int(self.shape["num_hidden_layers"])

    @property
    def num_weights(self) -> int:
        """Weights that each row meets in all layers."""
        return self.num_layers * sum(inputs * outputs for inputs, outputs in self._layer)

    @cached_property
    def max_captured_tokens(self) -> int:
        """Tokens of the largest step with prompts that is captured."""
        gpu = Gpu(divmod(CAPABILITY, 10), CARDS[CAPABILITY].sms)
        return most_prompt_tokens(num_weights=self.num_weights, num_layers=self.num_layers, gpu=gpu)

    @cached_property
    def _heads(self) -> tuple[int, int, int]:
        """Query heads, key-value heads, and elements of a head."""
        q_heads, kv_heads = self.shape["num_attention_heads"], self.shape["num_key_value_heads"]
        return q_heads, kv_heads, self.shape.get("head_dim") or self.shape["hidden_size"] // q_heads

    @cached_property
    def _layer(self) -> list[tuple[int, int]]:
        """Inputs and outputs of a layer's products."""
        hidden, inner = self.shape["hidden_size"], self.shape["intermediate_size"]
        q_heads, kv_heads, head_dim = self._heads
        attention = [(hidden, (q_heads + 2 * kv_heads) * head_dim), (q_heads * head_dim, hidden)]
        return [*attention, (hidden, 2 * inner), (inner, hidden)]

    @cached_property
    def _captured(self) -> PaddedShapes:
        return PaddedShapes(
            max_seqs=self.max_batch_size, max_tokens=self.max_tokens, max_prompt_tokens=self.max_captured_tokens
        )

    def _products(self, num_rows: int) -> float:
        return sum(self._product(inputs, outputs, num_rows) for inputs, outputs in self._layer)

    def _product(self, inputs: int, outputs: int, num_rows: int) -> float:
        weight = 2 * inputs * outputs
        is_small = weight <= ASSUMPTIONS.small_bytes
        share = ASSUMPTIONS.library_share_of_small if is_small else ASSUMPTIONS.library_share
        by_bytes = (weight + 2 * num_rows * (inputs + outputs)) / (share * CARDS[CAPABILITY].bandwidth)
        by_operations = 2 * inputs * outputs * num_rows / ASSUMPTIONS.library_operations
        return max(by_bytes, by_operations, ASSUMPTIONS.launch_s)

    def _decode_attention(self, contexts: Sequence[int]) -> float:
        _, kv_heads, head_dim = self._heads
        num_bytes = sum(contexts) * 2 * kv_heads * head_dim * 2
        return max(num_bytes / (ASSUMPTIONS.attention_share * CARDS[CAPABILITY].bandwidth), ASSUMPTIONS.launch_s)

    def _prefill_attention(self, chunks: Sequence[Chunk]) -> float:
        """All programs at once; where they do not fill the card, the rest of it is idle."""
        q_heads, kv_heads, head_dim = self._heads
        pairs = sum(count * start + count * (count + 1) // 2 for start, count in chunks)
        programs = kv_heads * sum(ceil(count * q_heads / kv_heads / ROWS_OF_TILE) for _, count in chunks)
        filled = min(1.0, programs / CARDS[CAPABILITY].sms)
        return max(4 * q_heads * head_dim * pairs / (PREFILL_ATTENTION_OPERATIONS * filled), ASSUMPTIONS.launch_s)

    def _small_kernel(self, num_rows: int) -> float:
        """On average: the gate reads twice its width and writes it, others read and write hidden states or heads."""
        q_heads, kv_heads, head_dim = self._heads
        numbers = 3 * self.shape["intermediate_size"] + 2 * 3 * self.shape["hidden_size"]
        numbers += 2 * (q_heads + 2 * kv_heads) * head_dim
        num_bytes: float = 2 * num_rows * numbers / (LAUNCHES_OF_LAYER - 5)
        return max(num_bytes / CARDS[CAPABILITY].bandwidth, ASSUMPTIONS.launch_s)

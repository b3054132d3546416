"""`CPUGraph`: captures a decode step on a CPU once, and replays it.

Between two matrix products a step has dozens of small operations. For one token the cost of each is its call: the
interpreter and torch's bindings, whose code the weights have pushed out of the processor's cache. A captured step calls
the operations without either, as a CUDA graph does on a GPU. `torch.jit.trace` captures it. Everything that differs
from step to step, including the number of sequences, is an input tensor.
"""

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infer_cache import KVPool, PagedCacheView
from infer_engine.model_runner.input_buffers import ForwardBatch
from infer_kernels import KVSlots
from infer_kernels.cpu import (
    DecodePlan,
    EmbeddingBagBuilder,
    EmbeddingBagLayout,
    EmbeddingBags,
    EmbeddingBagSpec,
)
from infer_models import CausalLM, KVCacheView

if TYPE_CHECKING:
    from collections.abc import Callable

_CAPTURED_SEQS = 2
"""Sequences of the step that is captured: more than one, so that no dimension broadcasts."""


class CPUGraph:
    """The captured decode step of a model over a KV pool."""

    def __init__(self, model: CausalLM, pool: KVPool) -> None:
        """Capture a step that writes to the first blocks of the pool, which no sequence may hold yet."""
        specs = {(pool.group(layer), spec.window): spec for layer, spec in enumerate(model.attention_specs)}
        self._bag_builders = {
            (group, window): EmbeddingBagBuilder(
                EmbeddingBagSpec(
                    q_heads=spec.q_heads,
                    kv_heads=spec.kv_heads,
                    head_dim=spec.head_dim,
                    block_size=pool.block_size,
                    num_blocks=pool.num_blocks[group],
                    window=window,
                    dtype=pool.key_cache(0).dtype,
                )
            )
            for (group, window), spec in specs.items()
        }
        self._pool = pool
        ids = torch.zeros(_CAPTURED_SEQS, dtype=torch.int32)
        capture_batch = ForwardBatch(
            input_ids=ids,
            position_ids=ids,
            slots=(ids,) * len(pool.num_blocks),
            logits_indices=ids,
            query_start=torch.arange(_CAPTURED_SEQS + 1, dtype=torch.int32),
            seq_lens=torch.ones(_CAPTURED_SEQS, dtype=torch.int32),
            is_prefill=torch.zeros(_CAPTURED_SEQS, dtype=torch.bool),
            block_tables=(torch.zeros(_CAPTURED_SEQS, 2, dtype=torch.int32),) * len(pool.num_blocks),
            is_decode_only=True,
        )
        # Weights become constants of the graph. Packed weights cannot, so they are arguments; the tracer recognizes an
        # argument wherever the model uses that tensor.
        self._packed_weights = tuple(weight for weight in model.parameters() if weight.is_mkldnn)

        def compute(*tensors: Tensor) -> Tensor:
            logits: Tensor = model(*self._arguments(*tensors[len(self._packed_weights) :]))
            return logits

        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trace warns of its deprecation and of each check of a shape
            trace: Callable[..., Callable[..., Tensor]] = torch.jit.trace
            self._graph = trace(compute, (*self._packed_weights, *self._flatten(capture_batch)), check_trace=False)
        self.replay(capture_batch)  # the first replay is slower: torch prepares the graph

    def replay(self, batch: ForwardBatch) -> Tensor:
        """Return the logits [seqs, vocab] of a decode step with one row for each sequence."""
        # Optimization would take two slow replays and gain nothing.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]  # noqa: FBT003 - as torch has it
            return self._graph(*self._packed_weights, *self._flatten(batch))

    def _flatten(self, batch: ForwardBatch) -> tuple[Tensor, ...]:
        layouts = [
            builder.build_layout(batch.seq_lens, batch.block_tables[group])
            for (group, _), builder in self._bag_builders.items()
        ]
        layout_tensors = (tensor for layout in layouts for tensor in layout)
        return (batch.input_ids, batch.position_ids, batch.seq_lens, *batch.slots, *layout_tensors)

    def _arguments(
        self, input_ids: Tensor, position_ids: Tensor, seq_lens: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor, KVCacheView]:
        """Return the arguments of the model; `rest` are the slots of each group, then the layout of each builder."""
        num_groups, size = len(self._pool.num_blocks), self._pool.block_size
        slots = [KVSlots(each, block_size=size, may_skip=False) for each in rest[:num_groups]]
        fields = len(EmbeddingBagLayout._fields)
        layouts = [EmbeddingBagLayout(*rest[start : start + fields]) for start in range(num_groups, len(rest), fields)]
        bags: list[dict[int | None, EmbeddingBags]] = [{} for _ in slots]
        for ((group, window), builder), layout in zip(self._bag_builders.items(), layouts, strict=True):
            bags[group][window] = builder.build_from_layout(layout, seq_lens)
        plans = [DecodePlan(each, num_tokens=len(input_ids), block_size=size, device=input_ids.device) for each in bags]
        return input_ids, position_ids, PagedCacheView(self._pool, slots=slots, plans=plans)

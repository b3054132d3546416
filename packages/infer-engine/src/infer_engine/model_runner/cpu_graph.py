"""A step of decodes on a CPU, recorded once and replayed. Knows tensors; decides nothing.

Between two matrices a step has dozens of small operations, and what each of them costs on one token is its call: the
interpreter's code and torch's bindings, which the weights have swept out of the cache meanwhile. A recorded step calls
them one after another without either, as a captured graph does on a GPU. It is recorded with `torch.jit.trace`:
whatever differs from step to step, the number of sequences too, is a tensor that goes in.
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
"""Sequences of the step that is recorded: more than one, so that no dimension is taken for one that broadcasts."""


class CPUGraph:
    """A model's decode step over a pool."""

    def __init__(self, model: CausalLM, pool: KVPool) -> None:
        """Record a step of sequences that have the pool's first blocks; what it stores there belongs to nobody yet."""
        attended = {(pool.group(layer), spec.window): spec for layer, spec in enumerate(model.attention_specs)}
        self._fillers = {
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
            for (group, window), spec in attended.items()
        }
        self._pool = pool
        ids = torch.zeros(_CAPTURED_SEQS, dtype=torch.int32)
        example = ForwardBatch(
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
        # Weights become constants of the graph, but for packed ones, which cannot. They go in as arguments: the tracer
        # knows an argument again wherever the model uses that tensor.
        self._packed_weights = tuple(weight for weight in model.parameters() if weight.is_mkldnn)

        def compute(*flat: Tensor) -> Tensor:
            logits: Tensor = model(*self._arguments(*flat[len(self._packed_weights) :]))
            return logits

        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its deprecation, and of every check of a shape
            record: Callable[..., Callable[..., Tensor]] = torch.jit.trace
            self._graph = record(compute, (*self._packed_weights, *self._flat(example)), check_trace=False)
        self.replay(example)  # the first run looks at the graph once more

    def replay(self, inputs: ForwardBatch) -> Tensor:
        """Return the logits [seqs, vocab] of a step of decodes, one row for each sequence, all of them stored."""
        # Optimizing would take two slow runs, and find nothing.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]  # noqa: FBT003 - as torch has it
            return self._graph(*self._packed_weights, *self._flat(inputs))

    def _flat(self, inputs: ForwardBatch) -> tuple[Tensor, ...]:
        layouts = [
            filler.build_layout(inputs.seq_lens, inputs.block_tables[group])
            for (group, _), filler in self._fillers.items()
        ]
        laid_out = (tensor for layout in layouts for tensor in layout)
        return (inputs.input_ids, inputs.position_ids, inputs.seq_lens, *inputs.slots, *laid_out)

    def _arguments(
        self, input_ids: Tensor, position_ids: Tensor, seq_lens: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor, KVCacheView]:
        """The model's arguments; `rest` are the slots of each group, then the layout of each filler."""
        num_groups, size = len(self._pool.num_blocks), self._pool.block_size
        slots = [KVSlots(each, block_size=size, may_skip=False) for each in rest[:num_groups]]
        fields = len(EmbeddingBagLayout._fields)
        layouts = [EmbeddingBagLayout(*rest[start : start + fields]) for start in range(num_groups, len(rest), fields)]
        bags: list[dict[int | None, EmbeddingBags]] = [{} for _ in slots]
        for ((group, window), filler), layout in zip(self._fillers.items(), layouts, strict=True):
            bags[group][window] = filler.build_from_layout(layout, seq_lens)
        plans = [DecodePlan(each, num_tokens=len(input_ids), block_size=size, device=input_ids.device) for each in bags]
        return input_ids, position_ids, PagedCacheView(self._pool, slots=slots, plans=plans)

"""`RankModel`: what a rank holds, its part of the model and of the KV pool, and computes batches with."""

from typing import Protocol

import torch
from torch import Tensor

from infer_cache import KVPool, PagedCacheView
from infer_engine.model_runner.cpu_graph import CPUGraph
from infer_engine.model_runner.input_buffers import ForwardBatch
from infer_kernels import KVSlots, QKNorm, Rotary, plan_attention
from infer_models import AttentionSpec, CausalLM


class BatchModel(Protocol):
    """Computes batches, alone or together with other ranks."""

    def hidden_states(self, batch: ForwardBatch) -> Tensor:
        """Compute a batch over the KV pool; return what the LM head reads, [tokens, hidden]."""

    def hidden_states_without_cache(self, num_tokens: int) -> Tensor:
        """Compute `num_tokens` tokens that attend to nothing, to see what memory that takes; [tokens, hidden]."""

    def logits(self, hidden: Tensor, logits_indices: Tensor | None = None) -> Tensor:
        """Return the logits [rows, vocab] of some rows of `hidden`, the latest that were computed; None: of all."""


class RankModel:
    """A whole model, or the part of one that one of several ranks computes. Implements `BatchModel`.

    Attributes:
        model: the weights.
        device: where they are.
    """

    def __init__(self, model: CausalLM, *, device: torch.device, batch_invariant: bool = False) -> None:
        """Compute with `model`; `batch_invariant` must be the value that it was loaded with."""
        self.model = model
        self.device = device
        self._batch_invariant = batch_invariant
        self._pool: KVPool | None = None
        self._cpu_graph: CPUGraph | None = None

    def use_cache(self, pool: KVPool, *, cpu_graph: CPUGraph | None = None) -> None:
        """Keep keys and values in `pool`. Steps replay `cpu_graph`, if there is one."""
        self._pool = pool
        self._cpu_graph = cpu_graph

    @torch.inference_mode()
    def hidden_states(self, batch: ForwardBatch) -> Tensor:
        """Compute a batch over the KV pool."""
        if self._cpu_graph is not None:
            return self._cpu_graph.replay(batch)
        assert self._pool is not None, "there is no KV cache yet"
        return self.model.hidden_states(batch.input_ids, batch.position_ids, self._kv_cache_view(batch, self._pool))

    @torch.inference_mode()
    def hidden_states_without_cache(self, num_tokens: int) -> Tensor:
        """Compute `num_tokens` tokens that attend to nothing."""
        ids = torch.zeros(num_tokens, dtype=torch.int32, device=self.device)
        return self.model.hidden_states(ids, ids, _NoCacheView())

    @torch.inference_mode()
    def logits(self, hidden: Tensor, logits_indices: Tensor | None = None) -> Tensor:
        """Return the logits of some rows of `hidden`."""
        return self.model.logits(hidden, logits_indices)

    def _kv_cache_view(self, batch: ForwardBatch, pool: KVPool) -> PagedCacheView:
        plans = [
            plan_attention(
                query_start=batch.query_start,
                seq_lens=batch.seq_lens,
                is_prefill=batch.is_prefill,
                block_table=block_table,
                block_size=pool.block_size,
                device=self.device,
                batch_invariant=self._batch_invariant,
            )
            for block_table in batch.block_tables
        ]
        slots = [KVSlots(each, block_size=pool.block_size) for each in batch.slots]
        return PagedCacheView(pool, slots=slots, plans=plans)


class _NoCacheView:
    """A KV cache view without a cache; it computes no attention."""

    def attend(
        self,
        layer: int,
        qkv: Tensor,
        spec: AttentionSpec,
        *,
        rotary: Rotary | None = None,
        norm: QKNorm | None = None,
    ) -> Tensor:
        """Return zeros, [tokens, q_heads, head_dim]."""
        del layer, rotary, norm
        return qkv.new_zeros(qkv.shape[0], spec.q_heads, spec.head_dim)

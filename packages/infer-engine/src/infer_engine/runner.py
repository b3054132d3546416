"""Executes a schedule: one forward pass over a flat batch, then one sampling call. Knows tensors; decides nothing."""

from collections.abc import Sequence

import torch

from infer_cache import KVPool, PagedCacheView
from infer_engine.request import Request
from infer_engine.sampler import SampledRow, sample
from infer_engine.scheduler import Schedule
from infer_engine.staging import StepStaging
from infer_kernels import plan_attention
from infer_models import CausalLM


class Runner:
    """A model, its KV memory and the buffers that a step is built in."""

    def __init__(
        self, model: CausalLM, pool: KVPool, *, staging: StepStaging, vocab_size: int, device: torch.device
    ) -> None:
        """Token ids at or above `vocab_size` are never sampled, whatever rows the LM head has beyond it."""
        self._model = model
        self._pool = pool
        self._staging = staging
        self._vocab_size = vocab_size
        self._device = device

    @torch.inference_mode()
    def execute(self, schedule: Schedule) -> list[int]:
        """Compute the schedule's items; return the next token of each request that is due one, in their order."""
        inputs = self._staging.build(schedule.items, schedule.table_edits)
        plan = plan_attention(
            query_start=inputs.query_start,
            seq_lens=inputs.seq_lens,
            is_prefill=inputs.is_prefill,
            block_table=inputs.block_table,
            block_size=self._pool.block_size,
            device=self._device,
        )
        view = PagedCacheView(self._pool, slots=inputs.slots, plan=plan)
        due = [request for request, count in schedule.items if request.num_uncomputed_tokens == count]
        logits = self._model(inputs.input_ids, inputs.position_ids, view, inputs.logit_rows)
        return sample(logits[:, : self._vocab_size], _rows(due)) if due else []


def _rows(requests: Sequence[Request]) -> list[SampledRow]:
    return [SampledRow(request.sampling, request.seed, len(request.token_ids)) for request in requests]

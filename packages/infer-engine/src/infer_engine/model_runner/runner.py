"""`ModelRunner`: executes a schedule with one forward pass over a flat batch and one sampling call."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from infer_cache import KVPool, PagedCacheView
from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepOutOfMemoryError
from infer_engine.model_runner.cpu_graph import CPUGraph
from infer_engine.model_runner.input_buffers import ForwardBatch, InputBuffers
from infer_engine.sampling.prompt_logprobs import (
    compute_prompt_logprobs,
    find_prompt_logprob_rows,
    read_prompt_logprobs,
)
from infer_engine.sampling.sampler import Sampler
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule
from infer_kernels import KVSlots, plan_attention
from infer_models import CausalLM


class ModelRunner:
    """Runs a model over its KV pool. Implements `StepRunner`."""

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        *,
        input_buffers: InputBuffers,
        sampler: Sampler,
        device: torch.device,
        batch_invariant: bool,
        cpu_graph: CPUGraph | None = None,
    ) -> None:
        """Compute with `model` over `pool`; `batch_invariant` must be the value that the model was loaded with.

        Steps replay `cpu_graph`, if there is one.
        """
        self._model = model
        self._pool = pool
        self._input_buffers = input_buffers
        self._sampler = sampler
        self._device = device
        self._batch_invariant = batch_invariant
        self._cpu_graph = cpu_graph

    @torch.inference_mode()
    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute the items of the schedule; the logits of requests that need sampling are [rows, vocab]."""
        with _translated_out_of_memory(len(schedule.items)):
            batch = self._input_buffers.build(schedule.items, schedule.table_edits)
            if self._cpu_graph is not None:
                hidden = self._cpu_graph.replay(batch)
            else:
                hidden = self._model.hidden_states(batch.input_ids, batch.position_ids, self._kv_cache_view(batch))
            if batch.is_decode_only:  # the usual step; all its rows are sampled
                return ComputedPass(logits=self._model.logits(hidden))
            wanted = None
            if batch.is_prefill.any():
                wanted = find_prompt_logprob_rows(schedule.items, batch.query_start.tolist())
            if wanted is None or not wanted.rows:
                return ComputedPass(logits=self._model.logits(hidden, batch.logits_indices))
            # Computed first, so that its logits are freed before those of the next tokens are allocated.
            measured = compute_prompt_logprobs(wanted, hidden, compute_logits=self._model.logits, sampler=self._sampler)
            logits = self._model.logits(hidden, batch.logits_indices)
            return ComputedPass(logits=logits, prompt_logprobs=read_prompt_logprobs(wanted, measured))

    @torch.inference_mode()
    def sample(self, logits: Tensor, requests: list[Request]) -> SamplerOutput:
        """Return the next token of each of `requests`; `logits` has one row for each."""
        with _translated_out_of_memory(len(requests)):
            return self._sampler.sample(logits, requests)

    @torch.inference_mode()
    def probe(self) -> None:
        """Compute one token of an empty sequence, which is not stored and attends to no other."""
        ids = torch.zeros(1, dtype=torch.int32, device=self._device)
        num_groups = len(self._pool.num_blocks)
        batch = ForwardBatch(
            input_ids=ids,
            position_ids=ids,
            slots=(ids - 1,) * num_groups,
            logits_indices=ids,
            query_start=torch.tensor([0, 1], dtype=torch.int32),
            seq_lens=torch.zeros(1, dtype=torch.int32),
            is_prefill=torch.ones(1, dtype=torch.bool),
            block_tables=(torch.zeros(1, 1, dtype=torch.int32),) * num_groups,
            is_decode_only=False,
        )
        self._model(ids, ids, self._kv_cache_view(batch), ids).sum().item()

    def _kv_cache_view(self, batch: ForwardBatch) -> PagedCacheView:
        plans = [
            plan_attention(
                query_start=batch.query_start,
                seq_lens=batch.seq_lens,
                is_prefill=batch.is_prefill,
                block_table=block_table,
                block_size=self._pool.block_size,
                device=self._device,
                batch_invariant=self._batch_invariant,
            )
            for block_table in batch.block_tables
        ]
        slots = [KVSlots(each, block_size=self._pool.block_size) for each in batch.slots]
        return PagedCacheView(self._pool, slots=slots, plans=plans)


@contextmanager
def _translated_out_of_memory(num_requests: int) -> Iterator[None]:
    """Turn torch's out-of-memory error into `StepOutOfMemoryError`, and release the memory that torch caches."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise StepOutOfMemoryError(f"no memory for a step of {num_requests} requests") from error

"""`ModelRunner`: executes a schedule by one forward pass over a flat batch, then one sampling call."""

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
    """A model, its KV memory and the buffers that a step is built in: a `StepRunner`."""

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
        """Compute by `model` over `pool`; `batch_invariant` must be what the model was loaded with.

        Steps of decodes alone replay `cpu_graph`, where there is one.
        """
        self._model = model
        self._pool = pool
        self._input_buffers = input_buffers
        self._sampler = sampler
        self._device = device
        self._batch_invariant = batch_invariant
        self._decode_graph = cpu_graph

    @torch.inference_mode()
    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute the schedule's items; the logits of those that are due are [rows, vocab]."""
        with _out_of_memory_is_ours(len(schedule.items)):
            inputs = self._input_buffers.build(schedule.items, schedule.table_edits)
            if self._decode_graph is not None and inputs.is_decode_only:
                return ComputedPass(logits=self._decode_graph.replay(inputs))
            hidden = self._model.hidden_states(inputs.input_ids, inputs.position_ids, self._view(inputs))
            wanted = None
            if inputs.is_prefill.any():  # steps of decodes alone, most of all steps, need not look at each request
                wanted = find_prompt_logprob_rows(schedule.items, inputs.query_start.tolist())
            if wanted is None or not wanted.rows:
                return ComputedPass(logits=self._model.logits(hidden, inputs.logits_indices))
            # First of all, so that its logits have gone when those of the next tokens come.
            measured = compute_prompt_logprobs(wanted, hidden, logits_of=self._model.logits, sampler=self._sampler)
            logits = self._model.logits(hidden, inputs.logits_indices)
            return ComputedPass(logits=logits, prompt_logprobs=read_prompt_logprobs(wanted, measured))

    @torch.inference_mode()
    def sample(self, logits: Tensor, requests: list[Request]) -> SamplerOutput:
        """Return the next token of each of `requests`, one for each row of `logits`."""
        with _out_of_memory_is_ours(len(requests)):
            return self._sampler.sample(logits, requests)

    @torch.inference_mode()
    def probe(self) -> None:
        """Compute one token of an empty sequence: it is stored nowhere and attends to nothing."""
        ids = torch.zeros(1, dtype=torch.int32, device=self._device)
        num_groups = len(self._pool.num_blocks)
        inputs = ForwardBatch(
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
        self._model(ids, ids, self._view(inputs), ids).sum().item()

    def _view(self, inputs: ForwardBatch) -> PagedCacheView:
        plans = [
            plan_attention(
                query_start=inputs.query_start,
                seq_lens=inputs.seq_lens,
                is_prefill=inputs.is_prefill,
                block_table=block_table,
                block_size=self._pool.block_size,
                device=self._device,
                batch_invariant=self._batch_invariant,
            )
            for block_table in inputs.block_tables
        ]
        slots = [KVSlots(each, block_size=self._pool.block_size) for each in inputs.slots]
        return PagedCacheView(self._pool, slots=slots, plans=plans)


@contextmanager
def _out_of_memory_is_ours(num_requests: int) -> Iterator[None]:
    """Raise `StepOutOfMemoryError` where the device has no memory left, with all that torch kept given back to it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise StepOutOfMemoryError(f"no memory for a step of {num_requests} requests") from error

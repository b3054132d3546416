"""`ModelRunner`: executes a schedule with one forward pass over a flat batch and one sampling call."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepOutOfMemoryError
from infer_engine.model_runner.input_buffers import InputBuffers
from infer_engine.model_runner.rank_model import BatchModel
from infer_engine.sampling.prompt_logprobs import (
    compute_prompt_logprobs,
    find_prompt_logprob_rows,
    read_prompt_logprobs,
)
from infer_engine.sampling.sampler import Sampler
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule


class ModelRunner:
    """Runs a model and samples. Implements `StepRunner`."""

    def __init__(
        self, model: BatchModel, *, input_buffers: InputBuffers, sampler: Sampler, device: torch.device
    ) -> None:
        """Compute batches of `input_buffers` on `device` with `model`, which has a KV pool."""
        self._device = device
        self._model = model
        self._input_buffers = input_buffers
        self._sampler = sampler

    @torch.inference_mode()
    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute the items of the schedule; the logits of requests that need sampling are [rows, vocab]."""
        use_device(self._device)
        with _translated_out_of_memory(len(schedule.items)):
            batch = self._input_buffers.build(schedule.items, schedule.table_edits)
            hidden = self._model.hidden_states(batch)
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
        use_device(self._device)
        with _translated_out_of_memory(len(requests)):
            return self._sampler.sample(logits, requests)

    @torch.inference_mode()
    def probe(self) -> None:
        """Compute one token of an empty sequence, which is not stored and attends to no other."""
        use_device(self._device)
        batch = self._input_buffers.build_probe()
        self._model.logits(self._model.hidden_states(batch), batch.logits_indices).sum().item()


def use_device(device: torch.device) -> None:
    """Make a GPU this thread's current one, on which kernels are launched and events recorded."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


@contextmanager
def _translated_out_of_memory(num_requests: int) -> Iterator[None]:
    """Turn torch's out-of-memory error into `StepOutOfMemoryError`, and release the memory that torch caches."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise StepOutOfMemoryError(f"no memory for a step of {num_requests} requests") from error

"""`ModelRunner`: executes a schedule with one forward pass over a flat batch and one sampling call."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from infer_engine.core.request import Request
from infer_engine.core.step_runner import ComputedPass, PendingTokens, StepOutOfMemoryError
from infer_engine.model_runner.input_buffers import InputBuffers
from infer_engine.model_runner.rank_model import BatchModel, Choice
from infer_engine.sampling.device_to_host import HostCopy
from infer_engine.sampling.prompt_logprobs import (
    compute_prompt_logprobs,
    find_prompt_logprob_rows,
    read_prompt_logprobs,
)
from infer_engine.sampling.sampler import PendingSample, Sampler, pending
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule
from infer_kernels import resolve_token_ids


@dataclass(frozen=True, slots=True)
class UnreadRows:
    """Rows of a captured step of decodes, whose logits are computed only if a request needs more than a draw.

    Attributes:
        choose: chooses the tokens.
        compute_logits: returns the logits, [rows, vocab].
    """

    choose: Choice
    compute_logits: Callable[[], Tensor]


def logits_of(rows: Tensor | UnreadRows) -> Tensor:
    """Return `ComputedPass.logits` of a `ModelRunner` as a tensor, [rows, vocab]."""
    return rows if isinstance(rows, Tensor) else rows.compute_logits()


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
        self._latest_tokens = torch.empty(0, dtype=torch.int64)  # [rows] of the latest `sample`

    @torch.inference_mode()
    def forward(self, schedule: Schedule) -> ComputedPass:
        """Start to compute the items of the schedule; the logits of requests that need sampling are [rows, vocab]."""
        use_device(self._device)
        try:
            return self._forward(schedule)
        except torch.OutOfMemoryError as error:
            raise _no_memory(len(schedule.items), error) from error

    def _forward(self, schedule: Schedule) -> ComputedPass:
        batch = self._input_buffers.build(schedule.items, schedule.table_edits, decodes=schedule.decodes)
        if batch.has_pending_tokens:
            resolve_token_ids(batch.input_ids, self._latest_tokens)
        hidden = self._model.hidden_states(batch)
        if batch.is_decode_only:  # the usual step; all its rows but padding are sampled
            hidden, choice = hidden[: batch.num_tokens], self._model.captured_choice(batch)
            if choice is None:
                return ComputedPass(logits=self._model.logits(hidden))
            return ComputedPass(logits=UnreadRows(choice, partial(self._model.logits, hidden)))
        wanted = None
        if batch.is_prefill.any():
            wanted = find_prompt_logprob_rows(schedule.items, batch.query_start.tolist())
        if wanted is None or not wanted.rows:
            return ComputedPass(logits=self._model.logits(hidden, batch.logits_indices))
        # Computed first, so that its logits are freed before those of the next tokens are allocated.
        measured = compute_prompt_logprobs(wanted, hidden, compute_logits=self._model.logits, sampler=self._sampler)
        copied = HostCopy(measured)
        del measured
        return ComputedPass(
            logits=self._model.logits(hidden, batch.logits_indices),
            read_prompt_logprobs=partial(read_prompt_logprobs, wanted, copied),
        )

    @torch.inference_mode()
    def sample(self, logits: Tensor | UnreadRows, requests: list[Request]) -> PendingTokens:
        """Start to choose the next token of each of `requests`; `logits` has one row for each."""
        if not requests:
            return SamplerOutput(token_ids=[])
        use_device(self._device)
        try:
            sampled = None if isinstance(logits, Tensor) else self._choose(logits, requests)
            if sampled is None:
                sampled = self._sampler.launch(logits_of(logits), requests)
        except torch.OutOfMemoryError as error:
            raise _no_memory(len(requests), error) from error
        self._latest_tokens = sampled.token_ids
        return sampled

    def _choose(self, rows: UnreadRows, requests: list[Request]) -> PendingSample | None:
        """Start to choose tokens by a captured step; return None if `requests` need something else."""
        if self._sampler.are_all_greedy(requests):
            return pending(rows.choose(None))
        draws = self._sampler.plain_draws(requests)
        return None if draws is None else pending(rows.choose(draws))

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


def _no_memory(num_requests: int, error: torch.OutOfMemoryError) -> StepOutOfMemoryError:
    """Return the error of a step for which torch had no memory, after the release of what the step had allocated."""
    traceback.clear_frames(error.__traceback__)  # it lives as long as the error, and its frames hold the step's tensors
    torch.cuda.empty_cache()
    return StepOutOfMemoryError(f"no memory for a step of {num_requests} requests")

"""`ModelRunner`: executes a schedule with one forward pass over a flat batch and one sampling call."""

import traceback
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.rank_model import BatchModel
from infer_engine.request import StepRow
from infer_engine.sampling.prompt_logprobs import (
    compute_prompt_logprobs,
    find_prompt_logprob_rows,
    read_prompt_logprobs,
)
from infer_engine.sampling.sampler import Sampler
from infer_engine.sampling.transfers import HostCopy
from infer_engine.scheduling import Schedule
from infer_engine.step_runner import (
    ComputedPass,
    PromptLogprobs,
    SampledTokens,
    StepOutOfMemoryError,
    StepRunner,
    no_prompt_logprobs,
)
from infer_kernels import resolve_token_ids


class ModelRunner:
    """Runs a model and samples. Implements `StepRunner`.

    Attributes:
        model: computes batches.
        keeps_hidden: whether `take_hidden` is called after each pass.
    """

    def __init__(
        self, model: BatchModel, *, input_buffers: InputBuffers, sampler: Sampler, device: torch.device
    ) -> None:
        """Compute batches of `input_buffers` on `device` with `model`, which has a KV pool."""
        self._device = device
        self.model = model
        self._input_buffers = input_buffers
        self._sampler = sampler
        self._latest_tokens = torch.empty(0, dtype=torch.int64)  # [rows] of the latest `sample`
        self.keeps_hidden = False
        self._hidden: tuple[Schedule, Tensor] | None = None  # of the latest `forward`, if it keeps them

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
        hidden = self.model.hidden_states(batch)
        if self.keeps_hidden:
            self._hidden = schedule, hidden[: batch.num_tokens]
        if batch.is_decode_only:  # the usual step; all its rows but padding are sampled
            hidden, choose = hidden[: batch.num_tokens], self.model.captured_choice(batch)
            if choose is None:
                return _computed(self.model.logits(hidden))
            return ComputedPass(logits=partial(self.model.logits, hidden), choose=choose)
        wanted = None
        if batch.is_prefill.any():
            wanted = find_prompt_logprob_rows(schedule.items, batch.query_start.tolist())
        if wanted is None or not wanted.rows:
            return _computed(self.model.logits(hidden, batch.logits_indices))
        # Computed first, so that its logits are freed before those of the next tokens are allocated.
        measured = compute_prompt_logprobs(wanted, hidden, compute_logits=self.model.logits, sampler=self._sampler)
        copied = HostCopy(measured)
        del measured
        logits = self.model.logits(hidden, batch.logits_indices)
        return _computed(logits, read_prompt_logprobs=partial(read_prompt_logprobs, wanted, copied))

    def take_hidden(self, schedule: Schedule) -> Tensor | None:
        """Return what the LM head read of `schedule`, [tokens, hidden], which the next pass overwrites.

        None if another pass came after it, and at the next call.
        """
        latest, self._hidden = self._hidden, None
        return None if latest is None or latest[0] is not schedule else latest[1]

    @torch.inference_mode()
    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        """Start to choose the next token of each of `rows`; `computed` has one row of logits for each."""
        if not rows:
            return SampledTokens.known([])
        use_device(self._device)
        try:
            sampled = None if computed.choose is None else self._sampler.replay(computed.choose, rows)
            if sampled is None:
                sampled = self._sampler.launch(computed.logits(), rows)
        except torch.OutOfMemoryError as error:
            raise _no_memory(len(rows), error) from error
        self._latest_tokens = sampled.on_device
        return sampled

    @torch.inference_mode()
    def probe(self) -> None:
        """Compute one token of an empty sequence, which is not stored and attends to no other."""
        use_device(self._device)
        batch = self._input_buffers.build_probe()
        self.model.logits(self.model.hidden_states(batch), batch.logits_indices).sum().item()


class RecordingRunner:
    """Computes with another `ModelRunner`, or with one that returns logits as it does. Implements `StepRunner`."""

    def __init__(self, inner: StepRunner, logits: dict[tuple[str, int], Tensor]) -> None:
        """Keep in `logits`, by (request id, tokens known), a copy of the row that the next token is chosen from."""
        self._inner = inner
        self._logits = logits

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Start to compute the items of the schedule."""
        computed = self._inner.forward(schedule)
        for request, row in zip(schedule.needs_sampling, computed.logits().clone(), strict=True):
            self._logits[request.request_id, request.num_tokens] = row
        return computed

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        """Start to choose the next token of each of `rows`."""
        return self._inner.sample(computed, rows)

    def probe(self) -> None:
        """Compute something small."""
        self._inner.probe()


def _computed(
    logits: Tensor, *, read_prompt_logprobs: Callable[[], PromptLogprobs] = no_prompt_logprobs
) -> ComputedPass:
    """Return the result of a pass whose logits, [rows, vocab], are computed already."""
    return ComputedPass(logits=lambda: logits, read_prompt_logprobs=read_prompt_logprobs)


def use_device(device: torch.device) -> None:
    """Make a GPU this thread's current one, on which kernels are launched and events recorded."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _no_memory(num_requests: int, error: torch.OutOfMemoryError) -> StepOutOfMemoryError:
    """Return the error of a step for which torch had no memory, after the release of what the step had allocated."""
    traceback.clear_frames(error.__traceback__)  # it lives as long as the error, and its frames hold the step's tensors
    torch.cuda.empty_cache()
    return StepOutOfMemoryError(f"no memory for a step of {num_requests} requests")

"""One sampling call per step. Knows the order of a token's choice; knows no arithmetic of it.

    logits ──> log-probabilities of the rows that ask, of the logits as the model gave them
       │
       ├─ min_tokens: what would end the request is forbidden ─┐
       ├─ logit_bias                                           ├─ in place, one rounding each step
       ├─ repetition, then frequency and presence penalties ───┘
       └─ temperature, min-p, top-k, top-p, one draw             `infer_kernels.sample`

Work is done only for what a row of the batch asks for.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from infer_engine.core.request import Request
from infer_engine.sampling.host_to_device import to_device
from infer_engine.sampling.logit_edits import LogitEdits
from infer_engine.sampling.logprobs import compute_logprobs, read_logprobs
from infer_engine.sampling.metadata import SamplingMetadata, SamplingNeeds, SamplingParamsTable
from infer_engine.sampling.penalties import Penalties
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_kernels import sample


class Sampler:
    """Chooses the next token of each request of a batch.

    A request's choice depends on its logits, its parameters, its seed and its tokens alone: it gets the same tokens in
    any batch, and again after it was preempted or a step was run twice.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, eos_token_ids: frozenset[int], device: torch.device) -> None:
        """Choose among ids below `vocab_size`, for requests in rows 0 to `max_rows` - 1, from logits on `device`."""
        self._vocab_size = vocab_size
        self._device = device
        self._rows = SamplingParamsTable(max_rows=max_rows, eos_token_ids=eos_token_ids, vocab_size=vocab_size)
        self._edits = LogitEdits(device)
        self._penalties = Penalties(vocab_size=vocab_size, max_rows=max_rows, device=device)

    @torch.inference_mode()
    def sample(self, logits: Tensor, requests: Sequence[Request]) -> SamplerOutput:
        """Choose one token for each request.

        It may be called again for requests whose token was not appended, and gives the same.

        Args:
            logits: [rows, `vocab_size` or more], fp32, bf16 or fp16. May be changed in place.
            requests: one for each row of `logits`, with a row of their own each.
        """
        if not requests:
            return SamplerOutput(token_ids=[])
        logits = logits[:, : self._vocab_size]
        if self._rows.are_greedy(requests):
            return _sound(*logits.max(dim=-1))
        step = self._rows.gather(requests)
        listed = step.which(SamplingNeeds.LOGPROBS)
        at = torch.tensor(listed, device=self._device) if listed else None
        as_given = logits[at] if at is not None else logits  # a copy: the logits are about to be changed
        largest = self._edited(logits, step)
        drawn = self._draw(logits, step)
        if largest is None:
            largest = logits.gather(-1, drawn[:, None]).squeeze(-1)
        counts = self._rows.num_logprobs(step, listed)
        measured = None if at is None else compute_logprobs(as_given, drawn[at], with_top=any(counts))
        sampled = _sound(largest, drawn)
        if measured is None:
            return sampled
        found = zip(listed, read_logprobs(measured, counts), strict=True)
        return replace(sampled, logprobs={index: each for index, each in found if index not in sampled.not_finite})

    @torch.inference_mode()
    def measure(self, logits: Tensor, token_ids: Tensor, *, with_top: bool) -> Tensor:
        """Return the log-probabilities of tokens that are chosen already; arguments and result as `compute_logprobs`.

        They are among the ids that it chooses from, as those of its own choices are.
        """
        return compute_logprobs(logits[:, : self._vocab_size], token_ids, with_top=with_top)

    def _edited(self, logits: Tensor, step: SamplingMetadata) -> Tensor | None:
        """Edit and penalise in place; return each row's largest logit before that, None where the token's will do."""
        if not step.any_needs & ~SamplingNeeds.LOGPROBS:
            return None
        largest = logits.amax(dim=-1)
        if step.any_needs & SamplingNeeds.EDITS:
            self._edits.apply(logits, self._rows.edits(step))
        if step.any_needs & SamplingNeeds.PENALTIES:
            penalised = (step.needs & SamplingNeeds.PENALTIES) != 0
            self._penalties.apply(
                logits,
                [step.requests[index] for index in step.which(SamplingNeeds.PENALTIES)],
                slots=np.where(penalised, step.rows, -1),
                **self._rows.columns(step, "repetition", "presence", "frequency"),
            )
        return largest

    def _draw(self, logits: Tensor, step: SamplingMetadata) -> Tensor:
        if not step.any_needs & SamplingNeeds.DRAW:
            return sample(logits)
        return sample(logits, **to_device(self._rows.draws(step), self._device))


def _sound(largest: Tensor, drawn: Tensor) -> SamplerOutput:
    """Return the tokens `drawn` [rows] of rows whose `largest` logit [rows] is finite, and which rows are not sound.

    NaN is larger than anything: the largest logit is finite only where all are below infinity.
    """
    token_ids: list[int] = torch.where(largest.isfinite(), drawn, -1).tolist()
    if min(token_ids) >= 0:
        return SamplerOutput(token_ids=token_ids)
    not_finite = frozenset(index for index, token_id in enumerate(token_ids) if token_id < 0)
    return SamplerOutput(token_ids=[max(token_id, 0) for token_id in token_ids], not_finite=not_finite)

"""`Sampler`: chooses the next token of each request, with one call per step.

    logits ──> log-probabilities, for the rows that need them, of the unedited logits
       │
       ├─ min_tokens: tokens that end the request are forbidden ┐
       ├─ logit_bias                                            ├─ in place, one rounding each
       ├─ repetition, then frequency and presence penalties ────┤
       ├─ grammar: tokens that it does not allow are forbidden ─┘
       └─ temperature, min-p, top-k, top-p, one draw              `infer_kernels.sample`

An operation runs only if a row of the batch needs it.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from infer_engine.core.request import Request
from infer_engine.sampling.host_to_device import to_device
from infer_engine.sampling.logit_edits import Bitmask, LogitEdits
from infer_engine.sampling.logprobs import compute_logprobs, read_logprobs
from infer_engine.sampling.metadata import SamplingMetadata, SamplingNeeds, SamplingParamsTable
from infer_engine.sampling.penalties import Penalties
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.structured.errors import GrammarError
from infer_kernels import apply_bitmask, sample

logger = logging.getLogger(__name__)


class Sampler:
    """Chooses the next token of each request of a batch.

    The choice depends only on the request's logits, parameters, seed and tokens. So a request gets the same tokens in
    any batch, after preemption, and when a step is repeated.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, eos_token_ids: frozenset[int], device: torch.device) -> None:
        """Choose ids below `vocab_size` from logits on `device`, for requests with rows below `max_rows`."""
        self._vocab_size = vocab_size
        self._device = device
        self._rows = SamplingParamsTable(max_rows=max_rows, eos_token_ids=eos_token_ids, vocab_size=vocab_size)
        self._edits = LogitEdits(device)
        self._penalties = Penalties(vocab_size=vocab_size, max_rows=max_rows, device=device)

    @torch.inference_mode()
    def sample(self, logits: Tensor, requests: Sequence[Request]) -> SamplerOutput:
        """Choose one token for each request.

        A repeated call returns the same tokens, if none was appended to a request.

        Args:
            logits: [rows, `vocab_size` or more], fp32, bf16 or fp16; changed in place.
            requests: one for each row of `logits`.
        """
        if not requests:
            return SamplerOutput(token_ids=[])
        logits = logits[:, : self._vocab_size]
        if self._rows.are_all_greedy(requests):
            return _to_output(*logits.max(dim=-1))
        metadata = self._rows.gather(requests)
        logprob_indices = metadata.indices_with(SamplingNeeds.LOGPROBS)
        logprob_rows = None
        if logprob_indices:
            logprob_rows = to_device({"rows": np.array(logprob_indices, np.int64)}, self._device)["rows"]
        unedited = logits[logprob_rows] if logprob_rows is not None else logits  # a copy, because edits change `logits`
        masks, grammar_failed = _read_masks(metadata) if metadata.any_needs & SamplingNeeds.GRAMMAR else ({}, None)
        largest = self._edit_logits(logits, metadata, masks)
        drawn = self._draw(logits, metadata)
        if largest is None:
            largest = logits.gather(-1, drawn[:, None]).squeeze(-1)
        counts = self._rows.num_logprobs(metadata, logprob_indices)
        computed = (
            None if logprob_rows is None else compute_logprobs(unedited, drawn[logprob_rows], with_top=any(counts))
        )
        output = _to_output(largest, drawn)
        if grammar_failed:
            output = replace(output, grammar_failed=grammar_failed)
        if computed is None:
            return output
        logprobs = zip(logprob_indices, read_logprobs(computed, counts), strict=True)
        return replace(output, logprobs={index: each for index, each in logprobs if index not in output.not_finite})

    @torch.inference_mode()
    def compute_logprobs(self, logits: Tensor, token_ids: Tensor, *, with_top: bool) -> Tensor:
        """Return the log-probabilities of given tokens; see `infer_engine.sampling.logprobs.compute_logprobs`.

        Only logits of ids below `vocab_size` count, as in `sample`.
        """
        return compute_logprobs(logits[:, : self._vocab_size], token_ids, with_top=with_top)

    def _edit_logits(self, logits: Tensor, metadata: SamplingMetadata, masks: dict[int, Bitmask]) -> Tensor | None:
        """Apply edits, penalties and `masks` in place; return each row's largest logit before that, or None."""
        if not metadata.any_needs & ~SamplingNeeds.LOGPROBS:
            return None
        largest = logits.amax(dim=-1)
        if metadata.any_needs & SamplingNeeds.EDITS:
            self._edits.apply(logits, self._rows.edits(metadata, masks=masks))
        if metadata.any_needs & SamplingNeeds.PENALTIES:
            has_penalty = (metadata.needs & SamplingNeeds.PENALTIES) != 0
            self._penalties.apply(
                logits,
                [metadata.requests[index] for index in metadata.indices_with(SamplingNeeds.PENALTIES)],
                slots=np.where(has_penalty, metadata.rows, -1),
                **self._rows.columns(metadata, "repetition", "presence", "frequency"),
            )
        if masks:
            bits = np.concatenate(list(masks.values()))
            copied = to_device({"rows": np.array(list(masks), np.int64), "bits": bits}, self._device)
            apply_bitmask(logits, copied["bits"].view(len(masks), -1), copied["rows"])
        return largest

    def _draw(self, logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        if not metadata.any_needs & SamplingNeeds.DRAW:
            return sample(logits)
        return sample(logits, **to_device(self._rows.draws(metadata), self._device))


def _read_masks(metadata: SamplingMetadata) -> tuple[dict[int, Bitmask], frozenset[int]]:
    """Return the tokens that grammars allow, by row index, and the rows whose grammars fail."""
    masks: dict[int, Bitmask] = {}
    failed = []
    for index in metadata.indices_with(SamplingNeeds.GRAMMAR):
        constraint = metadata.requests[index].constraint
        assert constraint is not None
        try:
            masks[index] = constraint.mask()
        except GrammarError as error:
            logger.error("The grammar of request %s fails: %s", metadata.requests[index].request_id, error)  # noqa: TRY400 - no traceback of ours would help
            failed.append(index)
    return masks, frozenset(failed)


def _to_output(largest: Tensor, drawn: Tensor) -> SamplerOutput:
    """Return the tokens `drawn` [rows], and the rows that are not finite by their `largest` logit [rows].

    NaN counts as larger than any number, so the largest logit is finite only if no logit is NaN or +inf.
    """
    token_ids: list[int] = torch.where(largest.isfinite(), drawn, -1).tolist()
    if min(token_ids) >= 0:
        return SamplerOutput(token_ids=token_ids)
    not_finite = frozenset(index for index, token_id in enumerate(token_ids) if token_id < 0)
    return SamplerOutput(token_ids=[max(token_id, 0) for token_id in token_ids], not_finite=not_finite)

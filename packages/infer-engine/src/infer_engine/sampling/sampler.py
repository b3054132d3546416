"""`Sampler`: chooses the next token of each request, with one call per step.

    logits ──> log-probabilities, for the rows that need them, of the unedited logits
       │
       ├─ min_tokens: tokens that end the request are forbidden ┐
       ├─ logit_bias, bad_words, tokens that are never generated├─ in place, one rounding each
       ├─ repetition, then frequency and presence penalties ────┤
       ├─ constraint: tokens not allowed by it are forbidden ───┘
       └─ temperature, min-p, top-k, top-p, one draw              `infer_kernels.sample`

An operation runs only if a row of the batch needs it.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from infer_engine.request import StepRow
from infer_engine.sampling.draw_buffers import Draws
from infer_engine.sampling.logit_edits import Bitmask, LogitEdits, SuppressedTokens
from infer_engine.sampling.logprobs import compute_logprobs, read_logprobs
from infer_engine.sampling.metadata import PLAIN_DRAW, SamplingMetadata, SamplingNeeds, SamplingParamsTable
from infer_engine.sampling.penalties import Penalties
from infer_engine.sampling.transfers import HostCopy, to_device
from infer_engine.step_runner import SampledTokens, SamplerOutput
from infer_engine.structured.errors import GrammarError
from infer_kernels import Largest, apply_bitmask, greedy, sample

logger = logging.getLogger(__name__)

NO_ROWS: frozenset[int] = frozenset()
NONE_SUPPRESSED = SuppressedTokens()


class ChosenTokens(NamedTuple):
    """Tokens that a device chooses.

    Attributes:
        token_ids: [rows] int64, inside the vocabulary.
        checked: [rows] int64, the same; -1 in rows whose logits are not finite.
    """

    token_ids: Tensor
    checked: Tensor


Choice = Callable[[Draws | None], ChosenTokens]
"""Starts to draw a token for each row, or to choose the most probable one if it is given None.

What it returns is overwritten by the next.
"""


class Sampler:
    """Chooses the next token of each request of a batch.

    The choice depends only on the request's logits, parameters, seed and tokens. So a request gets the same tokens in
    any batch, after preemption, and when a step is repeated.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        max_rows: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
        suppressed: SuppressedTokens = NONE_SUPPRESSED,
    ) -> None:
        """Choose ids below `vocab_size` from logits on `device`, for requests with rows below `max_rows`."""
        self._vocab_size = vocab_size
        self._device = device
        self._rows = SamplingParamsTable(
            max_rows=max_rows, eos_token_ids=eos_token_ids, suppressed=suppressed, vocab_size=vocab_size
        )
        self._edits = LogitEdits(device)
        self._penalties = Penalties(vocab_size=vocab_size, max_rows=max_rows, device=device)

    def sample(self, logits: Tensor, requests: Sequence[StepRow]) -> SamplerOutput:
        """Choose one token for each request and wait for them; arguments as for `launch`."""
        return self.launch(logits, requests).wait() if requests else SamplerOutput(token_ids=[])

    @torch.inference_mode()
    def launch(self, logits: Tensor, requests: Sequence[StepRow]) -> SampledTokens:
        """Start to choose one token for each request.

        A repeated call chooses the same tokens, if none was appended to a request.

        Args:
            logits: [rows, `vocab_size` or more], fp32, bf16 or fp16, which are changed in place.
            requests: one for each row, at least one. One that holds no row of the batch has ended, and gets any token.
        """
        logits = logits[:, : self._vocab_size]
        if self._rows.are_all_greedy(requests):
            return _sampled(check_tokens(greedy(logits)))
        metadata = self._rows.gather(requests)
        logprob_indices = metadata.indices_with(SamplingNeeds.LOGPROBS)
        logprob_rows = None
        if logprob_indices:
            logprob_rows = to_device({"rows": np.array(logprob_indices, np.int64)}, self._device)["rows"]
        unedited = logits[logprob_rows] if logprob_rows is not None else logits  # a copy, because edits change `logits`
        masks: dict[int, Bitmask] = {}
        grammar_failed = NO_ROWS
        if metadata.any_needs & SamplingNeeds.CONSTRAINT:
            masks, grammar_failed = _read_masks(metadata)
            if not masks:  # as where tools are offered and no call is being written
                metadata = metadata.without(SamplingNeeds.CONSTRAINT)
        largest = self._edit_logits(logits, metadata, masks)
        drawn = self._draw(logits, metadata)
        chosen = check_drawn(logits, drawn) if largest is None else check_tokens(Largest(drawn, largest))
        if logprob_rows is None:
            return _sampled(chosen, grammar_failed=grammar_failed)
        counts = self._rows.num_logprobs(metadata, logprob_indices)
        return _sampled(
            chosen,
            grammar_failed=grammar_failed,
            logprobs=HostCopy(compute_logprobs(unedited, drawn[logprob_rows], with_top=any(counts))),
            logprob_indices=logprob_indices,
            logprob_counts=counts,
        )

    @torch.inference_mode()
    def replay(self, choose: Choice, requests: Sequence[StepRow]) -> SampledTokens | None:
        """Start to choose tokens as `launch` does, by a captured choice; return None if they need more than a draw."""
        if self._rows.are_all_greedy(requests):
            return _sampled(choose(None))
        metadata = self._rows.gather(requests)
        if metadata.any_needs & ~PLAIN_DRAW:
            return None
        return _sampled(choose(self._rows.draws(metadata, needs=PLAIN_DRAW)))

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
            bits = _of_one_length(list(masks.values()))
            copied = to_device({"rows": np.array(list(masks), np.int64), "bits": np.concatenate(bits)}, self._device)
            apply_bitmask(logits, copied["bits"].view(len(masks), -1), copied["rows"])
        return largest

    def _draw(self, logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        if not metadata.any_needs & SamplingNeeds.DRAW:
            return sample(logits)
        return sample(logits, **to_device(self._rows.draws(metadata), self._device))


def _read_masks(metadata: SamplingMetadata) -> tuple[dict[int, Bitmask], frozenset[int]]:
    """Return the tokens that constraints allow, by row index, and the rows whose grammars fail."""
    masks: dict[int, Bitmask] = {}
    failed = []
    for index in metadata.indices_with(SamplingNeeds.CONSTRAINT):
        constraint = metadata.requests[index].constraint
        assert constraint is not None
        try:
            mask = constraint.mask()
        except GrammarError as error:
            logger.error("The grammar of request %s fails: %s", metadata.requests[index].request_id, error)  # noqa: TRY400 - no traceback of ours would help
            failed.append(index)
            continue
        if mask is not None:
            masks[index] = mask
    return masks, frozenset(failed)


def _of_one_length(masks: list[Bitmask]) -> list[Bitmask]:
    """Return `masks` with as many words as the longest has; a word that is not there allows nothing."""
    longest = max(map(len, masks))
    return [mask if len(mask) == longest else np.pad(mask, (0, longest - len(mask))) for mask in masks]


def check_tokens(chosen: Largest) -> ChosenTokens:
    """Return tokens with the check of their rows.

    NaN counts as larger than any number, so the largest logit is finite only if no logit is NaN or +inf.
    """
    return ChosenTokens(chosen.token_ids, torch.where(chosen.largest.isfinite(), chosen.token_ids, -1))


def check_drawn(logits: Tensor, drawn: Tensor) -> ChosenTokens:
    """Return tokens `drawn` [rows] with the check of their rows: one that is not finite gives no finite logit."""
    return check_tokens(Largest(drawn, logits.gather(-1, drawn[:, None]).squeeze(-1)))


def _sampled(
    chosen: ChosenTokens,
    *,
    logprobs: HostCopy | None = None,
    logprob_indices: Sequence[int] = (),
    logprob_counts: Sequence[int] = (),
    grammar_failed: frozenset[int] = NO_ROWS,
) -> SampledTokens:
    """Start to copy chosen tokens to the host.

    Args:
        chosen: the tokens.
        logprobs: the input of `read_logprobs`, on its way to the host; None if no row needs it.
        logprob_indices: the rows of `logprobs`.
        logprob_counts: how many of the most probable tokens each of them lists.
        grammar_failed: as in `SamplerOutput`.
    """
    checked = HostCopy(chosen.checked)

    def wait() -> SamplerOutput:
        token_ids: list[int] = checked.wait().tolist()
        not_finite = NO_ROWS
        if min(token_ids) < 0:
            not_finite = frozenset(index for index, token_id in enumerate(token_ids) if token_id < 0)
            token_ids = [max(token_id, 0) for token_id in token_ids]
        listed = [] if logprobs is None else read_logprobs(logprobs.wait(), logprob_counts)
        return SamplerOutput(
            token_ids=token_ids,
            logprobs={
                index: each for index, each in zip(logprob_indices, listed, strict=True) if index not in not_finite
            },
            not_finite=not_finite,
            grammar_failed=grammar_failed,
        )

    return SampledTokens(wait, chosen.token_ids)

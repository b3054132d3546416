"""Computes one step of every kind before the first request, so that no request waits for a compiler.

A Triton kernel is compiled when it is first launched, for seconds, in which every request would wait. Which variants
there are depends on the model, on the kinds of rows in a step, and on what their sampling needs; sizes matter only by
whether they are 1 or multiples of 16.
"""

import itertools
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from infer_engine.model_runner.loading.dummy_requests import GREEDY, dummy_request
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request, RequestState
from infer_engine.scheduling import Schedule, SchedulerLimits
from infer_engine.speculation.drafts import FixedMask
from infer_engine.step_runner import StepRunner

if TYPE_CHECKING:
    from infer_engine.model_runner.mtp_drafter import MTPDrafter
    from infer_engine.structured.constraint import Constraint

logger = logging.getLogger(__name__)

_FILTERS = {"top_k": 5, "top_p": 0.9, "min_p": 0.1}
_NUM_SAMPLED = (1, 2, 16)


def warm_up_gpu(
    runner: StepRunner, limits: SchedulerLimits, *, device: torch.device, max_seq_len: int, vocab_size: int
) -> None:
    """Warm `runner` up if it computes on a GPU, and log how long that took; the arguments are those of `warm_up`."""
    if device.type != "cuda":
        return
    started_s = time.monotonic()
    num_steps = warm_up(runner, limits, max_seq_len=max_seq_len, vocab_size=vocab_size)
    logger.info("Warmed up with %d steps in %.1f s: the kernels are compiled.", num_steps, time.monotonic() - started_s)


def warm_up(runner: StepRunner, limits: SchedulerLimits, *, max_seq_len: int, vocab_size: int) -> int:
    """Compute steps of every kind, and return how many.

    The requests are made up. They overwrite the first block of each group of layers, so the KV cache must be empty;
    afterwards nothing in the runner refers to them.

    Args:
        runner: computes the steps.
        limits: limits of a step.
        max_seq_len: tokens of the longest sequence.
        vocab_size: the sampler's.
    """
    num_steps = 0

    def compute(*items: tuple[Request, int]) -> None:
        nonlocal num_steps
        for row, (request, _) in enumerate(items):
            request.row = row
        schedule = Schedule(items=list(items))
        computed = runner.forward(schedule)
        computed.read_prompt_logprobs()
        if schedule.needs_sampling:
            runner.sample(computed, schedule.needs_sampling).wait()
        num_steps += 1

    def decodes(count: int, params: SamplingParams = GREEDY, *, masked: bool = False) -> list[tuple[Request, int]]:
        return [(_decode(params, vocab_size if masked else None), 1) for _ in range(count)]

    def prompt(length: int, params: SamplingParams = GREEDY) -> tuple[Request, int]:
        return dummy_request([0] * length, params=params), length

    for count in _powers_of_two(limits.max_rows):
        compute(*decodes(count))
    pending = dummy_request([0], [0], num_computed=2)
    pending.pending_row = 0  # its token is the first of those that were just chosen
    pending.state = RequestState.DECODE
    compute((pending, 1))
    longest = min(limits.prefill_chunk_size or limits.max_num_batched_tokens, max_seq_len - 1)
    for length in _powers_of_two(longest):
        compute(prompt(length))
    for listed in (0, 1):
        compute(prompt(min(3, longest), SamplingParams(temperature=0, prompt_logprobs=listed)))
    if limits.max_rows > 1:
        compute(*decodes(1), prompt(min(3, longest)))
    for count in _NUM_SAMPLED:
        if count <= limits.max_rows:
            for params in _kinds_of_sampling():
                compute(*decodes(count, params))
            compute(*decodes(count, masked=True))
    return num_steps


def warm_up_mtp(drafter: "MTPDrafter", limits: SchedulerLimits, *, max_seq_len: int) -> None:
    """Compute the layer of `drafter` for every kind of rows, and draft by every kind of sampling, as `warm_up`."""
    longest = min(limits.prefill_chunk_size or limits.max_num_batched_tokens, max_seq_len - 1)
    for length in _powers_of_two(longest):
        drafter.compute_made_up([length])
    for params in _kinds_of_sampling():  # as its sampler has memory of its own, for fewer rows
        drafter.compute_made_up([1], params, start=1)
        if limits.max_rows > 1:
            drafter.compute_made_up([1, 1], params, start=1)
    if limits.max_rows > 1:
        drafter.compute_made_up([1, min(3, longest)], start=1)


def _kinds_of_sampling() -> Iterator[SamplingParams]:
    """Yield parameters that launch every kernel of the sampler, in every form."""
    for number in range(len(_FILTERS) + 1):
        for names in itertools.combinations(_FILTERS, number):
            yield SamplingParams(temperature=1.0, **{name: _FILTERS[name] for name in names})  # type: ignore[arg-type]  # each of its own type
    yield SamplingParams(temperature=1.0, repetition_penalty=1.1, frequency_penalty=0.1, logit_bias={0: 1.0})
    yield SamplingParams(temperature=0, logprobs=0)
    yield SamplingParams(temperature=1.0, logprobs=1)


def _decode(params: SamplingParams, masked_vocab_size: int | None) -> Request:
    request = dummy_request([0], [0], params=params, num_computed=1)
    if masked_vocab_size is not None:
        any_token = FixedMask(np.full(-(-masked_vocab_size // 32), -1, np.int32))
        request.constraint = cast("Constraint", any_token)
    return request


def _powers_of_two(limit: int) -> list[int]:
    """Return the powers of two below `limit`, and `limit`."""
    return [*(1 << power for power in range((limit - 1).bit_length())), limit] if limit > 0 else []

"""Running requests, and a token's choice one row at a time, for tests of sampling. Knows rows; knows no scheduler."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from infer_engine.messages import Submit
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request
from infer_kernels.reference import sample_reference


def running_request(
    row: int = 0,
    *,
    prompt: Sequence[int] = (1, 2),
    generated: Sequence[int] = (),
    seed: int = 3,
    request_id: str | None = None,
    **params: Any,
) -> Request:
    """Return a request in `row` that has `generated` tokens already; left out, its id follows from its row."""
    sampling = SamplingParams(**{"max_tokens": None, **params})
    submitted = Submit(
        request_id=request_id or f"in row {row}",
        prompt_token_ids=list(prompt),
        max_tokens=1000,
        seed=seed,
        params=sampling,
    )
    request = Request(submitted, arrival=hash(submitted.request_id))
    request.token_ids += generated
    request.row = row
    return request


def edited_reference(logits: Tensor, request: Request, *, eos_token_ids: frozenset[int] = frozenset()) -> Tensor:
    """Return what becomes of one row's `logits` [vocab] before temperature and filters, each of two steps rounded."""
    params = request.submission.params
    generated = request.token_ids[request.num_prompt_tokens :]
    edited = logits.clone()
    for token_id, bias in params.logit_bias.items():
        edited[token_id] = edited[token_id].float() + bias
    if len(generated) < params.min_tokens:
        ending = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *eos_token_ids)
        edited[list(ending)] = -torch.inf
    for token_id in set(request.token_ids):
        value = float(edited[token_id])
        value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * generated.count(token_id)
        value -= params.presence_penalty * (token_id in generated)
        edited[token_id] = value
    return edited


def choice_reference(logits: Tensor, request: Request, *, eos_token_ids: frozenset[int] = frozenset()) -> int:
    """Return the token that `request` gets of one row of `logits` [vocab]."""
    params = request.submission.params
    chosen = sample_reference(
        edited_reference(logits, request, eos_token_ids=eos_token_ids)[None],
        temperatures=torch.tensor([0.0 if params.is_greedy else params.temperature]),
        top_k=torch.tensor([min(params.top_k or 0, 2**31 - 1)]),
        top_p=torch.tensor([params.top_p]),
        min_p=torch.tensor([params.min_p]),
        seeds=torch.tensor([request.submission.seed]),
        positions=torch.tensor([len(request.token_ids)]),
    )
    return int(chosen)

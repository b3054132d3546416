"""`Usage`: the token counts of a response."""

from collections.abc import Sequence

import msgspec

from infer_engine.protocol import StepOutput


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The number of prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the answers' tokens that were reasoning, and that were drafted from the request's `prediction`."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of prompts and of answers. The details are there only if one of their numbers is not 0."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


def usage_of(last_outputs: Sequence[StepOutput], *, choices_per_prompt: int) -> Usage:
    """Return the usage of the choices whose last outputs are `last_outputs`, prompt by prompt; a prompt counts once.

    A choice may find cached what another choice of the same prompt has just computed. That is no cache hit of the
    request, so the choice with the fewest cached tokens counts.
    """
    prompts = [
        last_outputs[first : first + choices_per_prompt] for first in range(0, len(last_outputs), choices_per_prompt)
    ]
    prompt_tokens = sum(choices[0].num_prompt_tokens for choices in prompts)
    completion_tokens = sum(last.num_completion_tokens for last in last_outputs)
    cached_tokens = sum(min(last.num_cached_tokens for last in choices) for choices in prompts)
    num_predicted = sum(last.drafts.num_predicted for last in last_outputs)
    num_accepted = sum(last.drafts.num_predicted_accepted for last in last_outputs)
    details = CompletionTokensDetails(
        reasoning_tokens=sum(last.num_reasoning_tokens for last in last_outputs),
        accepted_prediction_tokens=num_accepted,
        rejected_prediction_tokens=num_predicted - num_accepted,
    )
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens) if cached_tokens else None,
        completion_tokens_details=details if any(msgspec.structs.astuple(details)) else None,
    )

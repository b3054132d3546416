"""`Usage`: tokens read and made, as every answer reports them. Knows counts; knows no text."""

from collections.abc import Sequence

import msgspec

from infer_engine.protocol import StepOutput


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens that were read and made; details only where there is something to say."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


def usage_of(lasts: Sequence[StepOutput], *, choices_per_prompt: int) -> Usage:
    """Return the usage of the choices whose last outputs are `lasts`, prompt by prompt; a prompt counts once.

    What one choice finds cached because another one computed it a moment before is no saving of the request's, so the
    choice that found least speaks for its prompt.
    """
    prompts = [lasts[first : first + choices_per_prompt] for first in range(0, len(lasts), choices_per_prompt)]
    prompt_tokens = sum(choices[0].num_prompt_tokens for choices in prompts)
    completion_tokens = sum(last.num_completion_tokens for last in lasts)
    cached_tokens = sum(min(last.num_cached_tokens for last in choices) for choices in prompts)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens) if cached_tokens else None,
    )

"""Makes the `TokenOutput` messages of a core."""

from infer_engine.messages import Submit, TokenOutput
from infer_engine.protocol import FinishReason, RequestFailure, TokenLogprob
from infer_engine.request import Request

SCHEDULING_FAILED = RequestFailure(
    message="This request could not be given its place in a step; the engine's log has the cause.", code="step_failed"
)


def grammar_failed_output(message: Submit) -> TokenOutput:
    """Return the only output of a request whose grammar cannot be compiled."""
    failure = RequestFailure(
        message="The grammar of this request cannot be compiled; make it simpler.", code="grammar_failed"
    )
    num_prompt_tokens = len(message.prompt_token_ids)
    return TokenOutput(
        request_id=message.request_id,
        token_ids=[],
        error=failure,
        num_prompt_tokens=num_prompt_tokens,
        num_completion_tokens=0,
    )


def make_output(
    request: Request,
    token_ids: list[int],
    *,
    finish_reason: FinishReason | None = None,
    error: RequestFailure | None = None,
    logprobs: list[TokenLogprob] | None = None,
    prompt_logprobs: list[TokenLogprob | None] | None = None,
) -> TokenOutput:
    """Return an output of `request` as it is, with its new tokens."""
    return TokenOutput(
        request_id=request.request_id,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        error=error,
        num_prompt_tokens=request.num_prompt_tokens,
        num_completion_tokens=request.num_completion_tokens,
        num_cached_tokens=request.num_cached_tokens,
        drafts=request.draft_counts,
    )

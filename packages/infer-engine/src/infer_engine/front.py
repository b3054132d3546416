"""The front: text on one side, token ids on the other. Knows the vocabulary, the context and the limits; no scheduling.

This is the one point that checks a request before it enters the queue.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infer_engine.messages import Submit, TokenOutput
from infer_engine.protocol import (
    ContextLengthExceededError,
    EmptyPromptError,
    FinishReason,
    GenerateRequest,
    InvalidRequestError,
    StepOutput,
)
from infer_models.text import IncrementalDetokenizer, StopStringMatcher, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLimits:
    """What a request may ask for: ids below `vocab_size`, prompt and answer within `max_seq_len` tokens."""

    vocab_size: int
    max_seq_len: int


class Front:
    """Makes submissions of requests and text of tokens. Thread-safe where it says so; shared by all requests."""

    def __init__(self, tokenizer: Tokenizer, limits: FrontLimits, *, seed: int | None = None) -> None:
        """`seed` is the base of the seeds of requests that bring none; None draws one."""
        self._tokenizer = tokenizer
        self._limits = limits
        self._serials = itertools.count()
        self._base_seed = random.SystemRandom().getrandbits(63) if seed is None else seed

    def next_serial(self) -> int:
        """Return the next request's number. Numbers are taken in order of arrival: unseeded draws depend on them."""
        return next(self._serials)

    def prepare(self, request: GenerateRequest, *, serial: int) -> Submit:
        """Tokenize and check request number `serial`; safe to call from any thread, and slow for long prompts.

        Raises:
            EmptyPromptError: the prompt has no tokens.
            InvalidRequestError: a token id outside the vocabulary.
            ContextLengthExceededError: the prompt plus `max_tokens` exceeds the context.
        """
        prompt = request.prompt if isinstance(request.prompt, list) else self._tokenizer.encode(request.prompt)
        if not prompt:
            raise EmptyPromptError
        self._check_ids("prompt", prompt)
        self._check_ids("stop_token_ids", request.params.stop_token_ids)
        room = self._limits.max_seq_len - len(prompt)
        max_tokens = request.params.max_tokens or max(room, 1)
        if max_tokens > room:
            raise ContextLengthExceededError(
                max_seq_len=self._limits.max_seq_len, num_prompt_tokens=len(prompt), max_tokens=max_tokens
            )
        seed = request.params.seed
        return Submit(
            request_id=f"r{serial}",
            prompt_token_ids=prompt,
            max_tokens=max_tokens,
            seed=self._base_seed + serial if seed is None else seed,
            params=request.params,
        )

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt's token ids for chat `messages`, by the checkpoint's own template."""
        return self._tokenizer.encode_chat(messages)

    def start_text(self, submitted: Submit) -> "RequestText":
        """Return what turns the request's tokens into text."""
        return RequestText(
            IncrementalDetokenizer(self._tokenizer, submitted.prompt_token_ids),
            StopStringMatcher(submitted.params.stop),
        )

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self._limits.vocab_size):
            wrong = next(i for i in token_ids if not 0 <= i < self._limits.vocab_size)
            raise InvalidRequestError(
                f"`{name}` has the token id {wrong}, outside the vocabulary of {self._limits.vocab_size} tokens; send "
                "ids of this model's own tokenizer.",
                param=name,
            )


class RequestText:
    """One request's text as it grows: deltas, stop strings, and what is held back."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, detokenizer: IncrementalDetokenizer, stops: StopStringMatcher) -> None:
        """Text of tokens through `detokenizer`, ended by `stops`."""
        self._detokenizer = detokenizer
        self._stops = stops

    def advance(self, output: TokenOutput) -> StepOutput:
        """Return the output with its text. It is finished with reason `stop` where a stop string was completed."""
        reason = output.finish_reason
        # The token that ends a request by its id is no part of the text.
        spoken = output.token_ids if reason in (None, FinishReason.LENGTH) else output.token_ids[:-1]
        text = ""
        for token_id in spoken:
            delta, matched = self._stops.add(self._detokenizer.add(token_id))
            text += delta
            if matched:
                return _step_output(output, text, FinishReason.STOP)
        if reason is None:
            return _step_output(output, text, None)
        delta, matched = self._finish()
        return _step_output(output, text + delta, FinishReason.STOP if matched else reason)

    def cut_short(self) -> str:
        """Return the text that was held back; no more tokens come, and none ended the text."""
        return self._finish()[0]

    def _finish(self) -> tuple[str, bool]:
        """Return the rest of the text, and whether it completed a stop string."""
        delta, matched = self._stops.add(self._detokenizer.finish())
        return delta if matched else delta + self._stops.finish(), matched


def _step_output(output: TokenOutput, text: str, reason: FinishReason | None) -> StepOutput:
    return StepOutput(
        request_id=output.request_id,
        token_ids=output.token_ids,
        text=text,
        finished=reason is not None,
        finish_reason=reason,
        num_prompt_tokens=output.num_prompt_tokens,
        num_completion_tokens=output.num_completion_tokens,
    )

"""`InputProcessor`: checks requests and tokenizes their prompts.

All checks of a request happen here, before it enters the queue.
"""

import logging
import random
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

from msgspec import structs

from infer_engine.chat.formats import ChatFormats
from infer_engine.chat.output_form import AnswerForm
from infer_engine.chat.parsers import parser_of
from infer_engine.frontend.answer_limits import grammar_of, thinking_budget
from infer_engine.frontend.output_processor import OutputProcessor, PromptOnlyProcessor
from infer_engine.frontend.stop_rules import StopRules, stop_rules
from infer_engine.messages import Submit
from infer_engine.protocol import (
    ChatPrompt,
    ChatTemplateUnusableError,
    ContextLengthExceededError,
    EmptyPromptError,
    GenerateRequest,
    InfillPrompt,
    InvalidRequestError,
    SamplingParams,
    TextPrompt,
)
from infer_engine.protocol.structured_outputs import Whitespace
from infer_engine.protocol.values import bound_code
from infer_models.text import (
    ChatTemplateError,
    ChatTemplateMissingError,
    EncodedChat,
    IncrementalDetokenizer,
    InfillEncoder,
    TextTooLongError,
    Tokenizer,
)

logger = logging.getLogger(__name__)

MAX_SALT_CHARACTERS = 256
MAX_PRIORITY = 2**31 - 1

_MOST_STARTS = 16  # special tokens of a prompt that are told to the core

_KEPT_STOP_RULES = 16  # clients send the same stop strings again and again

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """Limits of a request: token ids below `vocab_size`, prompt plus generated tokens at most `max_seq_len`.

    With `has_states` the core is told where messages begin: the model's layers have states, of which it keeps some.
    """

    vocab_size: int
    max_seq_len: int
    has_states: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedInput:
    """One checked sequence: the message that submits it to the core, and the processor of its outputs."""

    submission: Submit
    output_processor: OutputProcessor


def grammars_of(processed: Iterable[ProcessedInput]) -> set[str]:
    """Return the texts of the grammars of these sequences."""
    return {each.submission.grammar for each in processed if each.submission.grammar is not None}


class InputProcessor:
    """Turns requests into submissions to the core. All requests share it; methods say where they are thread-safe."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: InputLimits,
        *,
        seed: int | None = None,
        whitespace: Whitespace = "compact",
        reasoning_budget: int = -1,
        reasoning_budget_message: str = "",
    ) -> None:
        """Take the base seed of requests without a seed of their own, of which None draws one.

        `whitespace` is that of the JSON of requests that do not say theirs; `reasoning_budget` and its message: as in
        `EngineConfig`.
        """
        self._tokenizer = tokenizer
        self._chat_formats = ChatFormats(tokenizer) if tokenizer.has_chat else None
        self._limits = limits
        self._stop_rules = lru_cache(maxsize=_KEPT_STOP_RULES)(partial(stop_rules, tokenizer=tokenizer))
        self._whitespace = whitespace
        self._reasoning_budget = reasoning_budget
        self._reasoning_budget_message = reasoning_budget_message
        self._num_ids = 0
        self._base_seed = random.SystemRandom().getrandbits(63) if seed is None else seed

    def reserve_ids(self, request: GenerateRequest) -> range:
        """Return the numbers of a request's `n` sequences. Seeds depend on them: call it in order of arrival."""
        ids = range(self._num_ids, self._num_ids + request.params.n)
        self._num_ids = ids.stop
        return ids

    def process(self, request: GenerateRequest, *, ids: range) -> list[ProcessedInput]:
        """Check and tokenize a request, and return its sequences in order, numbered `ids`.

        Safe to call from any thread, and slow for long prompts.

        Raises:
            EmptyPromptError: the prompt has no tokens.
            ChatTemplateUnusableError: there is no chat template, or it refuses the conversation.
            InvalidRequestError: a token id outside the vocabulary, a value that this engine cannot take, a prompt that
                the tokenizer fails on, or tools or structured output that cannot be kept.
            ContextLengthExceededError: the prompt plus `max_tokens` exceeds the context.
        """
        params = request.params
        prompt, form = self._encode_prompt(request)
        if not prompt:
            raise EmptyPromptError
        if isinstance(request.prompt, list) or self._tokenizer.vocab_size > self._limits.vocab_size:
            self._check_ids("prompt", prompt)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", params.logit_bias)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        _check_queueing(request)
        grammar, call_marks = grammar_of(request, form, self._whitespace)
        thinking_limit = None
        if form is not None and (budget := thinking_budget(params, default=self._reasoning_budget)) is not None:
            is_free = grammar is None or call_marks is not None
            thinking_limit = self._require_formats().thinking_limit(
                form, max_tokens=budget, message=self._reasoning_budget_message, is_free=is_free
            )
        rules = _refuse_if_tokenizer_fails(lambda: self._stop_rules(params.stop), param="stop")
        banned = self._banned_sequences(params)
        predicted = self._predicted_tokens(request.prediction)
        max_tokens = self._max_tokens(request, num_prompt_tokens=len(prompt))
        core_params = structs.replace(
            params,
            structured_outputs=None,
            bad_words=(),
            stop=params.stop[:1],
            stop_token_ids=rules.token_ids((*params.stop_token_ids, *self._ends_of_infill(request))),
        )
        first_seed = self._base_seed + ids.start if params.seed is None else params.seed
        group = f"r{ids.start}" if len(ids) > 1 else None
        return [
            ProcessedInput(
                submission=Submit(
                    request_id=f"r{sequence_id}",
                    prompt_token_ids=prompt,
                    max_tokens=max_tokens,
                    seed=_signed_64_bit(first_seed + index),
                    params=core_params,
                    priority=request.priority,
                    cache_salt=_salt(request),
                    sibling_group=group,
                    grammar=grammar,
                    call_marks=call_marks,
                    thinking_limit=thinking_limit,
                    banned_sequences=banned,
                    message_starts=self._message_starts(prompt),
                    predicted_token_ids=predicted,
                ),
                output_processor=_refuse_if_tokenizer_fails(
                    lambda: self._make_output_processor(request, prompt, form, rules)
                ),
            )
            for index, sequence_id in enumerate(ids)
        ]

    def tokenize(
        self, prompt: TextPrompt, *, add_special_tokens: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of what is tokenized; safe to call from any thread.

        Raises:
            ChatTemplateUnusableError: there is no chat template, or it refuses the conversation.
            InvalidRequestError: the tokenizer fails on it, or has no tokens for what it is.
            TextTooLongError: it has more than `max_tokens` tokens, if there is such a limit.
        """
        match prompt:
            case str():
                return _refuse_if_tokenizer_fails(
                    lambda: self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens, max_tokens=max_tokens)
                )
            case ChatPrompt():
                return self._encode_chat(prompt, max_tokens).token_ids
            case InfillPrompt():
                encode = partial(self._require_infill().encode, adds_beginning=add_special_tokens, cuts=prompt.cuts)
                most = max_tokens or sys.maxsize
                return _refuse_if_tokenizer_fails(
                    lambda: encode(prompt.prefix, prompt.suffix, files=prompt.files, max_tokens=most)
                )

    def detokenize(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`, special tokens included; safe to call from any thread.

        Raises:
            InvalidRequestError: a token id outside the vocabulary, or the tokenizer fails on them.
        """
        self._check_ids("tokens", token_ids)
        return _refuse_if_tokenizer_fails(
            lambda: self._tokenizer.decode(token_ids, skip_special_tokens=False), param="tokens", verb="detokenized"
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for."""
        return self._tokenizer.token_bytes(token_id)

    def _encode_prompt(self, request: GenerateRequest) -> tuple[list[int], AnswerForm | None]:
        """Return the prompt's ids and, for a conversation, what its answer may look like."""
        limit = self._limits.max_seq_len
        if isinstance(request.prompt, list):
            if len(request.prompt) > limit:  # before each id is checked
                raise self._too_long(len(request.prompt), request)
            return request.prompt, None
        try:
            if not isinstance(request.prompt, ChatPrompt):
                if isinstance(request.prompt, InfillPrompt) and request.prompt.cuts:
                    wanted = request.params.max_tokens
                    limit -= min(limit // 2, limit if wanted is None else max(wanted, 1))
                add_special_tokens = request.add_special_tokens
                return self.tokenize(request.prompt, add_special_tokens=add_special_tokens, max_tokens=limit), None
            encoded = self._encode_chat(request.prompt, limit)
            return encoded.token_ids, self._require_formats().answer_form(request.prompt, encoded.reasoning)
        except TextTooLongError as error:
            raise self._too_long(error.num_tokens, request) from None

    def _predicted_tokens(self, prediction: str | None) -> list[int]:
        """Return the tokens of a prediction; none of one that no answer has room for."""
        if prediction is None:
            return []
        try:
            return _refuse_if_tokenizer_fails(
                lambda: self._tokenizer.encode(
                    prediction, add_special_tokens=False, max_tokens=self._limits.max_seq_len
                ),
                param="prediction",
            )
        except TextTooLongError:
            return []

    def _too_long(self, num_prompt_tokens: int, request: GenerateRequest) -> ContextLengthExceededError:
        return ContextLengthExceededError(
            max_seq_len=self._limits.max_seq_len,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=1 if request.clip_max_tokens else request.params.max_tokens or 1,
        )

    def _encode_chat(self, prompt: ChatPrompt, max_tokens: int | None) -> EncodedChat:
        try:
            conversation = self._require_formats().conversation(prompt)
            return _refuse_if_tokenizer_fails(
                lambda: self._tokenizer.chat.encode(conversation, max_tokens=max_tokens), param="messages"
            )
        except ChatTemplateError as error:
            raise ChatTemplateUnusableError(f"`messages` cannot be made a prompt: {error}") from error

    def _require_formats(self) -> ChatFormats:
        if self._chat_formats is None:
            raise ChatTemplateUnusableError(f"`messages` cannot be made a prompt: {ChatTemplateMissingError()}")
        return self._chat_formats

    def _require_infill(self) -> InfillEncoder:
        if self._tokenizer.infill is None:
            raise InvalidRequestError(
                "`suffix` needs a model that fills in the middle, and this one's vocabulary has no tokens for that, "
                "such as `<|fim_prefix|>`; leave it out.",
                param="suffix",
            )
        return self._tokenizer.infill

    def _ends_of_infill(self, request: GenerateRequest) -> tuple[int, ...]:
        """Return the tokens that end an answer that fills a gap, beside those that end any."""
        is_infill = isinstance(request.prompt, InfillPrompt) and not request.params.ignore_eos
        return self._require_infill().end_ids if is_infill else ()

    def _message_starts(self, prompt: list[int]) -> list[int]:
        """Return the positions of the last special tokens: templates begin and end messages with such."""
        if not self._limits.has_states:
            return []
        special_ids = self._tokenizer.special_ids
        return [position for position, token_id in enumerate(prompt) if token_id in special_ids][-_MOST_STARTS:]

    def _make_output_processor(
        self, request: GenerateRequest, prompt: list[int], form: AnswerForm | None, rules: StopRules
    ) -> OutputProcessor:
        params = request.params
        is_free = params.structured_outputs is None
        shown_ids = frozenset[int]() if form is None else form.shown_ids
        if not params.skip_special_tokens:
            shown_ids = self._tokenizer.special_ids
        make = PromptOnlyProcessor if params.max_tokens == 0 else OutputProcessor
        return make(
            rules.detokenizer(
                IncrementalDetokenizer(self._tokenizer, prompt, shown_ids=shown_ids), shown_ids=shown_ids
            ),
            rules.matcher(),
            min_tokens=params.min_tokens,
            parser=rules.parser(None if form is None else parser_of(form.marks(is_free=is_free), form.parameter_types)),
            stop_token_texts=rules.by_id,
            includes_stop=params.include_stop_str_in_output,
        )

    def _banned_sequences(self, params: SamplingParams) -> list[list[int]]:
        """Return the tokens of each of the `bad_words`, with and without a blank before it."""
        if not params.bad_words:
            return []
        texts = dict.fromkeys(text for word in params.bad_words for text in (word, f" {word.lstrip()}"))
        encode = partial(self._tokenizer.encode, add_special_tokens=False)
        found = _refuse_if_tokenizer_fails(lambda: [encode(text) for text in texts], param="bad_words")
        banned = list(map(list, dict.fromkeys(tuple(token_ids) for token_ids in found if token_ids)))
        singles = {sequence[0] for sequence in banned if len(sequence) == 1}
        if params.allowed_token_ids is not None and singles.issuperset(params.allowed_token_ids):
            raise InvalidRequestError(
                "`bad_words` forbids all of `allowed_token_ids`, so no token could be chosen; leave one of them out.",
                param="bad_words",
                code="conflicting_fields",
            )
        return banned

    def _max_tokens(self, request: GenerateRequest, *, num_prompt_tokens: int) -> int:
        remaining = self._limits.max_seq_len - num_prompt_tokens
        wanted = request.params.max_tokens
        max_tokens = max(remaining if wanted is None else wanted, 1)  # to read a prompt takes a token, which is dropped
        if request.clip_max_tokens:
            max_tokens = min(max_tokens, max(remaining, 1))
        if max_tokens > remaining:
            raise ContextLengthExceededError(
                max_seq_len=self._limits.max_seq_len, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens
            )
        if request.params.min_tokens > max_tokens:
            raise InvalidRequestError(
                f"`min_tokens` is {request.params.min_tokens} and the request may generate {max_tokens} tokens; lower "
                "it, or shorten the prompt.",
                param="min_tokens",
                code="conflicting_fields",
            )
        return max_tokens

    def _check_ids(self, name: str, token_ids: Collection[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self._limits.vocab_size):
            wrong = next(i for i in token_ids if not 0 <= i < self._limits.vocab_size)
            raise InvalidRequestError(
                f"`{name}` has the token id {wrong}, outside the vocabulary of {self._limits.vocab_size} tokens; send "
                "ids of this model's own tokenizer.",
                param=name,
            )


def _check_queueing(request: GenerateRequest) -> None:
    if not -MAX_PRIORITY <= request.priority <= MAX_PRIORITY:
        message = f"`priority` is {request.priority}; it must be in [-{MAX_PRIORITY}, {MAX_PRIORITY}]."
        code = bound_code("integer", request.priority, low=-MAX_PRIORITY)
        raise InvalidRequestError(message, param="priority", code=code)
    if request.cache_salt is not None and len(request.cache_salt) > MAX_SALT_CHARACTERS:
        raise InvalidRequestError(
            f"`cache_salt` has {len(request.cache_salt)} characters; at most {MAX_SALT_CHARACTERS} are allowed.",
            param="cache_salt",
            code="string_above_max_length",
        )


def _salt(request: GenerateRequest) -> str | None:
    """Return a salt that only this tenant can use, so that no tenant can time the prefixes of another."""
    if request.tenant is None:
        return request.cache_salt
    return f"{request.tenant} {request.cache_salt or ''}"


def _signed_64_bit(seed: int) -> int:
    """Wrap `seed` into the range of a signed 64-bit integer."""
    return (seed + 2**63) % 2**64 - 2**63


def _refuse_if_tokenizer_fails(call: Callable[[], _T], *, param: str = "prompt", verb: str = "tokenized") -> _T:
    """Return `call()`, or refuse the request if the tokenizer raises something unexpected."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, ChatTemplateError, ChatTemplateMissingError, TextTooLongError):
        raise
    except BaseException as error:  # a panic in the Rust tokenizer is not an `Exception`
        logger.exception("The tokenizer failed on a prompt; its request is refused.")
        raise InvalidRequestError(
            f"`{param}` cannot be {verb}: this model's tokenizer fails on it; the server's log says why.", param=param
        ) from error

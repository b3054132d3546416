"""Errors of requests that are refused before they enter the queue, and of engines that cannot start.

    error                              code
    RequestRefusedError
        InvalidRequestError            a `ValueCode`, mostly invalid_value
            EmptyPromptError           empty_prompt
            ChatTemplateUnusableError  chat_template_unusable
        ContextLengthExceededError     context_length_exceeded
        NotNowError
            QueueFullError             queue_full
            EngineUnavailableError     engine_unavailable
    EngineStartError
    CheckpointUnusableError

The last two end a start; the others are replies to a client, with their `code`.
"""

from typing import Any

from infer_engine.protocol.values import ValueCode


class CheckpointUnusableError(Exception):
    """The checkpoint cannot be used; the message is one line that names the file and the cause."""


class EngineStartError(Exception):
    """The engine cannot start: the configuration asks for something missing, or its process ended while it loaded."""

    @classmethod
    def by(cls, error: Exception) -> "EngineStartError":
        """Return the error of a start that an `error` has ended which no configuration explains."""
        if isinstance(error, cls):
            return error
        message = f"{type(error).__name__}: {error}".rstrip(": ")
        return cls(f"The engine cannot load: {message} (`--log-level debug` logs where)")


class RequestRefusedError(Exception):
    """A request was refused before it entered the queue; nothing was computed or allocated for it.

    Attributes:
        code: the kind of error, for a program to read.
        message: for the client: what is wrong, and what to do about it.
        param: the field of the request that is wrong, or None.
        retry_after_s: whole seconds after which the same request may be served; None: it never will be.
    """

    code: str = "invalid_value"
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """Store `message` and `param`."""
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[Any, ...]:
        """Let pools of processes pass it on: constructors take other arguments than the message."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class InvalidRequestError(RequestRefusedError):
    """The request can never be served as it is, for example because of a token id outside the vocabulary."""

    def __init__(self, message: str, *, param: str | None = None, code: ValueCode | None = None) -> None:
        """Store all; without a `code` it is that of the class."""
        super().__init__(message, param=param)
        if code is not None:
            self.code = code


class EmptyPromptError(InvalidRequestError):
    """The prompt has no tokens, or is a text without tokens."""

    code = "empty_prompt"

    def __init__(self) -> None:
        """Create the error with its fixed message."""
        super().__init__("`prompt` is empty; send at least one token.", param="prompt")


class ChatTemplateUnusableError(InvalidRequestError):
    """The checkpoint has no chat template, or its template refuses the conversation."""

    code = "chat_template_unusable"

    def __init__(self, message: str) -> None:
        """Store `message`, which is for the client."""
        super().__init__(message, param="messages")


class ContextLengthExceededError(RequestRefusedError):
    """Prompt plus `max_tokens` exceeds `max_seq_len`. Agents parse this wording to shrink `max_tokens`.

    Attributes:
        max_seq_len: most tokens of prompt and output together.
        num_prompt_tokens: tokens of the prompt.
    """

    code = "context_length_exceeded"

    def __init__(self, *, max_seq_len: int, num_prompt_tokens: int, max_tokens: int) -> None:
        """Build the message from counts of tokens; `max_tokens` is the request's value."""
        self.max_seq_len = max_seq_len
        self.num_prompt_tokens = num_prompt_tokens
        super().__init__(
            f"This model's maximum context length is {max_seq_len} tokens. However, you requested {max_tokens} output "
            f"tokens and your prompt contains at least {num_prompt_tokens} input tokens, for a total of at least "
            f"{num_prompt_tokens + max_tokens} tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens.",
            param="max_tokens" if num_prompt_tokens < max_seq_len else "prompt",
        )


class NotNowError(RequestRefusedError):
    """The same request may be served later, after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        """Store `message` and `retry_after_s`, in whole seconds as in the HTTP header."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(NotNowError):
    """The queue is full."""

    code = "queue_full"


class EngineUnavailableError(NotNowError):
    """The engine is draining, stopped or dead, and takes no requests."""

    code = "engine_unavailable"

"""Why a request is refused before it enters the queue, or an engine cannot start. Knows no HTTP status."""


class CheckpointUnusableError(Exception):
    """The model cannot be served: the message is one line that names the file and the cause."""


class EngineStartError(Exception):
    """There will be no engine: its configuration asks for what is not there, or its process ended while it loaded."""


class RequestRefusedError(Exception):
    """A request was refused before it entered the queue; nothing was computed and nothing is held.

    Attributes:
        message: what is wrong and what to do about it, for the client to read.
        param: the request field to blame, or None.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """Keep `message` for the client and the field to blame."""
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequestError(RequestRefusedError):
    """The request can never be served as it stands, such as a token id outside the vocabulary."""


class EmptyPromptError(InvalidRequestError):
    """The prompt has no tokens, or is a text that the tokenizer makes none of."""

    def __init__(self) -> None:
        """Say so; there is nothing to add."""
        super().__init__("`prompt` is empty; send at least one token.", param="prompt")


class ChatTemplateUnusableError(InvalidRequestError):
    """The checkpoint has no chat template, or its template refuses the conversation."""

    def __init__(self, message: str) -> None:
        """`message` is for the client to read."""
        super().__init__(message, param="messages")


class ContextLengthExceededError(RequestRefusedError):
    """Prompt plus `max_tokens` exceeds `max_seq_len`. Agents parse this wording to shrink `max_tokens`."""

    def __init__(self, *, max_seq_len: int, num_prompt_tokens: int, max_tokens: int) -> None:
        """All three counts are tokens; `max_tokens` is what the request asked for."""
        super().__init__(
            f"This model's maximum context length is {max_seq_len} tokens. However, you requested {max_tokens} output "
            f"tokens and your prompt contains at least {num_prompt_tokens} input tokens, for a total of at least "
            f"{num_prompt_tokens + max_tokens} tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens.",
            param="max_tokens" if num_prompt_tokens < max_seq_len else "prompt",
        )


class QueueFullError(RequestRefusedError):
    """`max_waiting_requests` sequences are waiting already; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        """`retry_after_s` is whole seconds, as the HTTP header wants them."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailableError(RequestRefusedError):
    """The engine is draining, stopped or dead: no new requests."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        """`retry_after_s` is whole seconds, as the HTTP header wants them."""
        super().__init__(message)
        self.retry_after_s = retry_after_s

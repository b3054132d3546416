"""`Engine` and `RequestStream`: the two verbs-only protocols that a server is written against."""

import enum
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from infer_engine.protocol.requests import ChatPrompt, GenerateRequest, StepOutput
from infer_engine.protocol.snapshot import BatchSnapshot
from infer_engine.protocol.stats import EngineStats


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded, in the words a person would use.

    Attributes:
        model: the `model` string as configured; the demo model has a fixed name.
        architecture: the checkpoint's `model_type`.
        num_parameters: weights, tied ones counted once.
        dtype: of weights and activations, such as `bfloat16`.
        device: where it runs, such as `cpu`.
        vocab_size: token ids are in [0, vocab_size).
        max_seq_len: prompt plus generated tokens of one request.
        num_kv_blocks: blocks of the KV cache.
        block_size: tokens of one block.
        max_batch_size: requests computed in one step.
    """

    model: str
    architecture: str
    num_parameters: int
    dtype: str
    device: str
    vocab_size: int
    max_seq_len: int
    num_kv_blocks: int
    block_size: int
    max_batch_size: int


class EngineStatus(enum.StrEnum):
    """Ready takes requests, draining finishes those it has, stopped and dead take none.

    A request that fails leaves the engine ready. It is dead when it cannot go on, or when a step does not end (every
    running request is told so, with code `engine_dead` or `engine_stuck`); the log says why.
    """

    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


class RequestTimes(msgspec.Struct, kw_only=True):
    """When things happened to a request, in seconds of the event loop's clock; None: not yet.

    Attributes:
        arrived_s: it was submitted, still to be tokenized.
        admitted_s: it left the queue for the first time.
        first_token_s: its first token came.
        last_token_s: its latest token came.
    """

    arrived_s: float
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None


class RequestStream(Protocol):
    """One accepted request's outputs. Whoever holds it must consume it to its end or call `abort`."""

    @property
    def request_id(self) -> str:
        """The engine's own id, never a client's."""

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's tokens, known as soon as the request is accepted."""

    @property
    def times(self) -> RequestTimes:
        """When things happened to it; the caller does not change them."""

    def __aiter__(self) -> AsyncIterator[StepOutput]:
        """Yield one output per step that made something, the last with `finished`; ends after that one.

        A failure is a last output with `error`, never an exception.
        """

    def abort(self) -> None:
        """Stop computing, give back the memory by the next step. Legal at any time, any number of times."""


class Engine(Protocol):
    """A running engine, used from one asyncio event loop. Its steps run elsewhere and never hold the loop up."""

    @property
    def info(self) -> EngineInfo:
        """What was loaded."""

    @property
    def status(self) -> EngineStatus:
        """Whether it takes requests."""

    @property
    def stats(self) -> EngineStats:
        """The latest snapshot; never blocks."""

    async def submit(self, requests: Sequence[GenerateRequest]) -> list[RequestStream]:
        """Tokenize off the event loop, validate, and queue all of `requests` or none of them.

        Returns a stream for each sequence: request by request, the `params.n` choices of each one after another.

        Raises:
            EmptyPromptError: a prompt has no tokens.
            ChatTemplateUnusableError: there is no chat template, or it refuses a conversation.
            InvalidRequestError: a token id outside the vocabulary, a value out of this engine's range, a prompt that
                the tokenizer fails on, or more sequences than the queue can ever take.
            ContextLengthExceededError: prompt plus `max_tokens` exceeds `max_seq_len`.
            QueueFullError: there is no room in the queue for all the sequences. Those that were computed before and
                wait again for want of memory take none.
            EngineUnavailableError: the engine is draining, stopped or dead.
        """

    async def tokenize(self, prompt: str | ChatPrompt, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `prompt`, made off the event loop.

        `add_special_tokens` adds to a text what the tokenizer puts around every text; a conversation has what its
        template writes.

        Raises:
            ChatTemplateUnusableError: there is no chat template, or it refuses the conversation.
            InvalidRequestError: the tokenizer fails on it.
            QueueFullError: as many requests as may wait are waiting.
            EngineUnavailableError: the engine is stopped.
        """

    async def detokenize(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`, special tokens included, made off the event loop.

        Raises:
            InvalidRequestError: a token id outside the vocabulary.
            QueueFullError: as many requests as may wait are waiting.
            EngineUnavailableError: the engine is stopped.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token stands for, perhaps a part of a character; for a special token its name.

        Fast, and never fails for ids that the engine has made.
        """

    async def inspect(self) -> BatchSnapshot:
        """Return what the engine is doing, as it is between two steps.

        Raises:
            EngineUnavailableError: the engine is stopped or dead.
        """

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, let running ones finish, abort what is left after `timeout_s` seconds."""

    async def close(self) -> None:
        """Abort everything and stop the engine's thread; idempotent."""

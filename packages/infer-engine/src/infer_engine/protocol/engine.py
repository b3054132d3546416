"""`Engine` and `RequestStream`: the protocols that a server is written against."""

import enum
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from infer_engine.protocol.requests import GenerateRequest, StepOutput, TextPrompt
from infer_engine.protocol.sampling import SamplingDefaults
from infer_engine.protocol.snapshot import BatchSnapshot
from infer_engine.protocol.stats import EngineStats


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the loaded model and the engine's sizes.

    Attributes:
        model: the `model` string as configured; the installed models have fixed names.
        architecture: the checkpoint's `model_type`.
        num_parameters: number of weights; tied ones count once.
        dtype: type of weights and activations, such as `bfloat16`.
        device: the device of the model, such as `cpu`.
        vocab_size: token ids are in [0, vocab_size).
        max_seq_len: prompt plus generated tokens of one request.
        num_kv_blocks: blocks of the KV cache.
        num_state_slots: slots for the states of sequences; 0 for a model without states.
        block_size: tokens of one block.
        max_batch_size: requests computed in one step.
        num_replicas: copies of the model; blocks and batch are those of all of them.
        num_ranks: processes that compute each copy together.
        cuda_graphs: what came of capturing steps as CUDA graphs; None if there was nothing to capture.
        has_chat_template: whether it takes conversations.
        tool_call_format: how the model writes tool calls; None where it has no way of its own and is told one.
        reasoning_format: how the model writes reasoning; None if it does not.
        sampling_defaults: how requests are sampled that do not say how.
    """

    model: str
    architecture: str
    num_parameters: int
    dtype: str
    device: str
    vocab_size: int
    max_seq_len: int
    num_kv_blocks: int
    num_state_slots: int = 0
    block_size: int
    max_batch_size: int
    num_replicas: int = 1
    num_ranks: int = 1
    cuda_graphs: str | None = None
    has_chat_template: bool = True
    tool_call_format: str | None = None
    reasoning_format: str | None = None
    sampling_defaults: SamplingDefaults = SamplingDefaults()


class EngineStatus(enum.StrEnum):
    """State of an engine: ready takes requests, draining finishes those it has, stopped and dead take none.

    A request that fails leaves the engine ready. The engine is dead when it cannot go on or a step does not end. Every
    running request then fails with code `engine_dead` or `engine_stuck`, and the log says why.
    """

    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


class RequestTimes(msgspec.Struct, kw_only=True):
    """Times of a request's events, in seconds of `time.monotonic`; None: not yet.

    Attributes:
        arrived_s: it was submitted, before it was tokenized.
        admitted_s: it left the queue for the first time.
        first_token_s: its first token was delivered.
        last_token_s: its latest token was delivered.
    """

    arrived_s: float
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None


class RequestStream(Protocol):
    """The outputs of one accepted request. The caller must read it to its end or call `abort`."""

    @property
    def request_id(self) -> str:
        """The engine's own id of the request, not one of the client."""

    @property
    def prompt_token_ids(self) -> list[int]:
        """The tokens of the prompt."""

    @property
    def times(self) -> RequestTimes:
        """Times of the request's events; the caller must not change them."""

    def __aiter__(self) -> AsyncIterator[StepOutput]:
        """Yield one output for each step that computed a token; the last one is `finished`.

        A failure is a last output with `error`, not an exception.
        """

    def abort(self) -> None:
        """Stop computing, and free the memory before the next step. May be called at any time, repeatedly."""


class Engine(Protocol):
    """A running engine, used from one asyncio event loop. Its steps run elsewhere and never block the loop."""

    @property
    def info(self) -> EngineInfo:
        """A description of the loaded model."""

    @property
    def status(self) -> EngineStatus:
        """Whether the engine takes requests."""

    @property
    def stats(self) -> EngineStats:
        """Statistics after the latest step; never blocks."""

    async def submit(self, requests: Sequence[GenerateRequest]) -> list[RequestStream]:
        """Check and tokenize `requests` off the event loop, and queue all of them or none.

        Returns a stream for each sequence: the `params.n` sequences of the first request, then those of the second, ...

        Raises:
            EmptyPromptError: a prompt has no tokens.
            ChatTemplateUnusableError: there is no chat template, or it refuses a conversation.
            InvalidRequestError: a token id outside the vocabulary, a value out of this engine's range, a prompt that
                the tokenizer fails on, a gap in a text for a model that fills none, or more sequences than the queue
                can ever take.
            ContextLengthExceededError: prompt plus `max_tokens` exceeds `max_seq_len`.
            QueueFullError: the queue has no place for all the sequences. Preempted sequences do not count.
            EngineUnavailableError: the engine is draining, stopped or dead.
        """

    async def tokenize(self, prompt: TextPrompt, *, add_special_tokens: bool = True) -> list[int]:
        """Tokenize `prompt` off the event loop, and return its token ids.

        `add_special_tokens` adds the tokenizer's usual special tokens to a text; for a conversation its template adds
        them.

        Raises:
            ChatTemplateUnusableError: there is no chat template, or it refuses the conversation.
            InvalidRequestError: the tokenizer fails on it, or it has a gap, and the model fills none.
            QueueFullError: the queue is full.
            EngineUnavailableError: the engine is stopped.
        """

    async def detokenize(self, token_ids: list[int]) -> str:
        """Detokenize `token_ids` off the event loop, and return their text, special tokens included.

        Raises:
            InvalidRequestError: a token id outside the vocabulary.
            QueueFullError: the queue is full.
            EngineUnavailableError: the engine is stopped.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of a token, which may be part of a character; of a special token its name.

        Fast, and never fails for ids that the engine has generated.
        """

    async def inspect(self) -> BatchSnapshot:
        """Return a snapshot of the batch between two steps.

        Raises:
            EngineUnavailableError: the engine is stopped or dead.
        """

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, wait up to `timeout_s` seconds for the running ones, then abort the rest."""

    async def close(self) -> None:
        """Abort all requests and stop the core; may be called repeatedly."""

"""`Engine` and `RequestStream`: the two verbs-only protocols that a server is written against."""

import enum
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from infer_engine.protocol.requests import GenerateRequest, StepOutput


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


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot after a step. What counts "since the start" only grows.

    Attributes:
        num_steps: steps computed since the start.
        num_running: requests that hold KV memory.
        num_waiting: requests in the queue, preempted ones included.
        num_blocks: all KV blocks, of all groups of layers.
        num_free_blocks: those that no request holds.
        num_idle_blocks: those of the free ones that are kept for the prefix in them.
        kv_usage: share of the KV cache that requests hold, in [0, 1]; of the fullest group of layers.
        num_leaked_blocks: what the block audit found: held, but reachable from no sequence. Always 0 in a sound engine.
        num_preemptions: requests put back to the queue for want of memory, since the start.
        num_evictions: blocks whose prefix was given up for want of memory, since the start.
        num_prompt_tokens: prompt tokens of the requests that have come to their first token, since the start.
        num_cached_tokens: those of them that were found in the prefix cache.
        num_computed_tokens: tokens computed since the start: prompts, recomputations and decodes.
        num_generated_tokens: tokens generated since the start.
        num_finished: requests that came to their end, since the start.
        num_aborted: requests that were aborted, since the start; those that a stop string ended are among them.
        num_failed: requests that failed inside a step, since the start.
        num_failed_steps: steps in which something failed, since the start.
        num_step_tokens: tokens computed in the latest step.
        schedule_s: seconds that the latest step took to decide what to compute.
        execute_s: seconds of its forward passes.
        sample_s: seconds of choosing tokens and of waiting for them.
        busy_s: seconds spent in steps since the start.
    """

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_idle_blocks: int = 0
    kv_usage: float = 0.0
    num_leaked_blocks: int = 0
    num_preemptions: int = 0
    num_evictions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_failed_steps: int = 0
    num_step_tokens: int = 0
    schedule_s: float = 0.0
    execute_s: float = 0.0
    sample_s: float = 0.0
    busy_s: float = 0.0


class RequestStream(Protocol):
    """One accepted request's outputs. Whoever holds it must consume it to its end or call `abort`."""

    @property
    def request_id(self) -> str:
        """The engine's own id, never a client's."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, known as soon as the request is accepted."""

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
            InvalidRequestError: a token id outside the vocabulary, a value out of this engine's range, a prompt that
                the tokenizer fails on, or more sequences than the queue can ever take.
            ContextLengthExceededError: prompt plus `max_tokens` exceeds `max_seq_len`.
            QueueFullError: there is no room in the queue for all the sequences. Those that were computed before and
                wait again for want of memory take none.
            EngineUnavailableError: the engine is draining, stopped or dead.
        """

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, let running ones finish, abort what is left after `timeout_s` seconds."""

    async def close(self) -> None:
        """Abort everything and stop the engine's thread; idempotent."""

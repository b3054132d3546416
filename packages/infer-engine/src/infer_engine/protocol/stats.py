"""`EngineStats`: what an engine says of itself after a step. Knows numbers only."""

import msgspec

NUM_STEP_SIZES = 17
"""Entries of `steps_by_tokens`: sixteen powers of two, and what is beyond."""


class StepCounts(msgspec.Struct, kw_only=True):
    """What was counted and measured so far. Whatever is "since the start" only grows.

    Attributes:
        num_steps: steps computed since the start.
        num_leaked_blocks: what the block audit found: held, but reachable from no sequence. Always 0 in a sound engine.
        num_preemptions: requests put back to the queue for want of memory, since the start.
        num_prompt_tokens: prompt tokens of the requests that have come to their first token, since the start.
        num_cached_tokens: those of them that were found in the prefix cache.
        num_computed_tokens: tokens computed since the start: prompts, recomputations and decodes.
        num_generated_tokens: tokens generated since the start. The core finds out a step late that a stop string has
            ended a text: what it generated after that is discarded, but was generated.
        num_finished: requests that came to their end, since the start.
        num_aborted: requests that were aborted, since the start.
        num_failed: requests that failed inside a step, since the start.
        num_failed_passes: forward passes, or their scheduling, in which something failed, since the start.
        num_step_tokens: tokens computed in the latest step.
        schedule_s: seconds that the latest step took to decide what to compute.
        execute_s: seconds of its forward passes.
        sample_s: seconds of choosing tokens and of waiting for them.
        busy_s: seconds spent in steps since the start.
        steps_by_tokens: steps since the start by the tokens that they computed: up to 1, 2, 4, 8, ... 32,768, and more.
    """

    num_steps: int = 0
    num_leaked_blocks: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_failed_passes: int = 0
    num_step_tokens: int = 0
    schedule_s: float = 0.0
    execute_s: float = 0.0
    sample_s: float = 0.0
    busy_s: float = 0.0
    steps_by_tokens: list[int] = msgspec.field(default_factory=lambda: [0] * NUM_STEP_SIZES)


class EngineStats(StepCounts, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec freezes a copy's fields too
    """A snapshot after a step: the counts, and how things are.

    Attributes:
        num_running: requests that hold KV memory.
        num_waiting: requests in the queue, preempted ones included.
        num_blocks: all KV blocks, of all groups of layers.
        num_free_blocks: those that no request holds.
        num_idle_blocks: those of the free ones that are kept for the prefix in them.
        num_evictions: blocks whose prefix was given up for want of memory, since the start.
        kv_usage: share of the KV cache that requests hold, in [0, 1]; of the fullest group of layers.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_idle_blocks: int = 0
    num_evictions: int = 0
    kv_usage: float = 0.0

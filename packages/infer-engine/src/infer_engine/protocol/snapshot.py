"""`BatchSnapshot`: who runs, who waits, and whose blocks are whose, between two steps. Knows numbers only; no text."""

from typing import Literal

import msgspec

from infer_engine.protocol.stats import EngineStats

MAX_BLOCKS_SHOWN = 4096
MAX_SEQUENCES_SHOWN = 512


class SequenceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence that waits or runs.

    Attributes:
        request_id: the engine's own id.
        state: `waiting` (also: preempted), `prefill` or `decode`.
        num_prompt_tokens: tokens of the prompt.
        num_computed_tokens: tokens of prompt and answer whose keys and values are in the cache.
        num_cached_tokens: prompt tokens that were found there.
        num_completion_tokens: tokens generated so far.
        block_ids: blocks that it holds of the group of layers shown, in order.
    """

    request_id: str
    state: Literal["waiting", "prefill", "decode"]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    block_ids: list[int]


class BatchSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is doing.

    Attributes:
        stats: after the latest step.
        sequences: those that run, in order of rank, then those that wait, in the order of the queue; at most 512.
        block_size: tokens of one block.
        num_blocks: blocks of the group of layers shown: the one that keeps the longest part of a sequence.
        holders: for each of the first 4,096 of them how many sequences hold it; -1 for a block that nobody holds and
            that is kept for the prefix in it.
    """

    stats: EngineStats
    sequences: list[SequenceSnapshot]
    block_size: int
    num_blocks: int
    holders: list[int]

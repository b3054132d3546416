"""`BatchSnapshot`: the running and waiting sequences and their blocks, between two steps."""

from typing import Literal

import msgspec

from infer_engine.protocol.stats import NO_DRAFTS, DraftCounts, EngineStats

MAX_BLOCKS_SHOWN = 4096
MAX_SEQUENCES_SHOWN = 512


class SequenceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence that waits or runs.

    Attributes:
        request_id: the engine's own id.
        state: `waiting` (also after preemption), `prefill` or `decode`.
        num_prompt_tokens: tokens of the prompt.
        num_computed_tokens: tokens of the prompt and the output whose keys and values are in the cache.
        num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
        num_completion_tokens: tokens generated so far.
        drafts: its drafts of speculative decoding so far.
        block_ids: its blocks in the group of layers shown, in order.
        replica: the replica that has it, from 0.
    """

    request_id: str
    state: Literal["waiting", "prefill", "decode"]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    block_ids: list[int]
    drafts: DraftCounts = NO_DRAFTS
    replica: int = 0


class BatchSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine.

    Attributes:
        stats: statistics after the latest step.
        sequences: the running ones in order of rank, then the waiting ones in the order of the queue; at most 512.
        block_size: tokens of one block.
        num_blocks: blocks of the group of layers shown, which is the one that keeps most tokens of a sequence.
        holders: for each of the first 4,096 blocks, how many sequences hold it; -1 for a free block that is kept for
            the cached prefix in it.
    """

    stats: EngineStats
    sequences: list[SequenceSnapshot]
    block_size: int
    num_blocks: int
    holders: list[int]

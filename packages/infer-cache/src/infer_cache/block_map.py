"""`BlockMap`: who holds which blocks, for people to look at. Knows numbers; decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMap:
    """One group of layers' blocks: of the group that keeps the longest part of a sequence.

    Attributes:
        num_blocks: blocks of the group.
        holders: for each of its first blocks, how many sequences hold it; -1 for a block that nobody holds and that is
            kept for its content.
        held_by: by sequence, the blocks that it holds, in order.
    """

    num_blocks: int
    holders: list[int]
    held_by: Mapping[str, list[int]]

"""`BlockMap`: a copy of block tables and reference counts, for people to look at."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMap:
    """The blocks of one group of layers: the group that keeps the longest part of a sequence.

    Attributes:
        num_blocks: blocks of the group.
        ref_counts: number of sequences that reference each of its first blocks; -1 for an idle block, which no
            sequence references but which is kept for its content.
        block_tables: ids of each sequence's blocks, in order.
    """

    num_blocks: int
    ref_counts: list[int]
    block_tables: Mapping[str, list[int]]

"""`LeakedBlock`: a block that is lost, with its last holders; found by `audit`, described for the log."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class LeakedBlock:
    """A block that is allocated but in no block table, so that it is never released.

    Attributes:
        group: its group of layers.
        block_id: its id in that group.
        holders: the sequences that have not given back their references, one for each reference, in the order in which
            they took them; None where a reference was taken for no sequence.
        is_cached: prefix caching finds it, so that sequences may still share its content.
    """

    group: int
    block_id: int
    holders: tuple[str | None, ...]
    is_cached: bool = False


def describe_leaks(leaked: Sequence[LeakedBlock]) -> str:
    """Return the holders of `leaked` blocks and the number of each, such as "2 of `a` (1 cached), 1 of no sequence"."""
    num_blocks: Counter[str | None] = Counter()
    num_cached: Counter[str | None] = Counter()
    for block in leaked:
        for holder in dict.fromkeys(block.holders or (None,)):
            num_blocks[holder] += 1
            num_cached[holder] += block.is_cached
    return ", ".join(
        f"{count} of {'no sequence' if holder is None else f'`{holder}`'}"
        + (f" ({num_cached[holder]} cached)" if num_cached[holder] else "")
        for holder, count in num_blocks.items()
    )

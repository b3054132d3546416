"""How many sequences the same KV memory holds, contiguous and paged: counted by admitting them."""

from dataclasses import dataclass

from infer_cache import ContiguousKVCacheManager, PagedKVCacheManager

BLOCK_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Sequences that fit at a time.

    Attributes:
        num_tokens: of each sequence.
        max_seq_len: that any sequence might have had.
        contiguous: sequences that fit into slots of `max_seq_len` tokens.
        paged: sequences that fit into blocks of the same memory.
    """

    num_tokens: int
    max_seq_len: int
    contiguous: int
    paged: int

    @property
    def ratio(self) -> float:
        """How many times as many fit paged."""
        return self.paged / self.contiguous


def count_capacity(*, num_slots: int, num_tokens: int, max_seq_len: int) -> Capacity:
    """Admit sequences of `num_tokens` tokens into the engine's own tables until no other one fits.

    Both have the memory of `num_slots` sequences of `max_seq_len` tokens.
    """
    blocks_per_slot = -(-max_seq_len // BLOCK_SIZE)
    return Capacity(
        num_tokens=num_tokens,
        max_seq_len=max_seq_len,
        contiguous=_fill(ContiguousKVCacheManager(num_slots, blocks_per_slot, BLOCK_SIZE), num_tokens),
        paged=_fill(PagedKVCacheManager([num_slots * blocks_per_slot], BLOCK_SIZE), num_tokens),
    )


def _fill(tables: ContiguousKVCacheManager | PagedKVCacheManager, num_tokens: int) -> int:
    number = 0
    while tables.fits(num_tokens, hit := tables.find((), num_tokens)):
        tables.admit(str(number), num_tokens, hit)
        number += 1
    return number

"""Leaked blocks are named with the sequences that have not given them back."""

from collections.abc import Sequence

import pytest

from infer_cache import ContiguousKVCacheManager, LeakedBlock, PagedKVCacheManager, describe_leaks
from infer_cache.block_pool import BlockPool

BLOCK_SIZE = 4
HASHES = [b"first", b"second"]


class ForgetfulPool(BlockPool):
    """A pool that keeps the last block that the sequence `forgets` gives back."""

    forgets = ""

    def release(self, block_ids: Sequence[int], *, holder: str | None = None) -> None:
        super().release(block_ids[:-1] if holder == self.forgets else block_ids, holder=holder)


def forgetful_manager(forgets: str, num_groups: int = 1) -> PagedKVCacheManager:
    """A manager of groups of 8 blocks, the last of which leaks a block of the sequence `forgets`."""
    manager = PagedKVCacheManager([8] * num_groups, BLOCK_SIZE, keeps_prefixes=True)
    manager.groups[-1].block_pool = pool = ForgetfulPool(8, keeps_idle=True)
    pool.forgets = forgets
    return manager


def admit(manager: PagedKVCacheManager | ContiguousKVCacheManager, sequence_id: str, num_tokens: int) -> None:
    manager.admit(sequence_id, num_tokens, manager.find(HASHES, num_tokens))


def test_a_block_that_was_not_given_back_has_its_group_and_its_sequence() -> None:
    manager = forgetful_manager("a", num_groups=2)
    admit(manager, "a", 8)
    admit(manager, "b", 8)
    lost = manager.blocks("a", 1)[-1]
    manager.release("a")
    manager.release("b")
    assert manager.audit() == [LeakedBlock(1, lost, ("a",))]


@pytest.mark.covers("kv-cache/leaks-are-named")
@pytest.mark.parametrize("forgets", ["first", "second"])
@pytest.mark.parametrize("released_last", ["first", "second"])
def test_of_a_shared_block_the_sequence_that_kept_it_is_named_whoever_ended_last(
    forgets: str, released_last: str
) -> None:
    manager = forgetful_manager(forgets)
    admit(manager, "first", 8)
    manager.cache_blocks("first", HASHES, 8)
    admit(manager, "second", 9)
    (*_, shared) = manager.blocks("first")
    lost = shared if forgets == "first" else manager.blocks("second")[-1]
    for sequence_id in sorted(["first", "second"], key=lambda name: name == released_last):
        manager.release(sequence_id)
    assert manager.audit() == [LeakedBlock(0, lost, (forgets,), is_cached=forgets == "first")]


def test_growth_and_reuse_leave_references_to_the_sequences_that_have_them() -> None:
    manager = PagedKVCacheManager([8], BLOCK_SIZE, keeps_prefixes=True)
    admit(manager, "a", 4)
    manager.try_extend("a", 8, first_position=4)
    admit(manager, "b", 8)
    manager.cache_blocks("a", HASHES, 8)
    manager.reuse_blocks("b", HASHES, 0)
    pool = manager.groups[0].block_pool
    assert manager.blocks("a") == manager.blocks("b")
    assert [pool.holders(block_id) for block_id in manager.blocks("a")] == [("a", "b")] * 2
    manager.release("a")
    assert [pool.holders(block_id) for block_id in manager.blocks("b")] == [("b",)] * 2


def test_blocks_kept_for_their_prefix_are_no_leak_and_reclaimed_ones_are_nobodys() -> None:
    manager = forgetful_manager("a")
    admit(manager, "a", 12)
    manager.cache_blocks("a", HASHES, 8)
    manager.release("a")
    assert (manager.num_idle_blocks, len(manager.audit())) == (2, 1)
    assert manager.reclaim() == 1
    assert (manager.num_idle_blocks, manager.audit()) == (2, [])
    admit(manager, "b", 8)
    assert all(manager.groups[0].block_pool.holders(block_id) == ("b",) for block_id in manager.blocks("b"))


@pytest.mark.covers("kv-cache/leaks-are-named")
def test_a_leaked_slot_has_the_sequence_it_was_given_to(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = ContiguousKVCacheManager(3, 2, BLOCK_SIZE)
    for sequence_id in "ab":
        admit(manager, sequence_id, 8)
    (lost, _) = manager.blocks("b")
    monkeypatch.setattr("infer_cache.block_allocator.BlockAllocator.free", lambda *_: None)
    manager.release("b")
    assert manager.audit() == [LeakedBlock(0, lost, ("b",)), LeakedBlock(0, lost + 1, ("b",))]


def test_a_description_counts_the_blocks_of_each_sequence_and_those_still_cached() -> None:
    leaked = [
        LeakedBlock(0, 1, ("a",)),
        LeakedBlock(0, 2, ("a", "b"), is_cached=True),
        LeakedBlock(1, 2, (None,)),
        LeakedBlock(1, 3, ("a", "a")),
    ]
    assert describe_leaks(leaked) == "3 of `a` (1 cached), 1 of `b` (1 cached), 1 of no sequence"

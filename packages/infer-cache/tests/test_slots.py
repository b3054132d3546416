"""The contiguous cache: one slot a sequence, of consecutive blocks, all of it from the start."""

import pytest

from infer_cache import OutOfBlocksError, PrefixDigests, SlotTables, UnknownSequenceError


def slots(num_slots: int = 3) -> SlotTables:
    """Slots of 4 blocks of 2 tokens."""
    return SlotTables(num_slots, 4, 2)


def admit(tables: SlotTables, sequence_id: str, num_tokens: int = 1) -> tuple[int, ...]:
    """Admit a sequence and return the blocks that its table has from column 0 on."""
    (edit,) = tables.admit(sequence_id, num_tokens, tables.find([], num_tokens))
    assert (edit.group, edit.column) == (0, 0)
    return tuple(edit.block_ids)


def test_a_slot_is_a_fixed_run_of_consecutive_blocks() -> None:
    tables = slots()
    runs = [admit(tables, sequence_id) for sequence_id in "abc"]
    assert sorted(runs) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    assert [tables.blocks(sequence_id) for sequence_id in "abc"] == runs


def test_a_slot_has_room_for_all_of_a_sequence_from_the_start() -> None:
    tables = slots()
    admit(tables, "a")
    assert tables.capacity("a") == 8
    assert [tables.try_extend("a", num_tokens, first_position=0) for num_tokens in (1, 8)] == [[], []]
    assert tables.try_extend("a", 9, first_position=8) is None


def test_a_freed_slot_is_used_again_from_its_first_block() -> None:
    tables = slots(1)
    first = admit(tables, "a", 8)
    tables.release("a")
    assert admit(tables, "b") == first


def test_no_more_sequences_than_slots() -> None:
    tables = slots(2)
    for sequence_id in "ab":
        admit(tables, sequence_id)
    assert not tables.fits(1, tables.find([], 1))
    with pytest.raises(OutOfBlocksError):
        admit(tables, "c")
    assert not tables.holds("c")


@pytest.mark.parametrize(("num_tokens", "fits"), [(1, True), (8, True), (9, False)])
def test_a_sequence_longer_than_a_slot_does_not_fit(num_tokens: int, fits: bool) -> None:  # noqa: FBT001 - parameters
    tables = slots()
    assert tables.fits(num_tokens, tables.find([], num_tokens)) is fits
    if not fits:
        with pytest.raises(OutOfBlocksError):
            admit(tables, "a", num_tokens)
        assert tables.num_free_blocks == 12


def test_the_budget_is_slots_and_reserves_none() -> None:
    tables = slots()
    admit(tables, "a")
    budget = tables.budget(0.9)
    costs = tables.costs(8, tables.find([], 8))
    assert [budget.take(costs) for _ in range(3)] == [True, True, False]


def test_free_memory_is_counted_in_whole_slots() -> None:
    tables = slots()
    admit(tables, "a")
    assert (tables.num_blocks, tables.num_free_blocks, tables.num_free_tokens) == (12, 8, 16)
    assert tables.usage == pytest.approx(1 / 3)
    assert (tables.num_idle_blocks, tables.num_evictions, tables.block_size) == (0, 0, 2)


def test_no_slots_are_legal_and_never_used() -> None:
    tables = slots(0)
    assert (tables.num_blocks, tables.num_free_tokens, tables.audit()) == (0, 0, [])
    assert not tables.fits(1, tables.find([], 1))


def test_nothing_is_ever_found_or_adopted() -> None:
    tables, names = slots(), PrefixDigests(2).upto([1, 2, 3, 4], 4)
    admit(tables, "a", 4)
    tables.publish("a", names, 4)
    hit = tables.find(names, 4)
    assert (hit.num_tokens, hit.blocks) == (0, ((),))
    tables.admit("b", 4, hit)
    assert tables.adopt("b", names, 0) == []
    tables.unpublish("a", 0)


def test_a_sequence_has_one_slot() -> None:
    tables = slots()
    admit(tables, "a")
    with pytest.raises(ValueError, match="'a' has a slot already"):
        admit(tables, "a")
    assert tables.num_free_blocks == 8


def test_an_unknown_sequence_is_an_error_that_names_it() -> None:
    tables = slots()
    for use in (tables.release, tables.blocks, tables.capacity):
        with pytest.raises(UnknownSequenceError, match="`sequence_id` 'a' holds no blocks"):
            use("a")
    with pytest.raises(UnknownSequenceError):
        tables.try_extend("a", 1, first_position=0)


def test_a_sequence_is_released_once() -> None:
    tables = slots()
    admit(tables, "a")
    tables.release("a")
    assert not tables.holds("a")
    with pytest.raises(UnknownSequenceError):
        tables.release("a")
    assert tables.num_free_blocks == 12


@pytest.mark.parametrize(
    ("num_slots", "blocks_per_slot", "block_size", "name"),
    [(-1, 4, 2, "num_slots"), (3, 0, 2, "blocks_per_slot"), (3, 4, 0, "block_size")],
)
def test_impossible_sizes_are_refused(num_slots: int, blocks_per_slot: int, block_size: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is"):
        SlotTables(num_slots, blocks_per_slot, block_size)

"""`StateSlots`: who has which slot, and which states are kept."""

import itertools

import pytest

from infer_cache import StateMove, StateSlots


def slots(num_slots: int = 6, *, slots_per_sequence: int = 2, keeps_states: bool = True) -> StateSlots:
    return StateSlots(num_slots, slots_per_sequence=slots_per_sequence, keeps_states=keeps_states)


def test_a_step_reads_what_the_step_before_has_written_and_writes_elsewhere() -> None:
    states = slots()
    states.open("a")
    first, second, third = (states.move("a", start, start + 5) for start in (0, 5, 10))
    assert first.read == -1
    assert (second.read, third.read) == (first.write, second.write)
    assert second.write != second.read
    assert third.write != third.read


def test_a_step_that_was_not_computed_is_made_again_with_what_it_read() -> None:
    states = slots()
    states.open("a")
    before = states.move("a", 0, 5)
    assert states.move("a", 5, 9).read == before.write
    assert states.move("a", 5, 7).read == before.write


def test_a_step_without_the_state_before_it_is_refused() -> None:
    states = slots()
    states.open("a")
    states.move("a", 0, 5)
    with pytest.raises(RuntimeError, match="no state of its first 7 tokens"):
        states.move("a", 7, 8)


def test_each_sequence_has_its_share_whatever_is_kept() -> None:
    states = slots(4)
    for number in range(9):
        states.open(f"s{number}")
        states.move(f"s{number}", 0, 4)
        states.keep(f"s{number}", 4, bytes([number]))
        states.close(f"s{number}")
    assert states.pool.num_idle == 4
    states.open("a")
    states.open("b")
    assert not states.can_open
    with pytest.raises(ValueError, match="All 4 slots are given to 2 sequences"):
        states.open("c")
    for start in range(0, 40, 4):
        moves = [states.move(name, start, start + 4) for name in "ab"]
        assert len({slot for move in moves for slot in move if slot >= 0}) == (2 if start == 0 else 4)


def test_a_kept_state_is_found_from_the_next_step_on() -> None:
    states = slots()
    states.open("a")
    states.keep("a", 4, b"four")  # asked for before its step is scheduled
    states.settle()
    assert states.find(b"four") is None
    move = states.move("a", 0, 4)
    assert states.find(b"four") is None  # another sequence of the same step would read what is not written
    states.settle()
    assert states.find(b"four") == move.write


def test_a_kept_state_is_not_written_again_while_it_is_read() -> None:
    states = slots(6)
    states.open("a")
    states.keep("a", 4, b"four")
    kept = states.move("a", 0, 4).write
    states.settle()
    states.open("b", end=4, slot=kept)
    states.close("a")
    written = {states.move("b", 4, 9).write, states.move("b", 9, 12).write}
    assert kept not in written
    assert states.find(b"four") == kept


def test_of_states_at_no_position_of_its_own_a_sequence_keeps_the_latest() -> None:
    states = slots(8)
    states.open("a")
    states.keep_at("a", [8])
    for end in (4, 8, 12, 16):
        states.keep("a", end, bytes([end]))
        states.move("a", end - 4, end)
    states.close("a")
    assert [states.find(bytes([end])) is not None for end in (4, 8, 12, 16)] == [False, True, False, True]


def test_a_state_that_another_sequence_reads_stays_kept() -> None:
    states = slots(8)
    states.open("a")
    states.keep("a", 4, b"four")
    kept = states.move("a", 0, 4).write
    states.settle()
    states.open("b", end=4, slot=kept)
    states.keep("a", 8, b"eight")
    states.move("a", 4, 8)
    states.settle()
    assert states.find(b"four") == kept


def test_what_failed_is_forgotten() -> None:
    states = slots()
    states.open("a")
    for end in (4, 8):
        states.keep_at("a", [end])
        states.keep("a", end, bytes([end]))
        states.move("a", end - 4, end)
        states.settle()
    states.keep("a", 12, bytes([12]))
    states.move("a", 8, 12)
    states.forget_after("a", 4)
    states.close("a")
    assert [states.find(bytes([end])) is not None for end in (4, 8, 12)] == [True, False, False]


def test_kept_states_are_evicted_least_recently_used_first() -> None:
    states = slots(4)
    for name in (b"a", b"b", b"c", b"d"):
        states.open("s")
        states.keep("s", 4, name)
        states.move("s", 0, 4)
        states.close("s")
    found = states.find(b"a")
    states.open("reader", end=4, slot=found)
    states.close("reader")
    states.open("other")
    states.move("other", 0, 1)
    assert [states.find(name) is not None for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


def test_nothing_stays_kept_where_prefixes_are_not_shared() -> None:
    states = slots(keeps_states=False)
    states.open("a")
    states.keep("a", 4, b"four")
    states.move("a", 0, 4)
    states.close("a")
    assert states.find(b"four") is None
    assert states.pool.num_free == 6


def test_with_a_step_in_flight_its_slots_are_not_written() -> None:
    states = slots(slots_per_sequence=3)
    states.open("a")
    moves = [states.move("a", start, start + 1) for start in range(6)]
    for before, after in itertools.pairwise(moves):
        assert after.write not in before


@pytest.mark.parametrize("num_right", range(5))
def test_the_next_step_reads_the_state_behind_the_last_draft_that_was_right(num_right: int) -> None:
    states = slots(8)
    states.open("a")
    states.move("a", 0, 5)
    step = states.move("a", 5, 6)
    drafts = states.move_drafts("a", 4)
    assert [move.read for move in drafts] == [step.write, *(move.write for move in drafts[:-1])]
    assert len({*step, *(move.write for move in drafts)}) == 6
    computed = 6 + num_right
    states.release_drafts("a", computed)
    assert states.counts.num_free_state_slots == 6
    assert states.move("a", computed, computed + 1).read == [step, *drafts][num_right].write


@pytest.mark.parametrize(("num_slots", "num_drafts"), [(4, 0), (5, 1), (7, 3), (9, 4)])
def test_drafts_take_no_slot_that_a_sequence_may_need(num_slots: int, num_drafts: int) -> None:
    states = slots(num_slots)
    for name in "ab":
        states.open(name)
        states.move(name, 0, 5)
        states.move(name, 5, 6)
    assert len(states.move_drafts("a", 4)) == num_drafts
    states.move("b", 6, 7)
    assert len(states.move_drafts("b", 9)) == max(0, num_slots - 4 - num_drafts)
    assert states.can_open is (num_slots >= 6)
    states.release_drafts("a", 6)
    states.release_drafts("b", 7)
    if num_slots >= 6:
        states.open("c")
        states.move("c", 0, 1)


def test_a_block_that_a_right_draft_fills_leaves_its_state_to_others() -> None:
    states = slots(8)
    states.open("a")
    states.move("a", 0, 6)
    drafts = states.move_drafts("a", 4)
    states.keep("a", 8, b"eight")
    states.release_drafts("a", 10)
    assert states.find(b"eight") == drafts[1].write
    states.move("a", 10, 11)
    assert states.find(b"eight") == drafts[1].write


def test_the_drafts_of_a_sequence_that_is_gone_are_nobodys() -> None:
    states = slots(8)
    states.open("a")
    states.move("a", 0, 5)
    states.move_drafts("a", 3)
    states.close("a")
    states.release_drafts("a", 5)
    assert states.counts.num_free_state_slots == 8
    assert states.audit(group=1) == []


@pytest.mark.parametrize(("num_slots", "per_sequence"), [(4, 1), (1, 2)])
def test_sizes_that_no_sequence_can_run_with_are_refused(num_slots: int, per_sequence: int) -> None:
    with pytest.raises(ValueError, match=r"`(slots_per_sequence|num_slots)` is 1"):
        slots(num_slots, slots_per_sequence=per_sequence)


def test_a_move_is_two_slots() -> None:
    assert StateMove(-1, 3) == (-1, 3)

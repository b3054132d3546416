"""`StateSlots`: who has which slot, and which states are kept."""

import pytest

from infer_cache import StateMove, StateSlots


def slots(num_slots: int = 6, *, is_repeatable: bool = False, keeps_states: bool = True) -> StateSlots:
    states = StateSlots(num_slots, keeps_states=keeps_states)
    states.is_repeatable = is_repeatable
    return states


def move(states: StateSlots, sequence_id: str, start: int, end: int) -> StateMove:
    return states.move([(sequence_id, start, end)])[sequence_id]


def test_a_step_overwrites_the_state_that_the_step_before_has_written() -> None:
    states = slots()
    states.open("a")
    first, second, third = (move(states, "a", start, start + 5) for start in (0, 5, 10))
    assert first.read == -1
    assert second == third == (first.write, first.write)
    assert states.counts.num_free_state_slots == 5


def test_a_repeatable_step_reads_what_the_step_before_has_written_and_writes_elsewhere() -> None:
    states = slots(is_repeatable=True)
    states.open("a")
    first, second, third = (move(states, "a", start, start + 5) for start in (0, 5, 10))
    assert first.read == -1
    assert (second.read, third.read) == (first.write, second.write)
    assert second.write != second.read
    assert third.write != third.read
    assert states.counts.num_free_state_slots == 4


def test_a_step_that_was_not_computed_is_made_again_with_what_it_read() -> None:
    states = slots(is_repeatable=True)
    states.open("a")
    before = move(states, "a", 0, 5)
    assert move(states, "a", 5, 9).read == before.write
    assert move(states, "a", 5, 7).read == before.write


@pytest.mark.parametrize("start", [7, 4])
def test_a_step_without_the_state_before_it_is_refused(start: int) -> None:
    states = slots()
    states.open("a")
    move(states, "a", 0, 5)
    with pytest.raises(RuntimeError, match=f"no state of its first {start} tokens"):
        move(states, "a", start, 8)


@pytest.mark.parametrize("is_repeatable", [False, True])
def test_each_sequence_has_its_share_whatever_is_kept(*, is_repeatable: bool) -> None:
    states = slots(4 if is_repeatable else 2, is_repeatable=is_repeatable)
    num_slots = states.counts.num_state_slots
    for number in range(9):
        states.open(f"s{number}")
        states.keep(f"s{number}", 4, bytes([number]))
        move(states, f"s{number}", 0, 4)
        states.close(f"s{number}")
    assert states.pool.num_idle == num_slots
    states.open("a")
    states.open("b")
    assert not states.can_open()
    with pytest.raises(ValueError, match=f"All {num_slots} slots are given to 2 sequences"):
        states.open("c")
    for start in range(0, 40, 4):
        moves = states.move([(name, start, start + 4) for name in "ab"]).values()
        expected = 4 if is_repeatable and start else 2
        assert len({slot for each in moves for slot in each if slot >= 0}) == expected


def test_a_state_is_kept_only_where_all_sequences_can_run_beside_it() -> None:
    states = slots(3)
    for name in "abc":
        states.open(name)
    states.move([(name, 0, 4) for name in "abc"])
    states.keep("a", 4, b"four")
    states.settle()
    assert states.find(b"four") is not None
    overwritten = move(states, "a", 4, 8)
    assert overwritten.read == overwritten.write
    assert states.find(b"four") is None
    states.close("c")
    states.keep("a", 8, b"eight")
    kept = move(states, "a", 8, 12)
    assert kept.write != kept.read == states.find(b"eight")


def test_sequences_that_begin_with_one_state_each_write_another_slot() -> None:
    states = slots(3)
    states.open("a")
    states.keep("a", 4, b"four")
    kept = move(states, "a", 0, 4).write
    states.settle()
    assert states.can_open(kept)
    states.open("b", end=4, slot=kept)
    assert not states.can_open()  # two sequences read one slot and write two
    moves = states.move([("a", 4, 5), ("b", 4, 6)])
    assert {each.read for each in moves.values()} == {kept}
    assert len({kept, *(each.write for each in moves.values())}) == 3
    states.move([("a", 5, 6), ("b", 6, 7)])
    assert states.can_open()


def test_a_sequence_jumps_only_where_all_others_can_run() -> None:
    states = slots(3)
    for name in "ab":
        states.open(name)
    states.keep("a", 8, b"eight")
    states.move([("a", 0, 8), ("b", 0, 4)])
    states.settle()
    kept = states.find(b"eight")
    assert kept is not None
    assert states.can_jump("b", kept)
    states.open("c")
    assert not states.can_jump("b", kept)


def test_a_kept_state_is_found_from_the_next_step_on() -> None:
    states = slots()
    states.open("a")
    states.keep("a", 4, b"four")  # asked for before its step is scheduled
    states.settle()
    assert states.find(b"four") is None
    written = move(states, "a", 0, 4).write
    assert states.find(b"four") is None  # another sequence of the same step would read what is not written
    states.settle()
    assert states.find(b"four") == written


def test_a_kept_state_is_not_written_again_while_it_is_read() -> None:
    states = slots(6)
    states.open("a")
    states.keep("a", 4, b"four")
    kept = move(states, "a", 0, 4).write
    states.settle()
    states.open("b", end=4, slot=kept)
    states.close("a")
    written = {move(states, "b", 4, 9).write, move(states, "b", 9, 12).write}
    assert kept not in written
    assert states.find(b"four") == kept


def test_of_states_at_no_position_of_its_own_a_sequence_keeps_the_latest() -> None:
    states = slots(8)
    states.open("a")
    states.keep_at("a", [8])
    for end in (4, 8, 12, 16):
        states.keep("a", end, bytes([end]))
        move(states, "a", end - 4, end)
    states.close("a")
    assert [states.find(bytes([end])) is not None for end in (4, 8, 12, 16)] == [False, True, False, True]


def test_a_state_that_another_sequence_reads_stays_kept() -> None:
    states = slots(8)
    states.open("a")
    states.keep("a", 4, b"four")
    kept = move(states, "a", 0, 4).write
    states.settle()
    states.open("b", end=4, slot=kept)
    states.keep("a", 8, b"eight")
    move(states, "a", 4, 8)
    states.settle()
    assert states.find(b"four") == kept


def test_what_failed_is_forgotten() -> None:
    states = slots()
    states.open("a")
    for end in (4, 8):
        states.keep_at("a", [end])
        states.keep("a", end, bytes([end]))
        move(states, "a", end - 4, end)
        states.settle()
    states.keep("a", 12, bytes([12]))
    move(states, "a", 8, 12)
    states.forget_after("a", 4)
    states.close("a")
    assert [states.find(bytes([end])) is not None for end in (4, 8, 12)] == [True, False, False]


def test_kept_states_are_evicted_least_recently_used_first() -> None:
    states = slots(4)
    for name in (b"a", b"b", b"c", b"d"):
        states.open("s")
        states.keep("s", 4, name)
        move(states, "s", 0, 4)
        states.close("s")
    found = states.find(b"a")
    states.open("reader", end=4, slot=found)
    states.close("reader")
    states.open("other")
    move(states, "other", 0, 1)
    assert [states.find(name) is not None for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


def test_nothing_stays_kept_where_prefixes_are_not_shared() -> None:
    states = slots(keeps_states=False)
    states.open("a")
    states.keep("a", 4, b"four")
    move(states, "a", 0, 4)
    states.close("a")
    assert states.find(b"four") is None
    assert states.pool.num_free == 6


@pytest.mark.parametrize("is_repeatable", [False, True])
@pytest.mark.parametrize("num_right", range(5))
def test_the_next_step_reads_the_state_behind_the_last_draft_that_was_right(
    num_right: int, *, is_repeatable: bool
) -> None:
    states = slots(8, is_repeatable=is_repeatable)
    states.open("a")
    move(states, "a", 0, 5)
    before = move(states, "a", 5, 6)
    step, *drafts = states.move_drafts("a", 4)
    assert step.read == before.read
    assert [each.read for each in drafts] == [step.write, *(each.write for each in drafts[:-1])]
    assert len({*step, *(each.write for each in drafts)}) == 6
    computed = 6 + num_right
    states.release_drafts("a", computed)
    assert states.counts.num_free_state_slots == 7
    assert move(states, "a", computed, computed + 1).read == [step, *drafts][num_right].write


@pytest.mark.parametrize(("num_slots", "num_drafts"), [(2, 0), (3, 0), (4, 1), (6, 3), (8, 4)])
def test_drafts_take_no_slot_that_a_sequence_may_need(num_slots: int, num_drafts: int) -> None:
    states = slots(num_slots)
    for name in "ab":
        states.open(name)
    states.move([(name, 0, 5) for name in "ab"])
    overwriting = states.move([(name, 5, 6) for name in "ab"])
    step, *drafts = states.move_drafts("a", 4)
    assert len(drafts) == num_drafts
    assert (step == overwriting["a"]) is (num_drafts == 0)
    left = num_slots - 2 - (num_drafts + 1 if num_drafts else 0)
    assert len(states.move_drafts("b", 9)) == 1 + max(0, left - 1)
    assert states.can_open() is (num_slots >= 3)
    states.release_drafts("a", 6)
    states.release_drafts("b", 6)
    if num_slots >= 3:
        states.open("c")
        move(states, "c", 0, 1)


def test_a_block_that_a_right_draft_fills_leaves_its_state_to_others() -> None:
    states = slots(8)
    states.open("a")
    move(states, "a", 0, 6)
    drafts = states.move_drafts("a", 4)
    states.keep("a", 8, b"eight")
    states.release_drafts("a", 10)
    assert states.find(b"eight") == drafts[2].write
    move(states, "a", 10, 11)
    assert states.find(b"eight") == drafts[2].write


def test_the_drafts_of_a_sequence_that_is_gone_are_nobodys() -> None:
    states = slots(8)
    states.open("a")
    move(states, "a", 0, 5)
    states.move_drafts("a", 3)
    states.close("a")
    states.release_drafts("a", 5)
    assert states.counts.num_free_state_slots == 8
    assert states.audit(group=1) == []


def test_fewer_slots_than_a_sequence_needs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`num_slots` is 1; one sequence needs 2"):
        slots(1)


def test_a_move_is_two_slots() -> None:
    assert StateMove(-1, 3) == (-1, 3)

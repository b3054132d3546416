"""The memory of recent responses: what it finds, and its bounds."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from infer_server.openai.responses.item_store import ItemStore

HI: dict[str, Any] = {"role": "user", "content": "hi"}
YES: dict[str, Any] = {"type": "message", "id": "msg_1", "content": "Yes."}


def test_items_are_found_by_their_ids_and_conversations_by_their_responses() -> None:
    store = ItemStore()
    store.keep("resp_1", [HI], [YES], owner=None)
    assert store.item("msg_1", owner=None) == YES
    assert store.conversation("resp_1", owner=None) == [HI, YES]
    assert store.item("resp_1", owner=None) is None
    assert store.conversation("msg_1", owner=None) is None


def test_what_is_anothers_is_not_found() -> None:
    store = ItemStore()
    store.keep("resp_1", [HI], [YES], owner="a")
    assert store.item("msg_1", owner="b") is None
    assert store.conversation("resp_1", owner=None) is None


def test_items_of_inputs_are_kept_once() -> None:
    store = ItemStore()
    long = {"role": "user", "content": "x" * 1000}
    for number in range(10):
        store.keep(f"resp_{number}", [long], [], owner=None)
    assert store.num_bytes < 2000


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    store = ItemStore(max_entries=4)
    for number in (1, 2):
        store.keep(f"resp_{number}", [], [YES | {"id": f"msg_{number}"}], owner=None)
    assert store.conversation("resp_1", owner=None) is not None
    store.keep("resp_3", [], [YES | {"id": "msg_3"}], owner=None)
    assert store.item("msg_2", owner=None) is None
    assert store.conversation("resp_2", owner=None) is None
    assert store.conversation("resp_1", owner=None) is not None


@given(st.lists(st.tuples(st.integers(0, 5), st.text(max_size=60)), max_size=30))
def test_there_are_never_more_bytes_or_entries_than_allowed(responses: list[tuple[int, str]]) -> None:
    store = ItemStore(max_bytes=300, max_entries=7)
    for number, text in responses:
        store.keep(f"resp_{number}", [HI | {"content": text}], [YES | {"id": f"msg_{number}"}], owner=None)
        assert store.num_bytes <= 300
        assert len(store) <= 7


def test_what_is_larger_than_all_that_may_be_kept_is_not_kept() -> None:
    store = ItemStore(max_bytes=10)
    store.keep("resp_1", [HI], [YES], owner=None)
    assert (len(store), store.num_bytes) == (0, 0)

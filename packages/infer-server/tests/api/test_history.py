"""Earlier calls and results, in the shapes in which clients send them back."""

import time

import pytest

from infer_engine.protocol import ChatMessage, ToolCall
from infer_server.api.history import read_arguments, with_call_ids


def answer(*calls: tuple[str, str]) -> ChatMessage:
    made = tuple(ToolCall(id=call_id, name=name, arguments={}) for call_id, name in calls)
    return ChatMessage(role="assistant", content="", tool_calls=made)


def result(call_id: str | None = None, name: str | None = None) -> ChatMessage:
    return ChatMessage(role="tool", content="r", tool_call_id=call_id, name=name)


def pairs(*messages: ChatMessage) -> list[tuple[str | None, str | None]]:
    """Return the id and the name that each result has in the end."""
    read = with_call_ids(messages)
    return [(message.tool_call_id, message.name) for message in read if message.role == "tool"]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" \n", {}),
        (None, {}),
        ("null", {}),
        ("{}", {}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"a": "once', '{"a": "once'),
        ("[1]", "[1]"),
        ("7", "7"),
        ('"text"', '"text"'),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_are_an_object_or_the_text_as_it_came(given: object, arguments: object) -> None:
    assert read_arguments(given) == arguments  # type: ignore[arg-type]  # of several types


def test_results_without_ids_answer_the_calls_in_order() -> None:
    assert pairs(answer(("a", "f"), ("b", "g")), result(), result()) == [("a", "f"), ("b", "g")]


def test_results_of_the_old_api_answer_the_call_of_their_name() -> None:
    assert pairs(answer(("", "f"), ("", "g")), result(name="g"), result(name="f")) == [
        ("call_0_1", "g"),
        ("call_0_0", "f"),
    ]


def test_calls_of_one_id_have_results_in_order() -> None:
    assert pairs(answer(("x", "f"), ("x", "g")), result("x"), result("x")) == [("x", "f"), ("x", "g")]


def test_an_id_that_comes_again_means_the_call_before_its_result() -> None:
    assert pairs(answer(("x", "f")), result("x"), answer(("x", "g")), result("x")) == [("x", "f"), ("x", "g")]


def test_a_result_that_no_call_asked_for_stays_as_it_is() -> None:
    assert pairs(answer(("a", "f")), result("z"), result("z", "h"), result(name="h")) == [
        ("z", None),
        ("z", "h"),
        ("call_3", "h"),
    ]


def test_a_late_result_has_the_name_of_its_call() -> None:
    assert pairs(answer(("a", "f")), ChatMessage(role="user", content="wait"), answer(("b", "g")), result("a")) == [
        ("a", "f")
    ]


def test_ids_are_the_same_in_each_request_and_differ_among_calls() -> None:
    history = [answer(("", "f"), ("", "f")), result(), result(), answer(("", "f")), result()]
    assert pairs(*history) == pairs(*history)
    assert len(set(pairs(*history))) == 3


def test_many_calls_and_results_are_paired_quickly() -> None:
    started = time.perf_counter()
    calls = [("", "f")] * 200_000
    assert len(pairs(answer(*calls), *[result(name="f")] * 2000)) == 2000
    assert time.perf_counter() - started < 10

"""Every body is accepted or raises an `ApiError`; decoding and checking never fail in another way."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_server.errors import ApiError
from infer_server.http.bodies import decode_body
from infer_server.openai.chat.messages import Message
from infer_server.openai.chat.request import ChatBody, chat_request
from infer_server.openai.completions.request import CompletionBody, completion_requests
from infer_server.openai.content_parts import ContentPart
from infer_server.openai.tokenizer_routes import DetokenizeBody, TokenizeBody

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def objects(struct: type[msgspec.Struct], **likely: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return JSON objects with some fields of `struct`, with `likely` values or any, and some unknown fields."""
    fields = {field.name: likely.get(field.name, JSON) | JSON for field in msgspec.structs.fields(struct)}
    known = st.fixed_dictionaries({}, optional=fields)
    return st.builds(
        lambda some, unknown: unknown | some, known, st.dictionaries(st.text(max_size=4), JSON, max_size=1)
    )


PARTS = objects(ContentPart, type=st.just("text"), text=st.text())
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
MESSAGES = st.lists(objects(Message, role=ROLES, content=st.text() | st.lists(PARTS, max_size=2)), max_size=3)
SOUND_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": ROLES, "content": st.text() | st.lists(PARTS, max_size=1)}), min_size=1, max_size=3
)


@pytest.mark.covers("http/strict-types")
@given(objects(CompletionBody, prompt=st.text(min_size=1)), st.text(min_size=1))
def test_any_completion_is_taken_or_refused(fields: dict[str, Any], prompt: str) -> None:
    with suppress(ApiError):
        body = decode_body(json.dumps({"prompt": prompt, **fields}).encode(), CompletionBody)
        assert completion_requests(body, served_model="m")


@given(objects(ChatBody), MESSAGES | SOUND_MESSAGES)
def test_any_chat_is_taken_or_refused(fields: dict[str, Any], messages: list[Any]) -> None:
    with suppress(ApiError):
        body = decode_body(json.dumps({**fields, "messages": messages}).encode(), ChatBody)
        assert chat_request(body, served_model="m").prompt


@given(st.sampled_from([field.name for field in msgspec.structs.fields(ChatBody)]), JSON)
def test_any_value_of_one_field_of_a_chat_is_taken_or_refused(name: str, value: object) -> None:
    sound = {"messages": [{"role": "user", "content": "x"}], name: value}
    with suppress(ApiError):
        assert chat_request(decode_body(json.dumps(sound).encode(), ChatBody), served_model="m").params.n


@pytest.mark.covers("http/error-object")
@pytest.mark.parametrize("struct", [CompletionBody, ChatBody, TokenizeBody, DetokenizeBody])
@given(body=st.binary())
def test_any_bytes_are_taken_or_refused(struct: type[msgspec.Struct], body: bytes) -> None:
    with suppress(ApiError):
        assert isinstance(decode_body(body, struct), struct)


DEEP: dict[str, Callable[[str], bytes]] = {
    "tools": lambda deep: f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": {deep}}}'.encode(),
    "tool_calls": lambda deep: f'{{"messages": [{{"role": "user", "content": "x", "tool_calls": {deep}}}]}}'.encode(),
    "unknown": lambda deep: f'{{"messages": [{{"role": "user", "content": "x", "bogus": {deep}}}]}}'.encode(),
}
DEPTHS = [200, *range(900, 1000), 2000, 100_000]


@pytest.mark.parametrize("place", ["tools", "tool_calls"])
def test_deep_nesting_is_refused_wherever_it_is_also_just_short_of_what_cannot_be_decoded(place: str) -> None:
    for depth in DEPTHS:
        body = DEEP[place]("[" * depth + "]" * depth)
        with pytest.raises(ApiError) as refused:
            chat_request(decode_body(body, ChatBody), served_model="m")
        assert (refused.value.status, len(refused.value.reply.error.message) <= 500) == (400, True)


def test_deep_nesting_in_a_field_that_is_passed_over_is_passed_over_or_refused() -> None:
    for depth in DEPTHS:
        body = DEEP["unknown"]("[" * depth + "]" * depth)
        with suppress(ApiError):
            assert chat_request(decode_body(body, ChatBody), served_model="m").prompt

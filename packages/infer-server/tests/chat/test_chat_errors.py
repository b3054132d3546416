"""What `/v1/chat/completions` refuses: OpenAI's statuses, and the name of the field."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import EngineUnavailableError, QueueFullError, RequestFailure
from infer_proofs.server import FakeEngine, Script
from infer_proofs.server.client import client_of

HI = [{"role": "user", "content": "hi"}]


async def refusal(client: httpx.AsyncClient, body: object) -> tuple[int, str, str | None]:
    """Return (status, code, param) of the reply, after checking that it is an error object."""
    reply = await client.post("/v1/chat/completions", json=body)
    (error,) = reply.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert 10 < len(error["message"]) <= 500
    return reply.status_code, error["code"], error["param"]


MESSAGES: list[tuple[Any, str, str]] = [
    ([], "empty_prompt", "messages"),
    ("hi", "invalid_type", "messages"),
    ([{"content": "x"}], "missing_field", "messages[0].role"),
    ([{"role": "user"}], "missing_field", "messages[0].content"),
    ([{"role": "user", "content": 7}], "invalid_type", "messages[0].content"),
    ([{"role": "robot", "content": "x"}], "invalid_value", "messages[0].role"),
    ([{"role": "user", "content": "x", "images": ["AA=="]}], "unsupported_value", "messages[0].images"),
    ([{"role": "user", "content": [{"type": "text"}]}], "missing_field", "messages[0].content[0].text"),
]


@pytest.mark.parametrize(("messages", "code", "param"), MESSAGES)
async def test_messages_that_are_no_conversation_of_texts_are_400(
    client: httpx.AsyncClient, messages: object, code: str, param: str
) -> None:
    assert await refusal(client, {"messages": messages}) == (400, code, param)


@pytest.mark.covers("http/nothing-is-fetched")
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "image", "image": "http://169.254.169.254/"},
        {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}},
        {"type": "input_image", "image_url": "http://169.254.169.254/", "detail": "auto"},
        {
            "type": "input_file",
            "filename": "x",
            "file_data": "x",
            "file_id": "x",
            "file_url": "http://169.254.169.254/",
        },
        {"type": "audio", "audio": "x"},
        {"type": "video", "video": "x"},
        {"type": "refusal", "refusal": "x"},
        {"type": "bogus", "text": "x"},
    ],
)
async def test_parts_that_are_not_text_are_400_and_nothing_is_fetched(
    own_client: httpx.AsyncClient, engine: FakeEngine, part: object
) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]}
    assert await refusal(own_client, body) == (400, "unsupported_value", "messages[0].content[1]")
    assert engine.requests == []


async def test_a_text_part_that_carries_something_else_is_400_rather_than_half_read(client: httpx.AsyncClient) -> None:
    part = {"type": "text", "text": "x", "image_url": {"url": "http://169.254.169.254/"}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    assert await refusal(client, body) == (400, "unsupported_value", "messages[0].content[0].image_url")


@pytest.mark.covers("http/limit-messages")
async def test_thousands_of_messages_are_taken(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": ""}] * 5000 + HI
    assert (await client.post("/v1/chat/completions", json={"messages": messages})).status_code == 200


OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "integer_below_min_value"),
    ({"max_completion_tokens": 0}, "integer_below_min_value"),
    ({"max_tokens": 0, "max_completion_tokens": 6}, "integer_below_min_value"),
    ({"max_tokens": -2}, "integer_below_min_value"),
    ({"n_predict": -2}, "integer_below_min_value"),
    ({"logprobs": 5}, "invalid_value"),
    ({"temperature": 101}, "decimal_above_max_value"),
    ({"top_p": -0.1}, "decimal_below_min_value"),
    ({"n": 129}, "integer_above_max_value"),
    ({"top_logprobs": 21, "logprobs": True}, "integer_above_max_value"),
    ({"top_logprobs": 1}, "conflicting_fields"),
    ({"seed": 2**63}, "integer_above_max_value"),
    ({"seed": 2**64}, "integer_above_max_value"),
    ({"stop": ["x"] * 65}, "array_above_max_length"),
    ({"logit_bias": {"1": -101}}, "decimal_below_min_value"),
]


@pytest.mark.covers("http/error-out-of-range-others", "http/limit-logprobs")
@pytest.mark.parametrize(("fields", "code"), OUT_OF_RANGE, ids=str)
async def test_value_out_of_range_is_400_and_names_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any], code: str
) -> None:
    assert await refusal(client, {"messages": HI, **fields}) == (400, code, next(iter(fields)))


UNSUPPORTED: list[tuple[str, Any]] = [
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "x"}),
    ("moderation", {"model": "x"}),
    ("web_search_options", {"search_context_size": "low"}),
    ("safe_prompt", True),
]


@pytest.mark.covers("http/unsupported-fields")
@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
async def test_what_is_not_done_is_refused_by_name(client: httpx.AsyncClient, name: str, value: object) -> None:
    assert await refusal(client, {"messages": HI, name: value}) == (400, "unsupported_value", name)


@pytest.mark.covers("http/unknown-fields", "http/error-out-of-range-others")
async def test_unknown_field_is_400_by_name(client: httpx.AsyncClient) -> None:
    assert await refusal(client, {"messages": HI, "prompt": "x"}) == (400, "unknown_field", "prompt")


@pytest.mark.covers("http/error-wrong-type")
async def test_wrong_type_is_looked_for_before_unknown_fields(client: httpx.AsyncClient) -> None:
    assert await refusal(client, {"bogus": 1, "messages": HI, "n": "2"}) == (400, "invalid_type", "n")
    body = {"stream_options": {"x": 1}, "bogus": 1, "messages": HI}
    assert await refusal(client, body) == (400, "unknown_field", "stream_options.x")


@pytest.mark.covers("http/error-model-not-found")
async def test_model_that_is_not_served_is_404(client: httpx.AsyncClient) -> None:
    assert await refusal(client, {"messages": HI, "model": "other"}) == (404, "model_not_found", "model")


@pytest.mark.covers("http/error-context-length")
async def test_context_too_long_is_400_and_blames_the_messages(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 600}]}
    assert await refusal(client, body) == (400, "context_length_exceeded", "messages")


@pytest.mark.covers("http/error-no-template")
async def test_model_without_a_chat_template_is_400() -> None:
    async with client_of(FakeEngine(Script(has_chat_template=False))) as client:
        assert await refusal(client, {"messages": HI}) == (400, "chat_template_unusable", "messages")


@pytest.mark.covers("http/error-queue-full")
@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (QueueFullError("The queue is full.", retry_after_s=3), "queue_full"),
        (EngineUnavailableError("It is draining.", retry_after_s=3), "engine_unavailable"),
    ],
)
async def test_full_queue_and_draining_are_503(
    own_client: httpx.AsyncClient, engine: FakeEngine, refused: Exception, code: str
) -> None:
    engine.refusal = refused
    assert await refusal(own_client, {"messages": HI}) == (503, code, None)


async def test_failed_request_is_500_with_the_engines_words() -> None:
    engine = FakeEngine(Script(failure=RequestFailure(message="The step failed.", code="step_failed")))
    async with client_of(engine) as client:
        assert await refusal(client, {"messages": HI}) == (500, "step_failed", None)

"""What clients send beside text, as their own libraries send it: refused, with the part's place and type."""

import base64
from typing import Any

import httpx
import openai
import pytest

import anthropic
from infer_proofs.server import FakeEngine, running_server
from infer_proofs.server.client import client_of

URL = "https://example.com/cat.png"
DATA = base64.b64encode(b"\x89PNG").decode()
MODEL = "fake-model"

CHAT_PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
    {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": DATA}},
    {"type": "image", "image": URL},
    {"type": "input_image", "image_url": URL, "detail": "auto"},
    {"type": "video_url", "video_url": {"url": URL}},
]
RESPONSE_PARTS: list[dict[str, Any]] = [
    {"type": "input_image", "image_url": URL, "detail": "auto"},
    {"type": "input_file", "filename": "a.pdf", "file_data": DATA},
    {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    {"type": "image_url", "image_url": {"url": URL}},
]
BLOCKS: list[dict[str, Any]] = [
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    {"type": "image", "source": {"type": "url", "url": URL}},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": DATA}},
    {"type": "image_url", "image_url": {"url": URL}},
]


def type_of(part: Any) -> str:
    return str(part["type"])


def said(place: str, part: dict[str, Any]) -> str:
    return f"`{place}.type` is `{part['type']}`, but this server reads text only"


def beside_text(part: dict[str, Any], *, text: str = "text") -> list[Any]:
    """Return a conversation whose second message has `part` after a text."""
    asked = [{"type": text, "text": "What is in this?"}, part]
    return [{"role": "user", "content": "Hi"}, {"role": "user", "content": asked}]


@pytest.mark.covers("http/parts-that-are-no-text")
@pytest.mark.parametrize("part", CHAT_PARTS, ids=type_of)
async def test_a_chat_with_a_part_that_is_no_text_is_refused(engine: FakeEngine, part: dict[str, Any]) -> None:
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=beside_text(part), stream=True)
    assert said("messages[1].content[1]", part) in str(caught.value)
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "messages[1].content[1]")
    assert engine.requests == []


@pytest.mark.covers("http/parts-that-are-no-text")
@pytest.mark.parametrize("part", RESPONSE_PARTS, ids=type_of)
async def test_a_response_to_a_part_that_is_no_text_is_refused(engine: FakeEngine, part: dict[str, Any]) -> None:
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=MODEL, input=beside_text(part, text="input_text"))
        items: list[Any] = [{"role": "user", "content": "Hi"}, part]
        with pytest.raises(openai.BadRequestError) as outside:
            await client.responses.create(model=MODEL, input=items)
    assert said("input[1].content[1]", part) in str(caught.value)
    assert said("input[1]", part) in str(outside.value)
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "input[1].content[1].type")
    assert engine.requests == []


@pytest.mark.covers("http/parts-that-are-no-text")
@pytest.mark.parametrize("block", BLOCKS, ids=type_of)
async def test_a_message_with_a_block_that_is_no_text_is_refused(engine: FakeEngine, block: dict[str, Any]) -> None:
    async with running_server(engine) as url, anthropic.AsyncAnthropic(base_url=url, api_key="-") as client:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(model=MODEL, max_tokens=5, messages=beside_text(block))
        with pytest.raises(anthropic.BadRequestError) as counting:
            await client.messages.count_tokens(model=MODEL, messages=beside_text(block))
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    words = said("messages[1].content[1]", block)
    if block["type"] == "document":  # those of text are read
        words = said("messages[1].content[1].source", block["source"])
    assert words in body["error"]["message"]
    assert words in str(counting.value)
    assert engine.requests == []


async def test_a_conversation_to_tokenize_is_text_only_too(client: httpx.AsyncClient) -> None:
    reply = await client.post("/tokenize", json={"messages": beside_text(CHAT_PARTS[0])})
    assert reply.status_code == 400
    assert said("messages[1].content[1]", CHAT_PARTS[0]) in reply.json()["error"]["message"]


async def test_texts_in_parts_are_read_by_each_api(engine: FakeEngine) -> None:
    asked = [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]}]
    async with client_of(engine) as client:
        for path, name in (("chat/completions", "messages"), ("responses", "input"), ("messages", "messages")):
            limit = {"max_output_tokens" if name == "input" else "max_tokens": 20}
            reply = await client.post(f"/v1/{path}", json={name: asked, **limit})
            assert reply.status_code == 200, reply.text
    prompts: list[Any] = [request.prompt for request in engine.requests]
    assert [[message.content for message in prompt.messages] for prompt in prompts] == [["Hi you"]] * 3

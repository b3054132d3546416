"""A multimodal checkpoint behind the server: its text model answers texts, and images are refused by each API."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import openai
import pytest

import anthropic
from infer_proofs.engine.models import save_servable
from infer_proofs.models import save_chat_style

Serve = Callable[..., AbstractContextManager[Any]]
IMAGE = "data:image/png;base64,iVBORw0KGgo="
TEXT_ONLY = "but this server reads text only"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve_for_many: Serve) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_servable("gemma3_wrapped", folder)
    save_chat_style("gemma3_wrapped", folder)
    with serve_for_many("--model", str(folder), "--served-model-name", "gemma", "--dtype", "float32") as server:
        yield server.url


def asked(part: dict[str, Any], *, text: str = "text") -> list[Any]:
    return [{"role": "user", "content": [part, {"type": text, "text": "What is this?"}]}]


@pytest.mark.covers("http/parts-that-are-no-text")
def test_images_are_refused_and_texts_in_parts_are_answered(url: str) -> None:
    image_url = {"type": "image_url", "image_url": {"url": IMAGE}}
    input_image = {"type": "input_image", "image_url": IMAGE, "detail": "auto"}
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}
    text = {"type": "text", "text": "Well: "}
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client,
        anthropic.Anthropic(base_url=url, api_key="-", max_retries=0) as other,
    ):
        with pytest.raises(openai.BadRequestError, match=rf"messages\[0\]\.content\[0\].*`image_url`, {TEXT_ONLY}"):
            client.chat.completions.create(model="gemma", messages=asked(image_url))
        with pytest.raises(openai.BadRequestError, match=rf"input\[0\]\.content\[0\].*`input_image`, {TEXT_ONLY}"):
            client.responses.create(model="gemma", input=asked(input_image, text="input_text"))
        with pytest.raises(anthropic.BadRequestError, match=rf"messages\[0\]\.content\[0\].*`image`, {TEXT_ONLY}"):
            other.messages.create(model="gemma", max_tokens=4, messages=asked(image))
        chat = client.chat.completions.create(model="gemma", messages=asked(text), max_tokens=4)
        response = client.responses.create(model="gemma", input=asked(text), max_output_tokens=4)
        message = other.messages.create(model="gemma", messages=asked(text), max_tokens=4)
    assert chat.usage is not None
    assert response.usage is not None
    counts = {chat.usage.prompt_tokens, response.usage.input_tokens, message.usage.input_tokens}
    tokenized = httpx.post(f"{url}/tokenize", json={"messages": [{"role": "user", "content": "Well: What is this?"}]})
    assert counts == {tokenized.json()["count"]}


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("completions", {"prompt": "Hi", "max_tokens": -2}, "`max_tokens`"),
    ("completions", {"prompt": [{"type": "text", "text": "Hi"}]}, "`prompt"),
    ("completions", {"prompt": "Hi", "model": "gpt-4o"}, "send `gemma`"),
    ("chat/completions", {"messages": [{"role": "model", "content": "Hi"}]}, "`messages[0].role`"),
    ("chat/completions", {"messages": [{"role": "user"}]}, "`messages[0].content`"),
    ("chat/completions", {"messages": [{"role": "user", "content": "x" * 600}]}, "maximum context length"),
    ("responses", {"input": "Hi", "previous_response_id": "resp_1"}, "`previous_response_id`"),
    ("responses", {"input": [{"type": "input_text", "text": "Hi"}]}, "in the `content` of a message"),
    ("messages", {"messages": [{"role": "user", "content": "Hi"}]}, "`max_tokens` is missing"),
    ("messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": -2}, "`max_tokens`"),
]


def test_wrong_requests_are_told_what_to_change(url: str) -> None:
    replies = [httpx.post(f"{url}/v1/{path}", json=body) for path, body, _ in WRONG]
    assert {reply.status_code for reply in replies} <= {400, 404, 422}
    messages = [reply.json()["error"]["message"] for reply in replies]
    assert [message for message, (_, _, words) in zip(messages, WRONG, strict=True) if words not in message] == []

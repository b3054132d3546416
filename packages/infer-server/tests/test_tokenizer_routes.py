"""`POST /tokenize` and `/detokenize`, in vLLM's shapes and with OpenAI's statuses."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from infer_server import ServerSettings, create_app
from infer_server.testing import FakeEngine, Script

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(FakeEngine()) as client:
        yield client


def client_of(engine: FakeEngine) -> httpx.AsyncClient:
    app = create_app(engine, settings=ServerSettings())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server")  # type: ignore[arg-type]  # litestar's own ASGI types


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "hi"}, [0, 104, 105]),
        ({"prompt": "hi", "add_special_tokens": False, "model": "fake-model"}, [104, 105]),
        ({"prompt": "", "add_special_tokens": False}, []),
        ({"messages": HI, "add_generation_prompt": False}, [104, 105]),
        ({"messages": HI, "add_special_tokens": False, "prompt": None}, [104, 105]),
    ],
)
async def test_tokenize_lists_and_counts_the_tokens_of_a_text_or_a_conversation(
    client: httpx.AsyncClient, body: dict[str, Any], tokens: list[int]
) -> None:
    reply = await client.post("/tokenize", json=body)
    assert reply.status_code == 200
    assert reply.json() == {"count": len(tokens), "max_model_len": 512, "tokens": tokens, "token_strs": None}


async def test_tokenize_shows_the_tokens_texts_where_asked_for(client: httpx.AsyncClient) -> None:
    reply = await client.post("/tokenize", json={"prompt": "h" * 5000, "return_token_strs": True})
    assert reply.json()["token_strs"] == ["<0>", *"h" * 5000]


async def test_detokenize_returns_the_text(client: httpx.AsyncClient) -> None:
    for tokens, text in (([104, 105], "hi"), ([], "")):
        reply = await client.post("/detokenize", json={"tokens": tokens})
        assert (reply.status_code, reply.json()) == (200, {"prompt": text})


REFUSED: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("/tokenize", {}, 400, "missing_field", "prompt"),
    ("/tokenize", {"prompt": "x", "messages": HI}, 400, "invalid_value", "messages"),
    ("/tokenize", {"prompt": ["x"]}, 400, "invalid_type", "prompt"),
    ("/tokenize", {"prompt": "x", "bogus": 1}, 400, "unknown_field", "bogus"),
    ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, 400, "invalid_value", "add_generation_prompt"),
    ("/tokenize", {"messages": HI, "add_special_tokens": True}, 400, "invalid_value", "add_special_tokens"),
    ("/tokenize", {"messages": []}, 400, "empty_prompt", "messages"),
    ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model_not_found", "model"),
    ("/detokenize", {}, 400, "missing_field", "tokens"),
    ("/detokenize", {"tokens": [1000]}, 400, "invalid_value", "tokens"),
    ("/detokenize", {"tokens": [-1]}, 400, "invalid_value", "tokens"),
    ("/detokenize", {"tokens": [2**70]}, 400, "invalid_value", "tokens"),
    ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model_not_found", "model"),
]


@pytest.mark.parametrize(("path", "body", "status", "code", "param"), REFUSED)
async def test_what_is_refused_has_openais_status(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    reply = await client.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param)


async def test_conversation_for_a_model_without_a_chat_template_is_400() -> None:
    async with client_of(FakeEngine(Script(has_chat_template=False))) as client:
        reply = await client.post("/tokenize", json={"messages": HI})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")

"""`POST /tokenize` and `/detokenize`, in vLLM's shapes and with OpenAI's statuses."""

import asyncio
from typing import Any

import httpx
import pytest

from infer_engine.protocol import TextPrompt
from infer_proofs.server import FakeEngine, Script, running_server
from infer_proofs.server.client import client_of

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.covers("http/tokenize")
@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "hi"}, [0, 104, 105]),
        ({"prompt": "hi", "add_special_tokens": False, "model": "fake-model"}, [104, 105]),
        ({"prompt": "", "add_special_tokens": False}, []),
        ({"messages": HI, "add_generation_prompt": False}, [104, 105]),
        ({"messages": HI, "add_special_tokens": False, "prompt": None}, [104, 105]),
        ({"prompt": "hi", "add_generation_prompt": True, "truncate_prompt_tokens": None}, [0, 104, 105]),
        ({"messages": HI, "chat_template": None, "mm_processor_kwargs": None, "chat_template_args": {}}, [104, 105]),
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


@pytest.mark.covers("http/tokenize")
async def test_detokenize_returns_the_text(client: httpx.AsyncClient) -> None:
    for tokens, text in (([104, 105], "hi"), ([], "")):
        for path in ("/detokenize", "/v1/detokenize"):
            reply = await client.post(path, json={"tokens": tokens, "model": None, "mm_processor_kwargs": None})
            assert (reply.status_code, reply.json()) == (200, {"prompt": text})


REFUSED: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("/tokenize", {}, 400, "missing_field", "prompt"),
    ("/tokenize", {"prompt": "x", "messages": HI}, 400, "conflicting_fields", "messages"),
    ("/tokenize", {"prompt": ["x"]}, 400, "invalid_type", "prompt"),
    ("/tokenize", {"prompt": "x", "bogus": 1}, 400, "unknown_field", "bogus"),
    ("/tokenize", {"prompt": "x", "continue_final_message": True}, 400, "conflicting_fields", "continue_final_message"),
    ("/tokenize", {"messages": HI, "chat_template": "x"}, 400, "unsupported_value", "chat_template"),
    ("/detokenize", {"tokens": [1], "truncate_prompt_tokens": 5}, 400, "unsupported_value", "truncate_prompt_tokens"),
    ("/tokenize", {"messages": HI, "add_special_tokens": True}, 400, "conflicting_fields", "add_special_tokens"),
    ("/tokenize", {"messages": []}, 400, "empty_prompt", "messages"),
    ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model_not_found", "model"),
    ("/detokenize", {}, 400, "missing_field", "tokens"),
    ("/detokenize", {"tokens": [1000]}, 400, "invalid_value", "tokens"),
    ("/detokenize", {"tokens": [-1]}, 400, "invalid_value", "tokens"),
    ("/detokenize", {"tokens": [2**70]}, 400, "invalid_value", "tokens"),
    ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model_not_found", "model"),
]


@pytest.mark.covers("http/error-out-of-range-others", "http/error-token-id")
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


class NeverTokenizingEngine(FakeEngine):
    """An engine whose tokenizer has all the time in the world."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.was_left = asyncio.Event()

    async def tokenize(self, prompt: TextPrompt, *, add_special_tokens: bool = True) -> list[int]:
        del prompt, add_special_tokens
        self.has_begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.was_left.set()
        return []


async def test_nothing_is_tokenized_for_a_client_that_left() -> None:
    engine = NeverTokenizingEngine()
    async with running_server(engine) as url, asyncio.timeout(10):
        async with httpx.AsyncClient(base_url=url) as client:
            asking = asyncio.create_task(client.post("/tokenize", json={"prompt": "x"}))
            await engine.has_begun.wait()
            asking.cancel()
        await engine.was_left.wait()

"""`return_token_ids`: the ids of prompt and answer beside the text, in the places where vLLM's clients look."""

from typing import Any

import httpx
import pytest

from infer_server.testing import FakeEngine, Script, sse_events
from infer_server.testing.client import client_of

ANSWER = Script(steps=(((1,), "Hello"), ((2, 3), " world"), ((), "!")))
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXTS = {"prompt": ["a", "bc"]}


async def post(path: str, engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(engine) as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.covers("http/token-ids")
async def test_a_chat_has_the_ids_of_its_prompt_and_of_each_answer() -> None:
    engine = FakeEngine(ANSWER)
    reply = (await post("/v1/chat/completions", engine, **CHAT, n=2, return_token_ids=True)).json()
    assert reply["prompt_token_ids"] == engine.streams[0].prompt_token_ids
    assert [choice["token_ids"] for choice in reply["choices"]] == [[1, 2, 3]] * 2


@pytest.mark.covers("http/token-ids")
async def test_completions_have_the_ids_of_prompt_and_answer_in_each_choice() -> None:
    engine = FakeEngine(ANSWER)
    reply = (await post("/v1/completions", engine, **TEXTS, n=2, return_token_ids=True)).json()
    prompts = [stream.prompt_token_ids for stream in engine.streams]
    assert [choice["prompt_token_ids"] for choice in reply["choices"]] == prompts
    assert [choice["token_ids"] for choice in reply["choices"]] == [[1, 2, 3]] * 4


@pytest.mark.covers("http/token-ids")
@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}])
async def test_streams_have_the_ids_of_each_token_and_once_those_of_the_prompt(more: dict[str, Any]) -> None:
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", TEXTS),
        ("/v1/completions", {**TEXTS, "echo": True}),
    ):
        engine = FakeEngine(ANSWER)
        reply = await post(path, engine, **body, stream=True, return_token_ids=True, **more)
        chunks: list[Any] = [data for _, data in sse_events(reply.text) if data != "[DONE]"]
        for index, stream in enumerate(engine.streams):
            mine = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["index"] == index]
            assert [token_id for chunk in mine for token_id in chunk["choices"][0].get("token_ids", [])] == [1, 2, 3]
            told = [{**chunk, **chunk["choices"][0]}.get("prompt_token_ids") for chunk in mine]
            assert told == [stream.prompt_token_ids] + [None] * (len(mine) - 1)


@pytest.mark.parametrize("asked", [{}, {"return_token_ids": False}, {"return_token_ids": None}])
async def test_without_it_there_are_no_ids(asked: dict[str, Any]) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXTS)):
        for stream in (False, True):
            assert "token_ids" not in (await post(path, FakeEngine(ANSWER), **body, **asked, stream=stream)).text

"""`return_token_ids`: the ids of prompt and answer beside the text, in the places where vLLM's clients look."""

from typing import Any

import httpx
import pytest

from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of

ANSWER = Script(steps=(((1,), "Hello"), ((2, 3), " world"), ((), "!")))
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXTS = {"prompt": ["a", "bc"]}
MESSAGES = {**CHAT, "max_tokens": 9}
INPUT = {"input": "hi"}


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


@pytest.mark.covers("http/token-ids")
@pytest.mark.parametrize(("path", "body"), [("/v1/messages", MESSAGES), ("/v1/responses", INPUT)])
async def test_messages_and_responses_have_the_ids_beside_their_text(path: str, body: dict[str, Any]) -> None:
    engine = FakeEngine(ANSWER)
    reply = (await post(path, engine, **body, return_token_ids=True)).json()
    assert reply["prompt_token_ids"] == engine.streams[0].prompt_token_ids
    assert reply["token_ids"] == [1, 2, 3]


@pytest.mark.covers("http/token-ids")
async def test_their_streams_begin_with_the_ids_of_the_prompt_and_end_with_those_of_the_answer() -> None:
    engine = FakeEngine(ANSWER)
    events = sse_events((await post("/v1/messages", engine, **MESSAGES, stream=True, return_token_ids=True)).text)
    by_name: dict[str | None, Any] = dict(events)
    assert by_name["message_start"]["message"]["prompt_token_ids"] == engine.streams[0].prompt_token_ids
    assert "token_ids" not in by_name["message_start"]["message"]
    assert by_name["message_delta"]["token_ids"] == [1, 2, 3]
    engine = FakeEngine(ANSWER)
    events = sse_events((await post("/v1/responses", engine, **INPUT, stream=True, return_token_ids=True)).text)
    by_name = dict(events)
    prompts = [by_name[name]["response"]["prompt_token_ids"] for name in ("response.created", "response.completed")]
    assert prompts == [engine.streams[0].prompt_token_ids] * 2
    assert "token_ids" not in by_name["response.created"]["response"]
    assert by_name["response.completed"]["response"]["token_ids"] == [1, 2, 3]


@pytest.mark.parametrize("asked", [{}, {"return_token_ids": False}, {"return_token_ids": None}])
async def test_without_it_there_are_no_ids(asked: dict[str, Any]) -> None:
    paths: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": CHAT,
        "/v1/completions": TEXTS,
        "/v1/messages": MESSAGES,
        "/v1/responses": INPUT,
    }
    for path, body in paths.items():
        for stream in (False, True):
            assert "token_ids" not in (await post(path, FakeEngine(ANSWER), **body, **asked, stream=stream)).text

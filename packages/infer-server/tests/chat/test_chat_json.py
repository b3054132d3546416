"""`POST /v1/chat/completions` without streaming: the engine's request, and the response."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import ChatMessage, ChatPrompt, FinishReason, SamplingParams
from infer_proofs.server import FakeEngine, Script
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

HI = [{"role": "user", "content": "hi"}]


async def chat(client: httpx.AsyncClient, **body: Any) -> Any:
    reply = await client.post("/v1/chat/completions", json={"messages": HI, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.covers("http/chat-completions")
async def test_chat_completion_is_openais_object(client: httpx.AsyncClient) -> None:
    answer = await chat(client, model="fake-model")
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    message = {"role": "assistant", "content": "Hello, world", "refusal": None}
    assert answer == {
        "object": "chat.completion",
        "model": "fake-model",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    }


async def test_conversation_reaches_the_engine_with_developers_as_the_system(
    own_client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": "y"},
        {"role": "system", "content": []},
    ]
    await chat(own_client, messages=messages)
    expected = [("system", "x", None), ("user", "ab", "Ann"), ("assistant", "y", None), ("system", "", None)]
    read = tuple(ChatMessage(role=role, content=text, name=name) for role, text, name in expected)
    assert engine.requests[0].prompt == ChatPrompt(messages=read)


async def test_answer_can_be_sent_back_as_it_came(client: httpx.AsyncClient) -> None:
    message = (await chat(client))["choices"][0]["message"]
    as_clients_keep_it = message | {"annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    await chat(client, messages=[*HI, message, as_clients_keep_it])


@pytest.mark.covers("requests/max-tokens-of-chats")
async def test_answer_is_as_long_as_the_context_leaves_unless_told(
    own_client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    for limit in ({}, {"max_tokens": 3}, {"max_completion_tokens": 4}, {"max_tokens": 5, "max_completion_tokens": 5}):
        await chat(own_client, **limit)
    assert [request.params.max_tokens for request in engine.requests] == [None, 3, 4, 5]


async def test_sampling_fields_reach_the_engine(own_client: httpx.AsyncClient, engine: FakeEngine) -> None:
    sampling = {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": -1, "min_tokens": 2, "n": 2}
    sampling |= {"presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.1}
    lists = {"stop": ["a"], "stop_token_ids": [5], "logit_bias": {7: -3.5}}
    await chat(own_client, ignore_eos=True, priority=4, cache_salt="s", **lists, **sampling)
    expected = SamplingParams(max_tokens=None, **lists, **sampling, ignore_eos=True)  # type: ignore[arg-type]  # mixed values
    (request,) = engine.requests
    assert (request.params, request.priority, request.cache_salt) == (expected, 4, "s")


async def test_n_choices_come_in_order_and_the_prompt_counts_once(client: httpx.AsyncClient) -> None:
    answer = await chat(client, n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 9, "total_tokens": 11}


@pytest.mark.parametrize(("asked", "num_top"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 20}, 20)])
async def test_logprobs_list_each_token_with_its_bytes(
    client: httpx.AsyncClient, asked: dict[str, int], num_top: int
) -> None:
    answer = await chat(client, logprobs=True, **asked)
    logprobs = answer["choices"][0]["logprobs"]
    first = logprobs["content"][0]
    assert set(logprobs) == {"content", "refusal"}
    assert [token["token"] for token in logprobs["content"]] == ["Hello", ",", " world"]
    assert len(first.pop("top_logprobs")) == num_top
    assert first == {"token": "Hello", "logprob": -0.5, "bytes": list(b"Hello")}


NEUTRAL = {
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "functions": [],
    "function_call": "none",
    "modalities": ["text"],
    "audio": None,
    "prediction": None,
    "moderation": None,
    "web_search_options": None,
    "reasoning_effort": "none",
    "verbosity": "medium",
    "service_tier": "auto",
    "store": True,
    "metadata": {"a": "b"},
    "user": "u",
    "safety_identifier": "i",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "in_memory",
    "prompt_cache_options": None,
    "logprobs": False,
    "top_logprobs": 0,
    "stream_options": {"include_usage": False, "include_obfuscation": False},
}


@pytest.mark.covers("http/neutral-fields")
async def test_fields_of_openai_at_their_neutral_values_change_nothing(
    own_client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await chat(own_client, **NEUTRAL)
    await chat(own_client, **dict.fromkeys(NEUTRAL))
    assert [request.params for request in engine.requests] == [SamplingParams(max_tokens=None)] * 2


@pytest.mark.parametrize(
    ("reason", "word"),
    [(FinishReason.EOS, "stop"), (FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length")],
)
async def test_finish_reason_is_openais_word(reason: FinishReason, word: str) -> None:
    async with client_of(FakeEngine(Script(finish_reason=reason))) as client:
        assert (await chat(client))["choices"][0]["finish_reason"] == word


@pytest.mark.covers("http/body-priority-and-salt")
async def test_request_is_its_callers_whatever_salt_it_sends(engine: FakeEngine) -> None:
    async with client_of(engine, ServerSettings(api_key=("one", "two"))) as client:
        for key, salt in (("one", None), ("two", None), ("one", "x"), ("one", None)):
            body = {"messages": HI, "cache_salt": salt}
            await client.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    first, second, salted, again = [(request.tenant, request.cache_salt) for request in engine.requests]
    assert len({first, second, salted}) == 3
    assert first == again
    assert not any("one" in (tenant or "") for tenant, _ in (first, salted))

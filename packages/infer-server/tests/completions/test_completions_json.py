"""`POST /v1/completions` without streaming: one object, as OpenAI's clients read it."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from infer_engine.protocol import FinishReason, SamplingParams
from infer_proofs.server import FakeEngine, Script, running_server


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        yield client


async def complete(client: httpx.AsyncClient, **body: Any) -> Any:
    reply = await client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    return reply.json()


@pytest.mark.covers("http/completions")
async def test_completion_is_openais_object(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="hi", model="fake-model")
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "text_completion",
        "model": "fake-model",
        "choices": [
            {"index": 0, "text": "Hello, world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    }


@pytest.mark.covers("http/body-prompt")
async def test_prompts_of_a_batch_get_a_choice_each_and_one_usage(
    own_client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    answer = await complete(own_client, prompt=["a", "bcd"])
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    assert [request.prompt for request in engine.requests] == ["a", "bcd"]


@pytest.mark.covers("http/body-prompt")
@pytest.mark.parametrize(
    ("prompt", "received"),
    [
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["x"], ["x"]),
        ("\u2028 \u0000 🜚", ["\u2028 \u0000 🜚"]),
    ],
)
async def test_prompt_may_be_text_or_token_ids(
    own_client: httpx.AsyncClient, engine: FakeEngine, prompt: object, received: list[object]
) -> None:
    await complete(own_client, prompt=prompt)
    assert [request.prompt for request in engine.requests] == received


@pytest.mark.covers("http/body-sampling")
async def test_sampling_fields_reach_the_engine(own_client: httpx.AsyncClient, engine: FakeEngine) -> None:
    sampling = {"max_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": -1, "min_tokens": 2}
    sampling |= {"presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.1}
    lists = {"stop": ["a", "b"], "stop_token_ids": [5], "logit_bias": {"7": -3.5}}
    await complete(own_client, prompt="x", ignore_eos=True, **lists, **sampling)
    expected = SamplingParams(stop=("a", "b"), stop_token_ids=(5,), logit_bias={7: -3.5}, ignore_eos=True, **sampling)  # type: ignore[arg-type]  # mixed values
    assert engine.requests[0].params == expected


@pytest.mark.covers("http/body-priority-and-salt")
async def test_priority_and_cache_salt_reach_the_engine(own_client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await complete(own_client, prompt=["x", "y"], priority=-3, cache_salt="tenant")
    assert [(request.priority, request.cache_salt) for request in engine.requests] == [(-3, "tenant")] * 2


async def test_usage_says_how_much_of_the_prompt_was_cached() -> None:
    engine = FakeEngine(Script(num_cached_tokens=2))
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await complete(client, prompt=["abc", "def"])
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


@pytest.mark.covers("requests/max-tokens", "http/body-max-tokens", "http/null-is-default")
async def test_null_means_the_default(own_client: httpx.AsyncClient, engine: FakeEngine) -> None:
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "seed", "ignore_eos")
    await complete(own_client, prompt="x", **dict.fromkeys(names))
    assert engine.requests[0].params == SamplingParams(max_tokens=128)


@pytest.mark.covers("http/neutral-fields")
async def test_fields_of_openai_at_their_neutral_values_change_nothing(
    own_client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    neutral = {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "suffix": "", "priority": 0}
    penalties = {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
    ignored = {"user": "u", "metadata": {"a": "b"}, "store": True, "stop": [], "logit_bias": {}}
    await complete(own_client, prompt="x", stream_options={"include_usage": False}, **neutral, **penalties, **ignored)
    assert engine.requests[0].params == SamplingParams()


@pytest.mark.covers("http/stream-finish-reasons")
@pytest.mark.parametrize(
    ("reason", "word"),
    [(FinishReason.EOS, "stop"), (FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length")],
)
async def test_finish_reason_is_openais_word(reason: FinishReason, word: str) -> None:
    engine = FakeEngine(Script(finish_reason=reason))
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await complete(client, prompt="x")
    assert answer["choices"][0]["finish_reason"] == word


@pytest.mark.covers("http/stream-when")
async def test_stream_false_overrules_the_accept_header(client: httpx.AsyncClient) -> None:
    headers = {"Accept": "text/event-stream"}
    reply = await client.post("/v1/completions", json={"prompt": "x", "stream": False}, headers=headers)
    assert reply.headers["content-type"] == "application/json"

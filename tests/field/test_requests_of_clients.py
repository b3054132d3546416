"""Requests as clients of several servers and providers send them: other names, other shapes, other limits."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import anthropic
from infer_engine.protocol import ChatPrompt, ContentDelta, StructuredOutputs, ToolCallDelta
from infer_proofs.server import FakeEngine, Script, running_server, sse_events
from infer_proofs.server.client import client_of

HI = [{"role": "user", "content": "x"}]
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    CHAT: {"messages": HI},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(engine) as client:
        yield client


async def post(client: httpx.AsyncClient, path: str, **fields: Any) -> Any:
    reply = await client.post(path, json=BODIES[path] | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


# From decolua/9router#3492, diegosouzapw/OmniRoute#6740: clients for MCP and HTTP libraries name both kinds.
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "accept",
    [
        "application/json, text/event-stream",
        "text/event-stream, application/json;q=0.9, */*;q=0.1",
        "text/event-stream, */*",
        "text/event-stream;q=0",
        "text/event-stream;q=0.5, Application/*",
        "*/*",
    ],
)
async def test_who_takes_json_too_gets_no_stream(client: httpx.AsyncClient, path: str, accept: str) -> None:
    reply = await client.post(path, json=BODIES[path], headers={"Accept": accept})
    assert reply.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("accept", ["text/event-stream", "Text/Event-Stream;q=0.5, application/json; q=0"])
@pytest.mark.parametrize("path", [path for path in BODIES if path != "/v1/messages"])
async def test_who_takes_events_alone_gets_a_stream(client: httpx.AsyncClient, path: str, accept: str) -> None:
    reply = await client.post(path, json=BODIES[path], headers={"Accept": accept})
    assert reply.headers["content-type"].startswith("text/event-stream")


# `extra_body` as it is: xberg-io/liter-llm#160, QuantumNous/new-api#781. Names of Mistral, the AI SDK, Baseten, SGLang.
OTHER_NAMES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"random_seed": 7}, {"seed": 7}),
    ({"random_seed": 7, "seed": None}, {"seed": 7}),
    ({"reasoningEffort": "high"}, {"reasoning_effort": "high"}),
    ({"chat_template_args": {"a": 1}}, {"chat_template_kwargs": {"a": 1}}),
    ({"regex": "a+"}, {"guided_regex": "a+"}),
    ({"ebnf": 'root ::= "a"'}, {"guided_grammar": 'root ::= "a"'}),
    ({"no_stop_trim": True}, {"include_stop_str_in_output": True}),
    ({"max_new_tokens": 3}, {"max_tokens": 3}),
    ({"extra_body": {"top_k": 4, "random_seed": 7}}, {"top_k": 4, "seed": 7}),
    ({"regex": "", "random_seed": None, "extra_body": {}}, {}),
]


@pytest.mark.parametrize(("sent", "meant"), OTHER_NAMES, ids=str)
async def test_another_name_of_a_field_means_that_field(
    client: httpx.AsyncClient, engine: FakeEngine, sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    await post(client, CHAT, **sent)
    await post(client, CHAT, **meant)
    assert engine.requests[0] == engine.requests[1]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (CHAT, {"seed": 6, "random_seed": 7}, "`random_seed` is another name of `seed`, and both are given"),
        (CHAT, {"random_seed": "x"}, "`seed` is not valid"),
        (CHAT, {"extra_body": {"bogus": 1}}, "`bogus` is not a field that this server knows"),
        (CHAT, {"extra_body": {"extra_body": {"top_k": 4}}}, "`extra_body.extra_body`"),
        (CHAT, {"functions": [{"name": "f"}], "tool_choice": "none"}, "send `function_call` with `functions`"),
        (CHAT, {"tools": [{"name": "f"}], "function_call": {"name": "f"}}, "send `tool_choice` with `tools`"),
        ("/v1/responses", {"input": [{"type": "item_reference"}]}, "`input[0].id` is missing"),
        ("/v1/messages", {"regex": "a+"}, "`regex` is a+, which is not supported"),
        ("/v1/completions", {"reasoningEffort": "low"}, "`reasoningEffort` is low, which is not supported"),
    ],
)
async def test_another_name_is_refused_where_it_says_nothing_certain(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], words: str
) -> None:
    reply = await client.post(path, json=BODIES[path] | fields)
    assert reply.status_code in (400, 422)
    assert words in reply.json()["error"]["message"]


async def test_a_number_that_is_none_in_a_field_that_nobody_reads_is_a_wrong_body(client: httpx.AsyncClient) -> None:
    body = b'{"input": "x", "extra_body": {"top_p": 1}, "other": 1e999}'
    reply = await client.post("/v1/responses", content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, "not valid JSON" in reply.json()["error"]["message"]) == (400, True)


TRIGGERS = {"triggers": ["<a>"]}
# From huggingface/text-generation-inference#3058, #2046, vllm-project/vllm#17085 and services with OpenAI's API.
FORMATS: list[tuple[dict[str, Any], StructuredOutputs]] = [
    ({"type": "json_object", "value": SCHEMA}, StructuredOutputs(json=SCHEMA, strict=False)),
    ({"type": "json_object", "value": {"name": "n", "schema": SCHEMA}}, StructuredOutputs(json=SCHEMA, strict=False)),
    ({"type": "json", "value": SCHEMA}, StructuredOutputs(json=SCHEMA, strict=False)),
    ({"type": "json_schema", "value": {"name": "n", "schema": SCHEMA}}, StructuredOutputs(json=SCHEMA, strict=False)),
    ({"type": "json_schema", "value": SCHEMA}, StructuredOutputs(json=SCHEMA, strict=False)),
    ({"type": "regex", "value": "ab{3}"}, StructuredOutputs(regex="ab{3}")),
    ({"type": "regex", "pattern": "ab{3}"}, StructuredOutputs(regex="ab{3}")),
    ({"type": "grammar", "grammar": 'root ::= "a"'}, StructuredOutputs(grammar='root ::= "a"')),
    ({"type": "structural_tag", **TRIGGERS, "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}]},
     StructuredOutputs(structural_tag={"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], **TRIGGERS})),
    ({"type": "structural_tag", "format": {"type": "triggered_tags", **TRIGGERS, "tags": [
        {"begin": "<a>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</a>"}]}},
     StructuredOutputs(structural_tag={"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], **TRIGGERS})),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), FORMATS, ids=lambda each: str(each)[:50])
async def test_formats_of_other_servers_are_taken(
    client: httpx.AsyncClient, engine: FakeEngine, given: dict[str, Any], wanted: StructuredOutputs
) -> None:
    for path in ("/v1/completions", CHAT):
        await post(client, path, response_format=given)
        assert engine.requests[-1].params.structured_outputs == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"type": "regex"}, "`response_format.value` is missing"),
        ({"type": "json", "value": SCHEMA, "schema": SCHEMA}, "`response_format` has `schema` and `value`"),
        ({"type": "regex", "value": "a", "json_schema": {"schema": {}}}, "belongs to the type `json_schema`"),
        ({"type": "structural_tag", "format": {"type": "sequence", "elements": []}}, "`triggered_tags`"),
        ({"type": "structural_tag", "format": {"type": "triggered_tags", "tags": [{}]}}, "`json_schema`"),
    ],
)
async def test_a_format_that_is_not_whole_is_refused(
    client: httpx.AsyncClient, given: dict[str, Any], words: str
) -> None:
    reply = await client.post(CHAT, json={"messages": HI, "response_format": given})
    assert (reply.status_code, words in reply.json()["error"]["message"]) == (400, True), reply.text


FUNCTIONS = [{"name": "find", "description": "d", "parameters": {"type": "object", "properties": {}}}]
CALLING = Script(steps=(((1,), (ContentDelta("Hm."),)), ((2,), (ToolCallDelta(0, "find", "{"),)),
                        ((3,), (ToolCallDelta(0, arguments="}"),))))  # fmt: skip


# From Mintplex-Labs/anything-llm#4207, langchain-ai/langchainjs#5237, letta-ai/letta#619: the older API.
@pytest.mark.parametrize(
    ("choice", "chosen"),
    [(None, ("auto", None)), ("none", ("none", None)), ({"name": "find"}, ("required", "find"))],
)
async def test_functions_of_the_older_api_are_tools(
    client: httpx.AsyncClient, engine: FakeEngine, choice: object, chosen: tuple[str, str | None]
) -> None:
    await post(client, CHAT, functions=FUNCTIONS, function_call=choice)
    await post(client, CHAT, tools=[{"type": "function", "function": FUNCTIONS[0]}])
    older, newer = (request.prompt for request in engine.requests)
    assert isinstance(older, ChatPrompt)
    assert isinstance(newer, ChatPrompt)
    assert older.tools == newer.tools
    assert (older.tool_choice, older.tool_name, older.parallel_tool_calls) == (*chosen, False)


async def test_a_call_of_an_older_function_comes_in_the_older_words() -> None:
    async with client_of(FakeEngine(CALLING)) as client:
        answer = ChatCompletion.model_validate(await post(client, CHAT, functions=FUNCTIONS)).choices[0]
        text = (await client.post(CHAT, json={"messages": HI, "functions": FUNCTIONS, "stream": True})).text
    assert answer.message.function_call is not None
    assert (answer.message.function_call.name, answer.message.function_call.arguments) == ("find", "{}")
    assert (answer.finish_reason, answer.message.tool_calls, answer.message.content) == ("function_call", None, "Hm.")
    chunks = [ChatCompletionChunk.model_validate(data).choices[0] for _, data in sse_events(text)[:-1]]
    parts = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
    assert [(part.name, part.arguments) for part in parts] == [("find", "{"), (None, "}")]
    assert chunks[-1].finish_reason == "function_call"


# From NousResearch/hermes-agent#31435, vllm-project/vllm#25001, langchain-ai/langchainjs#11092.
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"address": "Main 3"}, '{"address":"Main 3"}'),
        ([{"id": 1, "name": "ü"}], '[{"id":1,"name":"ü"}]'),
        ([{"type": "user", "text": "x"}], '[{"type":"user","text":"x"}]'),
        ([{"type": "text", "text": "a"}, "b"], "ab"),
        ([{"type": "text", "text": "a", "file_id": "b"}], '[{"type":"text","text":"a","file_id":"b"}]'),
        ([1, 2], "[1,2]"),
        (["a.py", "b.py"], '["a.py","b.py"]'),
        ([{"type": "file", "name": "a.py"}], '[{"type":"file","name":"a.py"}]'),
        (3.5, "3.5"),
        (False, "false"),
        ([], ""),
        (None, ""),
        (..., ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", ["tool", "function"])
async def test_the_result_of_a_tool_may_be_any_json(
    client: httpx.AsyncClient, engine: FakeEngine, role: str, content: object, text: str
) -> None:
    result = {"role": role} if content is ... else {"role": role, "content": content}
    await post(client, CHAT, messages=[*HI, result])
    prompt = engine.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1].content == text


# From NousResearch/hermes-agent#72905, #25903, Stack-Cairn/LiveAgent#730: a screenshot in a result ended sessions.
@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}, "image"),
        ({"type": "image", "data": "AA==", "mimeType": "image/png"}, "image"),
        ({"type": "input_audio", "input_audio": {"data": "AA=="}}, "audio"),
        ({"type": "file", "file": {"file_data": "AA=="}}, "file"),
    ],
)
async def test_in_the_place_of_a_picture_in_a_result_the_model_reads_that_it_was_left_out(
    client: httpx.AsyncClient, engine: FakeEngine, part: dict[str, Any], kind: str
) -> None:
    await post(client, CHAT, messages=[*HI, {"role": "tool", "content": [{"type": "text", "text": "Seen: "}, part]}])
    prompt = engine.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1].content == f"Seen: [{kind} omitted: this model reads text only]"


# From LionSR/TeXRA#2947, lobehub/lobehub#10255, OpenRouterTeam/ai-sdk-provider#423.
@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_details": [{"type": "reasoning.text", "text": "A tool"}, {"text": " is."}]},
        {"reasoning_details": [{"type": "reasoning.encrypted"}, {"summary": "A tool is."}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "A tool is.", "signature": "x"}]},
        {"reasoning_content": "", "reasoning_details": [{"text": "A tool is."}]},
        {"reasoning_content": "A tool is.", "reasoning_details": [{"text": "A tool is."}]},
        {"thinking": "A tool is."},
        {"reasoning_text": "A tool is."},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "A tool is."}], "closed": True}]},
    ],
    ids=str,
)  # fmt: skip
async def test_thinking_of_an_earlier_answer_is_read_in_the_words_of_gateways(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    await post(client, CHAT, messages=[*HI, {"role": "assistant", "content": "y", **fields}, *HI])
    prompt = engine.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1].reasoning == "A tool is."


async def test_documents_are_a_variable_of_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    documents = [{"title": "Weather", "text": "Rain."}]
    await post(client, CHAT, documents=documents)
    await post(client, CHAT, chat_template_kwargs={"documents": documents})
    assert engine.requests[0] == engine.requests[1]
    tokens = await client.post("/tokenize", json={"messages": HI, "documents": documents})
    assert tokens.status_code == 200


# From QwenLM/qwen-code#6556, NousResearch/hermes-agent#113479, vllm-project/vllm#35541: 512 tokens fit.
async def test_what_no_client_asked_for_is_cut_to_the_context(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    text = "x" * 500
    await post(client, "/v1/completions", prompt=text)
    await post(client, CHAT, messages=[{"role": "user", "content": text}], max_tokens=32_000)
    assert [request.clip_max_tokens for request in engine.requests] == [True, True]


async def test_who_asks_for_so_many_tokens_is_refused_where_they_do_not_fit(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "x" * 500, "max_tokens": 100})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "context_length_exceeded")
    body = {"messages": HI, "max_tokens": 600, "ignore_eos": True}  # so many, not at most so many
    reply = await client.post(CHAT, json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_the_tokens_of_a_stream_are_counted_once_where_usage_is_asked_for(client: httpx.AsyncClient) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    text = (await client.post("/v1/completions", json=body)).text
    counted = [data["usage"]["completion_tokens"] for _, data in sse_events(text)[:-1] if "usage" in data]
    assert counted == [12]


async def test_a_client_of_anthropic_lists_models_in_its_own_shape() -> None:
    async with (
        running_server(FakeEngine()) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="-", _strict_response_validation=True) as client,
    ):
        [listed] = [model async for model in client.models.list(limit=5)]
        model = await client.models.retrieve("fake-model")
    assert listed == model
    assert (model.type, model.id, model.display_name, model.max_tokens) == ("model", "fake-model", "fake-model", 512)


async def test_a_path_of_ollamas_api_is_told_where_openais_is(client: httpx.AsyncClient) -> None:
    reply = await client.post("/api/chat", json={"model": "x", "messages": HI})
    assert (reply.status_code, "OpenAI's, below `/v1`" in reply.json()["error"]["message"]) == (404, True)


async def test_a_conversation_of_thousands_of_messages_is_taken_by_every_api(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    many = [{"role": ("user", "assistant")[index % 2], "content": ""} for index in range(5_001)]
    await post(client, CHAT, messages=many)
    await post(client, "/v1/messages", messages=many)
    await post(client, "/v1/responses", input=many)
    prompts = [request.prompt for request in engine.requests]
    assert [len(prompt.messages) for prompt in prompts if isinstance(prompt, ChatPrompt)] == [5_001] * 3

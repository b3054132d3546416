"""The fields of `/v1/responses` beside its input: what reaches the engine, what has no effect, what is refused."""

import json
from contextlib import suppress
from typing import Any, get_type_hints

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import response_create_params

from infer_engine.protocol import ChatPrompt, GenerateRequest, InvalidRequestError, StructuredOutputs, Tool
from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of
from infer_server.errors import ApiError
from infer_server.http.bodies import decode_body
from infer_server.openai.responses.item_store import ItemStore
from infer_server.openai.responses.references import resolved_body
from infer_server.openai.responses.request import ResponsesBody, responses_request

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "description": "How it is.", "parameters": SCHEMA, "strict": False}
TIME = {"type": "function", "name": "time", "strict": True}
OTHERS = [
    {"type": "local_shell"},
    {"type": "web_search", "search_context_size": "medium"},
    {"type": "mcp", "name": 5, "parameters": []},
    {"type": "tool_search", "execution": "client"},
]
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edits.",
    "format": {"type": "grammar", "definition": "start: /x/"},
}
DOCS = {"type": "namespace", "name": "mcp__docs", "tools": [WEATHER, {"type": "web_search"}]}
TOOLS = [OTHERS[0], WEATHER, *OTHERS[1:], TIME]
NAMED = {"type": "function", "name": "time"}


async def post(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(engine) as client:
        return await client.post("/v1/responses", json={"input": "hi", **body})


async def request_of(**body: Any) -> GenerateRequest:
    """Return the request that reaches the engine."""
    engine = FakeEngine()
    reply = await post(engine, **body)
    assert reply.status_code == 200, reply.text
    return engine.requests[0]


async def prompt_of(**body: Any) -> ChatPrompt:
    prompt = (await request_of(**body)).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


async def test_functions_reach_the_engine_and_tools_of_other_types_are_dropped() -> None:
    prompt = await prompt_of(tools=TOOLS)
    weather = Tool(name="weather", description="How it is.", parameters=SCHEMA)
    assert prompt.tools == (weather, Tool(name="time", strict=True))
    assert (prompt.tool_choice, prompt.tool_name, prompt.parallel_tool_calls) == ("auto", None, True)


async def test_tools_that_take_a_text_and_namespaces_are_functions_for_the_model() -> None:
    prompt = await prompt_of(tools=[TIME, PATCH, DOCS])
    time, patch, weather = prompt.tools
    assert (time.name, patch.name, weather.name) == ("time", "patch", "mcp__docs__weather")
    assert patch.description == "Edits.\n\n`input` matches this grammar:\nstart: /x/"
    assert (patch.parameters or {})["required"] == ["input"]
    assert weather.parameters == SCHEMA
    chosen = await prompt_of(tools=[TIME, PATCH, DOCS], tool_choice={"type": "custom", "name": "patch"})
    assert (chosen.tool_choice, chosen.tool_name) == ("required", "patch")


async def test_tools_of_which_none_can_be_called_may_be_there_where_none_shall_be() -> None:
    assert (await prompt_of(tools=OTHERS, tool_choice="none")).tools == ()


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": [*tools, {"type": "web_search"}]}


BOTH = ["weather", "time"]
CHOICES: list[tuple[Any, tuple[str, str | None, list[str]]]] = [
    ("none", ("none", None, BOTH)),
    ("auto", ("auto", None, BOTH)),
    ("required", ("required", None, BOTH)),
    (NAMED, ("required", "time", BOTH)),
]


@pytest.mark.parametrize(("choice", "expected"), CHOICES, ids=str)
async def test_the_choice_among_tools_reaches_the_engine(choice: Any, expected: tuple[Any, ...]) -> None:
    prompt = await prompt_of(tools=TOOLS, tool_choice=choice)
    assert (prompt.tool_choice, prompt.tool_name, [tool.name for tool in prompt.tools]) == expected


@pytest.mark.parametrize(("mode", "names"), [("auto", ["time"]), ("required", ["time"]), ("auto", [])])
async def test_allowed_tools_may_be_called_and_the_model_sees_all(mode: str, names: list[str]) -> None:
    prompt = await prompt_of(tools=TOOLS, tool_choice=allowed(mode, *[NAMED] * len(names)))
    assert (prompt.tool_choice, prompt.allowed_tools) == (mode, tuple(names))
    assert [tool.name for tool in prompt.tools] == BOTH
    assert [tool.name for tool in prompt.callable_tools] == names


async def test_calls_can_be_limited_to_one() -> None:
    assert (await prompt_of(tools=TOOLS, parallel_tool_calls=False)).parallel_tool_calls is False


async def test_sampling_reaches_the_engine() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3}
    params = (await request_of(**fields, max_output_tokens=7)).params
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.max_tokens, params.n) == (7, 1)


async def test_more_tokens_than_the_context_has_room_for_are_not_refused() -> None:
    asked = await request_of(max_output_tokens=32_000)
    assert (asked.params.max_tokens, asked.clip_max_tokens) == (32_000, True)


async def test_sampling_that_is_left_out_is_openais() -> None:
    params = (await request_of(temperature=None)).params
    assert (params.temperature, params.top_p, params.max_tokens, params.structured_outputs) == (1.0, 1.0, None, None)


FORMATS: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, StructuredOutputs(json_object=True)),
    ({"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, StructuredOutputs(json=SCHEMA)),
    ({"type": "json_schema", "name": "n", "schema": {}}, StructuredOutputs(json={}, strict=False)),
    ({"type": "json_object", "schema": SCHEMA}, StructuredOutputs(json=SCHEMA | {"type": "object"}, strict=False)),
    ({"type": "json_object", "whitespace": "any"}, StructuredOutputs(json_object=True, whitespace="any")),
]


@pytest.mark.parametrize(("wanted", "expected"), FORMATS, ids=str)
async def test_the_format_of_the_text_reaches_the_engine(
    wanted: dict[str, Any], expected: StructuredOutputs | None
) -> None:
    assert (await request_of(text={"format": wanted, "verbosity": "low"})).params.structured_outputs == expected


SWITCHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"reasoning": {"effort": None, "summary": "auto"}}, {}),
    ({"reasoning": {"effort": "none"}}, {"enable_thinking": False}),
    ({"reasoning": {"effort": "high"}}, {"enable_thinking": True, "reasoning_effort": "high"}),
    ({"chat_template_kwargs": {"enable_thinking": False, "x": [1]}}, {"enable_thinking": False, "x": [1]}),
]


@pytest.mark.parametrize(("body", "variables"), SWITCHES, ids=str)
async def test_reasoning_is_switched_by_variables_of_the_template(
    body: dict[str, Any], variables: dict[str, Any]
) -> None:
    assert (await prompt_of(**body)).template_kwargs == variables


async def test_a_budget_of_thinking_reaches_the_engine() -> None:
    assert (await request_of(thinking_token_budget=5)).params.thinking_token_budget == 5
    assert (await request_of()).params.thinking_token_budget is None


WITHOUT_EFFECT: dict[str, Any] = {
    "store": True,
    "include": ["reasoning.encrypted_content"],
    "user": "u",
    "metadata": {"a": "b"},
    "truncation": "auto",
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "max_tool_calls": 3,
    "stream_options": {"include_obfuscation": False},
    "background": False,
    "top_logprobs": 0,
    "previous_response_id": None,
    "conversation": None,
    "client_metadata": {"newer": ["than", "this", "server"]},
    "text": {"verbosity": "low", "newer": 1},
    "reasoning": {"summary": "detailed", "newer": 1},
    "tools": [WEATHER | {"newer": 1}],
}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
async def test_other_fields_of_openai_and_unknown_ones_have_no_effect(name: str) -> None:
    tools = {"tools": [WEATHER]}
    assert await request_of(**tools | {name: WITHOUT_EFFECT[name]}) == await request_of(**tools)


STATEFUL: dict[str, Any] = {"previous_response_id": "resp_1", "conversation": {"id": "conv_1"}}


@pytest.mark.covers("structured-tools-agents/stateless")
@pytest.mark.parametrize("name", STATEFUL)
async def test_what_needs_state_is_400_and_says_to_send_the_whole_input(name: str) -> None:
    reply = await post(FakeEngine(), **{name: STATEFUL[name]})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, name)
    assert "the whole conversation as `input`" in error["message"]
    assert "whole conversation as `input`" in error["message"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"background": True}, "unsupported_value", "background"),
    ({"prompt": {"id": "p"}}, "unsupported_value", "prompt"),
    ({"top_logprobs": 2}, "unsupported_value", "top_logprobs"),
    ({"truncation": "maybe"}, "unsupported_value", "truncation"),
    ({"max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
    ({"temperature": -1}, "decimal_below_min_value", "temperature"),
    ({"top_p": -0.1}, "decimal_below_min_value", "top_p"),
    ({"mirostat": 2}, "unsupported_value", "mirostat"),
    ({"min_p": 2}, "decimal_above_max_value", "min_p"),
    ({"seed": "x"}, "invalid_type", "seed"),
    ({"instructions": ["x"]}, "invalid_type", "instructions"),
    ({"metadata": {"a": 1}}, "invalid_type", "metadata"),
    ({"reasoning": {"effort": ""}}, "empty_string", "reasoning.effort"),
    ({"reasoning": {"effort": "x" * 21}}, "string_above_max_length", "reasoning.effort"),
    ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "invalid_value", "text.format"),
    ({"tools": [TIME, TIME]}, "invalid_value", "tools[1].name"),
    ({"tools": [OTHERS[0], TIME | {"name": "a b"}]}, "invalid_value", "tools[1].name"),
    ({"tools": [{"type": "function"}]}, "missing_field", "tools[0].name"),
    ({"tools": [TIME | {"parameters": []}]}, "invalid_type", "tools[0].parameters"),
    ({"tools": [{"name": "time"}]}, "missing_field", "tools[0].type"),
    ({"tools": [TIME] * 257}, "array_above_max_length", "tools"),
    ({"tools": [TIME], "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
    ({"tools": [TIME], "tool_choice": ""}, "invalid_value", "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": NAMED}, "invalid_value", "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {}}, "missing_field", "tool_choice.type"),
    ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "unsupported_value", "tool_choice.type"),
    ({"tools": [WEATHER], "tool_choice": allowed("auto", NAMED)}, "invalid_value", "tool_choice.tools[0].name"),
    ({"tools": [WEATHER], "tool_choice": allowed("maybe")}, "invalid_type", "tool_choice.mode"),
    ({"tools": [WEATHER], "tool_choice": allowed("required")}, "conflicting_fields", "tool_choice"),
    ({"tools": OTHERS}, "unsupported_value", "tools[0].type"),
    ({"tools": [TIME, {"type": "custom"}]}, "missing_field", "tools[1].name"),
    ({"tools": [TIME, DOCS | {"tools": [{"type": "function"}]}]}, "missing_field", "tools[1].tools[0].name"),
    ({"tools": [TIME, DOCS | {"tools": [{"name": "x"}]}]}, "missing_field", "tools[1].tools[0].type"),
]


@pytest.mark.parametrize(("body", "code", "param"), WRONG, ids=lambda value: str(value)[:60])
async def test_wrong_values_are_400_and_name_the_field(body: dict[str, Any], code: str, param: str) -> None:
    engine = FakeEngine()
    reply = await post(engine, **body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
    assert f"`{param}" in error["message"]
    assert engine.requests == []


async def test_an_input_that_is_too_long_is_400() -> None:
    reply = await post(FakeEngine(), input="x" * 600)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")


async def test_tokens_of_an_input_are_counted_as_the_response_counts_them() -> None:
    body: dict[str, Any] = {"input": "How?", "instructions": "Be kind.", "tools": [WEATHER]}
    async with client_of(FakeEngine()) as client:
        counted = await client.post("/v1/responses/input_tokens", json=body)
        answered = await client.post("/v1/responses", json=body)
        wrong = await client.post("/v1/responses/input_tokens", json=body | {"input": [{"type": "input_text"}]})
    num_tokens = answered.json()["usage"]["input_tokens"]
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": num_tokens}
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input[0].type")


async def test_another_model_is_404() -> None:
    reply = await post(FakeEngine(), model="other")
    assert (reply.status_code, reply.json()["error"]["param"]) == (404, "model")


FORMAT = {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}
REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("structured_outputs", FORMAT, "text.format"),
    ("structured_outputs", FORMAT | {"tools": [TIME]}, "text.format"),
    ("structured_outputs", {"tools": [TIME]}, "tools"),
    ("tools", {"tools": [TIME]}, "tools"),
    ("tool_choice", {"tools": [TIME]}, "tool_choice"),
    ("messages", {}, "input"),
    ("prompt", {}, "input"),
    ("max_tokens", {}, "max_output_tokens"),
    ("chat_template_kwargs", {}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("param", "body", "expected"), REFUSALS)
async def test_what_the_engine_refuses_is_400_by_the_clients_name(
    param: str, body: dict[str, Any], expected: str
) -> None:
    engine = FakeEngine()
    engine.refusal = InvalidRequestError("`json` cannot be kept.", param=param)
    reply = await post(engine, **body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, expected)
    if param == "structured_outputs":
        assert "`json`" not in error["message"]


@pytest.mark.parametrize("path", ["/v1/responses/resp_1", "/v1/responses/resp_1/cancel"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_there_is_nothing_to_fetch_later(client: httpx.AsyncClient, method: str, path: str) -> None:
    assert (await client.request(method, path)).status_code == 404


async def test_every_field_that_the_openai_client_can_send_is_documented(client: httpx.AsyncClient) -> None:
    kinds = (
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    )
    sendable = {name for kind in kinds for name in get_type_hints(kind)}
    operation = (await client.get("/schema/openapi.json")).json()["paths"]["/v1/responses"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert len(sendable) >= 20
    assert sendable - set(body["properties"]) == set()
    assert set(operation["responses"]) == {"200", "400", "404", "413", "500", "503"}


NAMES = st.sampled_from(
    ["type", "role", "content", "name", "call_id", "arguments", "output", "summary", "format", "text"]
)
WORDS = st.sampled_from(
    ["message", "user", "function_call", "function_call_output", "reasoning", "function", "input_text", "json_schema"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)
FIELDS = [field.name for field in msgspec.structs.fields(ResponsesBody)]


@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.sampled_from(["input", "tools", "tool_choice"]), JSON
)
def test_any_body_is_taken_or_refused(fields: dict[str, Any], name: str, value: object) -> None:
    with suppress(ApiError):
        body = decode_body(json.dumps({"input": "hi", **fields, name: value}).encode(), ResponsesBody)
        responses_request(resolved_body(body, ItemStore(), owner=None), served_model="m")


@pytest.mark.parametrize(("depth", "status"), [(100, 200), (300, 200), (5000, 400)])
@pytest.mark.parametrize("streams", [False, True])
async def test_nesting_is_taken_or_400_where_it_is_too_deep(depth: int, status: int, *, streams: bool) -> None:
    nested = "[" * depth + "]" * depth
    fields = f'"tools": [{{"type": "function", "name": "f", "parameters": {{"x": {nested}}}}}], "metadata": {{}}'
    async with client_of(FakeEngine()) as client:
        body = f'{{"input": "hi", "stream": {str(streams).lower()}, {fields}}}'
        reply = await client.post("/v1/responses", content=body)
    assert reply.status_code == status
    assert "internal_error" not in reply.text

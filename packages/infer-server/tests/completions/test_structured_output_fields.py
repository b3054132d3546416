"""The fields for structured output: what reaches the engine, and what is refused by the client's own name for it."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import FinishReason, InvalidRequestError, StructuredOutputs
from infer_proofs.server import FakeEngine, Script
from infer_proofs.server.client import client_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def post(client: httpx.AsyncClient, route: str, **fields: Any) -> httpx.Response:
    return await client.post(route, json=BODIES[route] | fields)


def error_of(reply: httpx.Response) -> dict[str, Any]:
    (error,) = reply.json().values()
    return dict(error)


FIELDS: list[tuple[dict[str, Any], StructuredOutputs]] = [
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputs(json=SCHEMA)),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
        StructuredOutputs(json=SCHEMA, whitespace_pattern=" "),
    ),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
    ({"structured_outputs": {"regex": "a+", "json": None}}, StructuredOutputs(regex="a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=("a", "b"))),
    ({"structured_outputs": {"grammar": "root ::= [a]"}}, StructuredOutputs(grammar="root ::= [a]")),
    ({"structured_outputs": {"structural_tag": {"triggers": []}}}, StructuredOutputs(structural_tag={"triggers": []})),
    ({"grammar": "root ::= [a]"}, StructuredOutputs(grammar="root ::= [a]")),
    ({"json_schema": SCHEMA}, StructuredOutputs(json=SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA, "whitespace": "any"}}, StructuredOutputs(json=SCHEMA, whitespace="any")),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "disable_fallback": True}},
        StructuredOutputs(json=SCHEMA, whitespace="compact"),
    ),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}}, StructuredOutputs(json=SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA, "strict": False}}, StructuredOutputs(json=SCHEMA, strict=False)),
    ({"guided_json": SCHEMA}, StructuredOutputs(json=SCHEMA)),
    ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
    ({"guided_choice": ["a", "b"]}, StructuredOutputs(choice=("a", "b"))),
    ({"guided_grammar": "root ::= [a]"}, StructuredOutputs(grammar="root ::= [a]")),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
        StructuredOutputs(json=SCHEMA, whitespace_pattern=" ?"),
    ),
    ({"guided_regex": "a+", "guided_whitespace_pattern": " ?"}, StructuredOutputs(regex="a+")),
]  # fmt: skip


@pytest.mark.covers("structured-tools-agents/structured-outputs", "structured-tools-agents/guided")
@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(("fields", "wanted"), FIELDS, ids=lambda each: str(each)[:40])
async def test_what_is_asked_for_reaches_the_engine(
    own_client: httpx.AsyncClient, engine: FakeEngine, route: str, fields: dict[str, Any], wanted: StructuredOutputs
) -> None:
    assert (await post(own_client, route, **fields)).status_code == 200
    assert engine.requests[0].params.structured_outputs == wanted


FORMATS: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, StructuredOutputs(json_object=True, strict=False)),
    ({"type": "json_object", "schema": {}}, StructuredOutputs(json_object=True, strict=False)),
    ({"type": "json_object", "whitespace": "any"}, StructuredOutputs(json_object=True, strict=False, whitespace="any")),
    ({"type": "json_object", "schema": SCHEMA}, StructuredOutputs(json=SCHEMA, strict=False)),
    (
        {"type": "json_object", "schema": {"properties": {"a": {}}}},
        StructuredOutputs(json={"type": "object", "properties": {"a": {}}}, strict=False),
    ),
    ({"type": "json_schema", "schema": SCHEMA}, StructuredOutputs(json=SCHEMA, strict=False)),
    ({"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}, StructuredOutputs(json=SCHEMA)),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        StructuredOutputs(json=SCHEMA, strict=False),
    ),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True, "description": "d"}},
        StructuredOutputs(json=SCHEMA),
    ),
]


@pytest.mark.covers("structured-tools-agents/response-format")
@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(("response_format", "wanted"), FORMATS, ids=lambda each: str(each)[:40])
async def test_openais_response_format(
    own_client: httpx.AsyncClient,
    engine: FakeEngine,
    route: str,
    response_format: Any,
    wanted: StructuredOutputs | None,
) -> None:
    assert (await post(own_client, route, response_format=response_format)).status_code == 200
    assert engine.requests[0].params.structured_outputs == wanted


WRONG: list[tuple[dict[str, Any], str, str, str]] = [
    ({"structured_outputs": {}}, "conflicting_fields", "structured_outputs", "exactly one"),
    (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "conflicting_fields",
        "structured_outputs",
        "`regex`, `choice`",
    ),
    ({"structured_outputs": {"json_object": False}}, "invalid_value", "structured_outputs", "`json_object`"),
    ({"structured_outputs": {"choice": []}}, "invalid_value", "structured_outputs", "`choice`"),
    ({"structured_outputs": {"regex": "a" * 65_537}}, "string_above_max_length", "structured_outputs", "65537"),
    ({"grammar": ""}, "invalid_value", "grammar", "`grammar`"),
    ({"grammar": "root ::= [a]", "json_schema": {}}, "conflicting_fields", "json_schema", "only one"),
    ({"grammar": "root ::= [a]", "structured_outputs": {"regex": "a"}}, "conflicting_fields", "grammar", "only one"),
    ({"grammar": "root ::= [a]", "guided_regex": "a"}, "conflicting_fields", "grammar", "only one"),
    ({"guided_choice": []}, "invalid_value", "guided_choice", "`choice`"),
    ({"guided_whitespace_pattern": ""}, "invalid_value", "guided_whitespace_pattern", "`whitespace_pattern`"),
]


@pytest.mark.covers("structured-tools-agents/structured-outputs")
@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(("fields", "code", "param", "says"), WRONG, ids=lambda each: str(each)[:40])
async def test_wrong_values_are_refused_by_name(
    client: httpx.AsyncClient, route: str, fields: dict[str, Any], code: str, param: str, says: str
) -> None:
    reply = await post(client, route, **fields)
    error = error_of(reply)
    assert (reply.status_code, error["code"], error["param"]) == (400 if route == CHAT else 422, code, param)
    assert says in error["message"]


@pytest.mark.parametrize(
    "response_format",
    [
        {},
        {"type": "xml"},
        {"type": "text", "schema": {"type": "object"}},
        {"type": "json_object", "json_schema": {"schema": {}}},
        {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": "{}"}},
    ],
    ids=str,
)
async def test_other_response_formats_are_refused(client: httpx.AsyncClient, response_format: Any) -> None:
    reply = await post(client, CHAT, response_format=response_format)
    assert reply.status_code == 400
    assert "response_format" in error_of(reply)["message"] or error_of(reply)["code"] == "missing_field"


@pytest.mark.parametrize(
    ("fields", "param", "begins"),
    [
        ({"grammar": "root ::= [a]"}, "grammar", "`grammar`"),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs", "`structured_outputs`"),
        ({"json_schema": SCHEMA}, "json_schema", "`json_schema`"),
        ({"guided_json": SCHEMA}, "guided_json", "`guided_json`"),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "response_format",
            "`response_format.schema`",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "response_format",
            "`response_format.json_schema.schema`",
        ),
    ],
)
async def test_the_engines_refusal_names_the_clients_field(
    own_client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str, begins: str
) -> None:
    engine.refusal = InvalidRequestError(
        "`json`: `foo` is not known", param="structured_outputs", code="invalid_json_schema"
    )
    reply = await post(own_client, CHAT, **fields)
    error = error_of(reply)
    assert (reply.status_code, error["param"], error["code"]) == (400, param, "invalid_json_schema")
    assert error["message"] == f"{begins}: `foo` is not known"


async def test_a_complete_grammar_is_openais_stop_and_named_in_our_own_field() -> None:
    async with client_of(FakeEngine(Script(finish_reason=FinishReason.GRAMMAR))) as client:
        chat = (await post(client, CHAT)).json()
        assert chat["choices"][0]["finish_reason"] == "stop"
        events = (await post(client, COMPLETIONS, stream=True)).text
        assert '"finish_reason":"grammar"' in events

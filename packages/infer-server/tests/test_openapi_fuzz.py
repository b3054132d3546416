"""The OpenAPI document is true: whatever fits it, and whatever does not, is answered as it says, by every route."""

import re
from typing import Any

import msgspec
import schemathesis
from hypothesis import settings
from schemathesis.checks import CheckContext, CheckFunction
from schemathesis.specs.openapi.checks import positive_data_acceptance

from infer_server import ServerSettings, create_app
from infer_server.testing import FakeEngine, sse_events

Case = schemathesis.Case[Any]
KEY = {"Authorization": "Bearer secret"}
MAX_ERROR_BYTES = 1024
# Codes, and the fields that they blame, of what no schema can say: how fields depend on each other and on the model.
BEYOND_SCHEMAS = re.compile(
    r"""
      context_length_exceeded\ (max_tokens|prompt|messages)
    | model_not_found\ model
    | invalid_value\ (prompt|tokens)               # a token id outside the vocabulary, or a prompt too long for 64 bits
    | invalid_value\ (min_tokens|max_tokens)       # beyond one another
    | invalid_value\ (stream_options|top_logprobs) # nothing without `stream`, `logprobs`
    | invalid_value\ (messages|add_\w+)            # `messages` beside `prompt`, and what is for one of them only
    | missing_field\ prompt                        # and no `messages`
    | unsupported_value\ best_of                   # not the value of `n`
    """,
    re.VERBOSE,
)


class Refusal(msgspec.Struct, forbid_unknown_fields=True):
    """The error object, with nothing beside it."""

    class Error(msgspec.Struct, forbid_unknown_fields=True):
        message: str
        type: str
        param: str | None
        code: str

    error: Error


def is_an_error_object_if_no_success(_: CheckContext, response: schemathesis.Response, __: Case) -> None:
    if response.status_code >= 300:
        assert response.headers.get("content-type") == ["application/json"]
        assert len(response.content) <= MAX_ERROR_BYTES
        assert msgspec.json.decode(response.content, type=Refusal, strict=True).error.message
    assert len(response.headers["x-request-id"]) == 1


def is_refused_only_for_what_no_schema_says(_: CheckContext, response: schemathesis.Response, case: Case) -> None:
    fits = case.meta is not None and case.meta.generation.mode.is_positive
    if fits and response.status_code in (400, 422):
        error = response.json()["error"]
        assert BEYOND_SCHEMAS.fullmatch(f"{error['code']} {error['param']}"), error


def is_a_whole_stream(_: CheckContext, response: schemathesis.Response, __: Case) -> None:
    if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        *events, last = sse_events(response.text)
        assert last == (None, "[DONE]")
        assert all("choices" in chunk for _, chunk in events)


CHECKS: list[CheckFunction] = [
    is_an_error_object_if_no_success,
    is_refused_only_for_what_no_schema_says,
    is_a_whole_stream,
]


def with_plain_integers(context: schemathesis.HookContext, body: object) -> object:
    """Write 1.0 as 1: JSON Schema takes both for integers, and the server does not."""
    match body:
        case float() if body.is_integer():
            return int(body)
        case list():
            return [with_plain_integers(context, item) for item in body]
        case dict():
            return {name: with_plain_integers(context, value) for name, value in body.items()}
        case _:
            return body


def schema_of(settings: ServerSettings) -> schemathesis.BaseSchema:
    config = schemathesis.Config.from_dict({"max-stream-events": 1000})
    app = create_app(FakeEngine(), settings=settings)
    schema = schemathesis.openapi.from_asgi("/schema/openapi.json", app, config=config, headers=KEY)
    schema.hook("map_body")(with_plain_integers)
    return schema


OPEN = schema_of(ServerSettings(access_log=False))
GUARDED = schema_of(ServerSettings(access_log=False, api_key=("secret",)))


@OPEN.parametrize()
def test_route_answers_as_documented(case: Case) -> None:
    case.call_and_validate(excluded_checks=[positive_data_acceptance], additional_checks=CHECKS)


@OPEN.include(path_regex="completions").parametrize()
@settings(max_examples=50)
def test_route_answers_who_likes_events_as_documented(case: Case) -> None:
    likes_events = {"Accept": "text/event-stream"}
    case.call_and_validate(headers=likes_events, excluded_checks=[positive_data_acceptance], additional_checks=CHECKS)


@GUARDED.parametrize()
@settings(max_examples=20)
def test_route_with_a_key_answers_as_documented(case: Case) -> None:
    case.call_and_validate(headers=KEY, excluded_checks=[positive_data_acceptance], additional_checks=CHECKS)


@GUARDED.parametrize()
@settings(max_examples=20)
def test_route_without_a_key_answers_as_documented(case: Case) -> None:
    response = case.call_and_validate(excluded_checks=[positive_data_acceptance], additional_checks=CHECKS)
    is_open = case.operation.path in ("/health", "/ready", "/metrics")
    assert (response.status_code == 401) is not is_open

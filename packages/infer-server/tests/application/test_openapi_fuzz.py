"""The OpenAPI document is true: every route answers valid and invalid requests as documented."""

import re
from typing import Any, Literal

import msgspec
import pytest
import schemathesis
from hypothesis import Phase, settings
from schemathesis.checks import CheckContext, CheckFunction
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from infer_proofs.server import FakeEngine, sse_events
from infer_server import ServerSettings, create_app
from infer_server.api.foreign_fields import ForeignFields
from infer_server.openapi import other_names
from infer_server.probe_paths import PROBE_PATHS

Case = schemathesis.Case[Any]
KEY = {"Authorization": "Bearer secret"}
MAX_ERROR_BYTES = 1024
# Error codes and their fields for what no schema can say: how fields depend on each other and on the model.
BEYOND_SCHEMAS = re.compile(
    r"""
      context_length_exceeded\ (max_tokens|prompt|messages|input)
    | model_not_found\ model
    | invalid_value\ (prompt|tokens)               # a token id outside the vocabulary, or a prompt too long for 64 bits
    | (conflicting_fields|integer_below_min_value)\ (min_tokens|max_tokens|max_completion_tokens|n_predict)  # or 0
    | (invalid_value|conflicting_fields)\ (stream_options|top_logprobs) # without `stream`, `logprobs`
    | (invalid_value|conflicting_fields)\ (messages|add_\w+|chat_template_kwargs|documents)  # or `prompt`
    | missing_field\ prompt                        # and no `messages`
    | (conflicting_fields|invalid_\w+)\ (guided_\w+|structured_outputs|grammar|json_schema|response_format)
    | unsupported_value\ response_format\.format   # tags with more than schemas
    | unknown_field\ [\s\S]*                       # in `extra_body`
    | unsupported_value\ best_of                   # not the value of `n`
    | (conflicting_fields|unsupported_value|invalid_value)\ (suffix|echo)  # of token ids, and both
    | (invalid_value|conflicting_fields)\ (allowed_token_ids|bad_words)  # nothing is left
    | unsupported_value\ (repeat_last_n|penalty_last_n|repetition_penalty_range|rep_pen_range)  # beside a penalty
    | (missing_field|invalid_value|invalid_type)\ messages\[\d+\]\.\S+  # fields that belong to one role, or miss there
    | unsupported_value\ (tools\[0\]|tool_choice)\.type  # nothing that can be called
    | (invalid_value|invalid_json_schema|conflicting_fields)\ (tools\S*|tool_choice)  # of one name, or none
    | unsupported_value\ ((messages|input)\[\d+\]|prediction)\.(content|output)\[\d+\](\.type)?  # parts of answers
    | (invalid_value|conflicting_fields)\ (continue_final_message|add_generation_prompt)  # no message to continue
    | (invalid_value|missing_field|conflicting_fields)\ function(s|_call)\S*  # beside `tools`
    | empty_prompt\ input                         # no item that counts
    | (previous_response|item)_not_found\ \S+     # of another server, or before a restart
    | missing_field\ (input|tool_choice)\S*       # fields that belong to one type
    | invalid_value\ text\.format                # a schema that is missing
    | invalid_value\ tool_choice\.\S+            # none of the tools
    # Messages, whose errors have no codes: the field that is named first
    | not_found_error\ \S+                         # another model
    | invalid_request_error\ (messages\S*|system\[\d+\]\.\w+|tools\S*|tool_choice\S*|output_\S+|None)
    """,
    re.VERBOSE,
)
OTHER_NAMES = re.compile(  # beside the field that they mean
    f"(conflicting_fields|invalid_value|invalid_request_error) ({'|'.join(other_names(ForeignFields))})"
)


class ErrorReply(msgspec.Struct, forbid_unknown_fields=True):
    """The error object, with nothing beside it."""

    class Error(msgspec.Struct, forbid_unknown_fields=True):
        message: str
        type: str
        param: str | None
        code: str

    error: Error


class MessagesErrorReply(msgspec.Struct, forbid_unknown_fields=True):
    """The same of routes under `/v1/messages`."""

    class Error(msgspec.Struct, forbid_unknown_fields=True):
        type: str
        message: str

    type: Literal["error"]
    error: Error
    request_id: str


def speaks_messages(case: Case) -> bool:
    path: str = case.operation.path
    return path.startswith("/v1/messages")


def is_an_error_object_unless_it_succeeds(_: CheckContext, response: schemathesis.Response, case: Case) -> None:
    if response.status_code >= 300:
        assert response.headers.get("content-type") == ["application/json"]
        assert len(response.content) <= MAX_ERROR_BYTES
        kind: type[ErrorReply | MessagesErrorReply] = MessagesErrorReply if speaks_messages(case) else ErrorReply
        assert msgspec.json.decode(response.content, type=kind, strict=True).error.message
    assert len(response.headers["x-request-id"]) == 1


def is_refused_only_for_what_no_schema_says(_: CheckContext, response: schemathesis.Response, case: Case) -> None:
    fits = case.meta is not None and case.meta.generation.mode.is_positive
    if fits and response.status_code in (400, 422):
        error = response.json()["error"]
        words = words_for(error, case)
        assert OTHER_NAMES.fullmatch(words) or BEYOND_SCHEMAS.fullmatch(words), error


def words_for(error: dict[str, Any], case: Case) -> str:
    """Return the code of an error and its field."""
    if speaks_messages(case):
        field = re.match(r"`(\S+)`", error["message"])
        return f"{error['type']} {field[1] if field else None}"
    return f"{error['code']} {error['param']}"


def is_a_whole_stream(_: CheckContext, response: schemathesis.Response, case: Case) -> None:
    if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        *events, last = sse_events(response.text)
        if speaks_messages(case):
            assert last == ("message_stop", {"type": "message_stop"})
            return
        if case.operation.path == "/v1/responses":
            assert last[0] == last[1]["type"] == "response.completed"
            assert [data["sequence_number"] for _, data in [*events, last]] == list(range(len(events) + 1))
            return
        if case.operation.path == "/infill":
            assert [data["stop"] for _, data in [*events, last]] == [False] * len(events) + [True]
            return
        assert last == (None, "[DONE]")
        assert all("choices" in chunk for _, chunk in events)


CHECKS: list[CheckFunction] = [
    is_an_error_object_unless_it_succeeds,
    is_refused_only_for_what_no_schema_says,
    is_a_whole_stream,
]


def with_plain_integers(context: schemathesis.HookContext, body: object) -> object:
    """Replace 1.0 by 1: both are integers for JSON Schema, but not for the server."""
    match body:
        case float() if body.is_integer():
            return int(body)
        case list():
            return [with_plain_integers(context, item) for item in body]
        case dict():
            return {name: with_plain_integers(context, value) for name, value in body.items()}
        case _:
            return body


def schema_of(server_settings: ServerSettings, *, with_edge_values: bool = False) -> schemathesis.BaseSchema:
    """Return the routes' schema; drawn requests come after thousands with each field's edge values, if asked for."""
    options = {"max-stream-events": 50_000, "phases": {"coverage": {"enabled": with_edge_values}}}
    config = schemathesis.Config.from_dict(options)
    app = create_app(FakeEngine(), settings=server_settings)
    schema = schemathesis.openapi.from_asgi("/schema/openapi.json", app, config=config, headers=KEY)
    schema.hook("map_body")(with_plain_integers)
    return schema


def share_of_examples(share: float) -> settings:
    """Return settings with this share of the profile's examples."""
    return settings(max_examples=max(1, int(settings().max_examples * share)))


OPEN = schema_of(ServerSettings(access_log=False))
GUARDED = schema_of(ServerSettings(access_log=False, api_key=("secret",)))


@pytest.mark.covers("http/openapi")
@OPEN.parametrize()
def test_route_answers_as_documented(case: Case) -> None:
    case.call_and_validate(excluded_checks=[positive_data_acceptance], additional_checks=CHECKS)


@pytest.fixture
def with_edge_values(request: pytest.FixtureRequest) -> schemathesis.BaseSchema:
    # schemathesis 4.32 names its subtests by it; pytest 9.2 has it no more
    request.node._nodeid = request.node.nodeid  # noqa: SLF001
    return schema_of(ServerSettings(access_log=False), with_edge_values=True)


@pytest.mark.full
@schemathesis.pytest.from_fixture("with_edge_values").parametrize()
@settings(phases=[Phase.explicit])
def test_route_answers_every_edge_value_as_documented(case: Case) -> None:
    # These routes have the bodies of others, and pass over what is not about the prompt.
    of_prompt = case.operation.path.endswith(("/render", "/apply-template", "/input_tokens", "/count_tokens"))
    others = [negative_data_rejection] if of_prompt else []
    case.call_and_validate(excluded_checks=[positive_data_acceptance, *others], additional_checks=CHECKS)


@OPEN.include(path_regex="completions|responses").parametrize()
def test_route_answers_who_likes_events_as_documented(case: Case) -> None:
    accepts_events = {"Accept": "text/event-stream"}
    case.call_and_validate(headers=accepts_events, excluded_checks=[positive_data_acceptance], additional_checks=CHECKS)


@pytest.mark.full
@GUARDED.parametrize()
@share_of_examples(1 / 10)
def test_route_with_a_key_answers_as_documented(case: Case) -> None:
    case.call_and_validate(headers=KEY, excluded_checks=[positive_data_acceptance], additional_checks=CHECKS)


@GUARDED.parametrize()
@share_of_examples(1 / 10)
def test_route_without_a_key_answers_as_documented(case: Case) -> None:
    response = case.call_and_validate(excluded_checks=[positive_data_acceptance], additional_checks=CHECKS)
    is_open = case.operation.path in PROBE_PATHS
    assert (response.status_code == 401) is not is_open

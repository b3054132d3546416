"""What `/v1/completions` refuses: the status, the code, the name of the field, and a helpful message."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import EmptyPromptError, EngineUnavailableError, QueueFullError, RequestFailure
from infer_proofs.server import FakeEngine, Script
from infer_proofs.server.client import client_of
from infer_server import ServerSettings


def error_of(reply: httpx.Response) -> Any:
    """Return the error object, after checking that it is one."""
    (error,) = reply.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert 10 < len(error["message"]) <= 500
    assert reply.headers["x-request-id"]
    return error


WRONG_TYPES = [
    ({"prompt": "x", "max_tokens": "5"}, "max_tokens"),
    ({"prompt": "x", "max_tokens": 1.5}, "max_tokens"),
    ({"prompt": "x", "max_tokens": True}, "max_tokens"),
    ({"prompt": "x", "temperature": "1"}, "temperature"),
    ({"prompt": "x", "stream": 1}, "stream"),
    ({"prompt": "x", "stop": 3}, "stop"),
    ({"prompt": "x", "stop_token_ids": [True]}, "stop_token_ids[0]"),
    ({"prompt": "x", "logit_bias": {"1": "2"}}, "logit_bias"),
    ({"prompt": "x", "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": ["x", 1]}, "prompt"),
    ({"prompt": [[1, 2], "x"]}, "prompt"),
    ({"prompt": [1, True]}, "prompt[1]"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 7, "bogus": 1}, "prompt"),
    ({"stream_options": {"bogus": 1}, "prompt": {}}, "prompt"),
]


@pytest.mark.covers("http/strict-types", "http/error-wrong-type")
@pytest.mark.parametrize(("body", "param"), WRONG_TYPES)
async def test_wrong_type_is_400_and_names_the_field(client: httpx.AsyncClient, body: object, param: str) -> None:
    reply = await client.post("/v1/completions", json=body)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == param
    assert error_of(reply)["code"] == "invalid_type"


@pytest.mark.covers("http/error-missing-field")
@pytest.mark.parametrize("body", [{}, {"model": "fake-model"}, {"bogus": 1}])
async def test_missing_prompt_is_400_before_anything_else(client: httpx.AsyncClient, body: object) -> None:
    reply = await client.post("/v1/completions", json=body)
    assert (reply.status_code, error_of(reply)["code"], error_of(reply)["param"]) == (400, "missing_field", "prompt")


@pytest.mark.covers("http/error-empty-prompt")
@pytest.mark.parametrize("prompt", [[], [[]], [[1], []]])
async def test_empty_prompt_is_400_before_anything_else(client: httpx.AsyncClient, prompt: object) -> None:
    reply = await client.post("/v1/completions", json={"prompt": prompt, "model": "other", "temperature": -1})
    assert (reply.status_code, error_of(reply)["code"]) == (400, "empty_prompt")


@pytest.mark.parametrize("prompt", ["", [""], ["a", ""]])
async def test_an_empty_text_may_have_a_beginning_and_is_the_engines_to_refuse(
    engine: FakeEngine, prompt: object
) -> None:
    async with client_of(engine) as client:
        reply = await client.post("/v1/completions", json={"prompt": prompt})
    assert reply.status_code == 200
    assert [request.prompt for request in engine.requests] == ([prompt] if prompt == "" else prompt)


OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": -2}, "integer_below_min_value"),
    ({"temperature": -0.1}, "decimal_below_min_value"),
    ({"temperature": 101}, "decimal_above_max_value"),
    ({"top_p": -0.1}, "decimal_below_min_value"),
    ({"top_p": 1.1}, "decimal_above_max_value"),
    ({"top_k": -2}, "integer_below_min_value"),
    ({"min_p": 2}, "decimal_above_max_value"),
    ({"seed": 2**63}, "integer_above_max_value"),
    ({"stop": ["x"] * 65}, "array_above_max_length"),
    ({"stop": "x" * 1025}, "string_above_max_length"),
    ({"bad_words": [""]}, "empty_string"),
    ({"allowed_token_ids": []}, "invalid_value"),
    ({"logit_bias": {"1": 101}}, "decimal_above_max_value"),
    ({"logit_bias": {"-1": 1}}, "invalid_value"),
    ({"logit_bias": {"first": 1}}, "invalid_value"),
    ({"presence_penalty": 2.1}, "decimal_above_max_value"),
    ({"frequency_penalty": -2.1}, "decimal_below_min_value"),
    ({"repetition_penalty": 0}, "decimal_below_min_value"),
    ({"min_tokens": -1}, "integer_below_min_value"),
    ({"n": 0}, "integer_below_min_value"),
    ({"n": 129}, "integer_above_max_value"),
    ({"logprobs": -1}, "integer_below_min_value"),
    ({"logprobs": 21}, "integer_above_max_value"),
    ({"stop_token_ids": [-1]}, "integer_below_min_value"),
    ({"stop_token_ids": [0] * 1025}, "array_above_max_length"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "array_above_max_length"),
    ({"repetition_penalty": 10.1}, "decimal_above_max_value"),
    ({"min_tokens": 5, "max_tokens": 4}, "conflicting_fields"),
    ({"allowed_token_ids": [1], "structured_outputs": {"regex": "a"}}, "conflicting_fields"),
]


@pytest.mark.covers(
    "http/body-max-tokens",
    "http/body-sampling",
    "http/error-out-of-range-completions",
    "http/limit-n",
    "http/limit-logprobs",
    "http/limit-stop-strings",
    "http/limit-logit-bias",
    "http/limit-temperature",
)
@pytest.mark.parametrize(("fields", "code"), OUT_OF_RANGE, ids=lambda each: str(each)[:40])
async def test_value_out_of_range_is_422_and_names_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any], code: str
) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "x", **fields})
    assert (reply.status_code, error_of(reply)["code"]) == (422, code)
    assert error_of(reply)["param"] == next(iter(fields))


UNSUPPORTED = [("best_of", 3), ("use_beam_search", True)]


@pytest.mark.covers("http/unsupported-fields")
@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
async def test_what_is_not_done_is_refused_by_name(client: httpx.AsyncClient, name: str, value: object) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "x", name: value})
    error = error_of(reply)
    assert (reply.status_code, error["code"], error["param"]) == (422, "unsupported_value", name)
    assert "not supported" in error["message"]


@pytest.mark.covers("http/unknown-fields", "http/error-out-of-range-completions")
@pytest.mark.parametrize(
    ("body", "name"), [({"bogus": 1}, "bogus"), ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x")]
)
async def test_unknown_field_is_422_by_name(client: httpx.AsyncClient, body: dict[str, object], name: str) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "x", **body})
    assert (reply.status_code, error_of(reply)["code"], error_of(reply)["param"]) == (422, "unknown_field", name)


@pytest.mark.covers("http/body-model", "http/error-messages", "http/error-model-not-found", "http/nothing-is-fetched")
async def test_model_that_is_not_served_is_422_and_told_which_is(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "x", "model": "other"})
    assert (reply.status_code, error_of(reply)["code"]) == (422, "model_not_found")
    assert "fake-model" in error_of(reply)["message"]


@pytest.mark.covers("http/served-model-name")
async def test_served_model_name_takes_the_place_of_the_models_own(engine: FakeEngine) -> None:
    settings = ServerSettings(served_model_name="mine")
    async with client_of(engine, settings) as client:
        own = await client.post("/v1/completions", json={"prompt": "x", "model": "fake-model"})
        mine = await client.post("/v1/completions", json={"prompt": "x", "model": "mine"})
    assert (own.status_code, mine.json()["model"]) == (422, "mine")


@pytest.mark.covers("http/error-context-length")
async def test_context_too_long_is_422_in_the_wording_that_agents_parse(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "x" * 500, "max_tokens": 100})
    assert (reply.status_code, error_of(reply)["code"]) == (422, "context_length_exceeded")
    assert error_of(reply)["message"].startswith("This model's maximum context length is 512 tokens. However, you")


@pytest.mark.covers("http/error-token-id")
async def test_token_id_outside_the_vocabulary_is_422(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", json={"prompt": [1, 1000]})
    assert (reply.status_code, error_of(reply)["param"]) == (422, "prompt")


@pytest.mark.covers("http/limit-prompts")
async def test_more_than_2048_prompts_are_422(client: httpx.AsyncClient) -> None:
    accepted = await client.post("/v1/completions", json={"prompt": ["x"] * 2048})
    refused = await client.post("/v1/completions", json={"prompt": ["x"] * 2049})
    assert (accepted.status_code, refused.status_code) == (200, 422)


@pytest.mark.covers("http/error-queue-full")
@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (QueueFullError("The queue is full.", retry_after_s=3), "queue_full"),
        (EngineUnavailableError("It is draining.", retry_after_s=3), "engine_unavailable"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_full_queue_and_draining_are_503_with_retry_after(
    own_client: httpx.AsyncClient,
    engine: FakeEngine,
    refusal: Exception,
    code: str,
    stream: bool,  # noqa: FBT001 - a table of cases
) -> None:
    engine.refusal = refusal
    reply = await own_client.post("/v1/completions", json={"prompt": "x", "stream": stream})
    assert (reply.status_code, error_of(reply)["code"], reply.headers["retry-after"]) == (503, code, "3")


@pytest.mark.covers("http/error-empty-prompt")
async def test_a_prompt_that_tokenizes_to_nothing_is_400(own_client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refusal = EmptyPromptError()
    reply = await own_client.post("/v1/completions", json={"prompt": "\u200b"})
    assert (reply.status_code, error_of(reply)["code"]) == (400, "empty_prompt")


@pytest.mark.covers("http/error-unforeseen")
async def test_unforeseen_failure_is_500_and_its_cause_goes_to_the_log_alone(
    own_client: httpx.AsyncClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refusal = KeyError("secret")
    reply = await own_client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "mine-1"})
    assert (reply.status_code, error_of(reply)["code"]) == (500, "internal_error")
    assert "secret" not in reply.text
    assert "mine-1" in caplog.text
    assert "KeyError: 'secret'" in caplog.text


async def test_failed_request_is_500_with_the_engines_words() -> None:
    engine = FakeEngine(Script(failure=RequestFailure(message="The step failed.", code="step_failed")))
    async with client_of(engine) as client:
        reply = await client.post("/v1/completions", json={"prompt": "x"})
    assert (reply.status_code, error_of(reply)["code"]) == (500, "step_failed")


async def test_false_is_no_other_name_of_zero() -> None:
    body = {"prompt": "a", "max_tokens": 0, "num_predict": False, "max_new_tokens": 0}
    async with client_of(FakeEngine()) as client:
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code >= 400
        assert reply.json()["error"]["param"] == "num_predict"
        assert (await client.post("/v1/completions", json=body | {"num_predict": 0})).status_code == 200

"""Fill in the middle: `suffix` of `/v1/completions`, and `/infill` as llama.cpp's plugins for editors send it."""

import json
from typing import Any

import httpx
import pytest

from infer_engine.protocol import FinishReason, InfillPrompt, InvalidRequestError
from infer_proofs.server import FakeEngine, Script
from infer_proofs.server.client import client_of
from infer_server.llama_cpp.response import LineLimits

GAP = {"input_prefix": "def f():\n", "input_suffix": "\nf()\n"}
LLAMA_VSCODE: dict[str, Any] = {
    **GAP,
    "input_extra": [{"text": "x = 1\n", "time": 1700000000000, "filename": "a.py"}],
    "prompt": "    return ",
    "n_predict": 128,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "n_indent": 4,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
}
LLAMA_VIM: dict[str, Any] = {
    **{name: value for name, value in LLAMA_VSCODE.items() if name != "n_indent"},
    "stop": [],
    "response_fields": ["content", "timings/prompt_n", "timings/predicted_per_second", "truncated", "generation/x"],
}
WARMING = {"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "samplers": [], "t_max_predict_ms": 1}


@pytest.mark.covers("http/infill", "http/body-suffix")
async def test_a_suffix_makes_a_gap_after_each_prompt(engine: FakeEngine) -> None:
    async with client_of(engine) as client:
        body = {"prompt": ["a", "b"], "suffix": "z", "n": 2, "logprobs": 1}
        reply = await client.post("/v1/completions", json=body)
    assert reply.status_code == 200
    assert [request.prompt for request in engine.requests] == [
        InfillPrompt(prefix="a", suffix="z"),
        InfillPrompt(prefix="b", suffix="z"),
    ]
    assert [choice["text"] for choice in reply.json()["choices"]] == ["Hello, world"] * 4


@pytest.mark.parametrize("suffix", ["", None])
async def test_an_empty_suffix_is_none(engine: FakeEngine, suffix: str | None) -> None:
    async with client_of(engine) as client:
        assert (await client.post("/v1/completions", json={"prompt": "a", "suffix": suffix})).status_code == 200
    assert engine.requests[0].prompt == "a"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"echo": True}, "echo"), ({"prompt": [1, 2]}, "suffix"), ({"prompt": [[1], [2]]}, "suffix")],
)
async def test_a_suffix_with_what_it_excludes_is_refused_by_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "a", "suffix": "z"} | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, param)


@pytest.mark.covers("http/infill")
@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [("/v1/completions", {"prompt": "a", "suffix": "z"}, 422, "suffix"), ("/infill", GAP, 400, "input_suffix")],
)
async def test_a_model_that_fills_no_gaps_refuses_by_the_field(
    engine: FakeEngine, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    engine.refusal = InvalidRequestError("`suffix` needs another model.", param="suffix")
    async with client_of(engine) as client:
        reply = await client.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


@pytest.mark.covers("http/infill")
async def test_a_plugins_request_is_answered_in_llama_cpps_shape(engine: FakeEngine) -> None:
    async with client_of(engine) as client:
        reply = await client.post("/infill", json=LLAMA_VSCODE)
    assert reply.status_code == 200
    answer = reply.json()
    assert (answer["content"], answer["stop"], answer["stop_type"]) == ("Hello, world", True, "eos")
    assert (answer["tokens_predicted"], answer["truncated"], answer["model"]) == (3, False, "fake-model")
    assert answer["generation_settings"]["n_ctx"] == 512
    assert answer["timings"]["predicted_n"] == 3
    [request] = engine.requests
    assert request.prompt == InfillPrompt(
        prefix="def f():\n    return ", suffix="\nf()\n", files=(("a.py", "x = 1\n"),), cuts=True
    )
    assert (request.params.max_tokens, request.params.top_k, request.clip_max_tokens) == (128, 40, True)


async def test_a_client_names_the_fields_of_the_answer(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/infill", json=LLAMA_VIM)).json()
    assert set(answer) == {"content", "timings/prompt_n", "timings/predicted_per_second", "truncated"}
    streamed = (await client.post("/infill", json=LLAMA_VIM | {"stream": True})).text.split("\n\n")
    assert set(json.loads(streamed[-2].removeprefix("data: "))) == set(answer)


async def test_no_field_of_the_answer_is_promised(client: httpx.AsyncClient) -> None:
    body = {"input_prefix": "x", "input_suffix": "y", "response_fields": ["unheard of"]}
    assert (await client.post("/infill", json=body)).json() == {}
    document = (await client.get("/schema/openapi.json")).json()
    answer = document["paths"]["/infill"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert "content" in answer["properties"]
    assert "required" not in answer


async def test_a_prompt_can_be_read_before_it_is_needed(engine: FakeEngine) -> None:
    async with client_of(engine) as client:
        assert (await client.post("/infill", json=WARMING)).status_code == 200
    assert engine.requests[0].params.max_tokens == 0


@pytest.mark.covers("http/infill")
async def test_a_stream_has_pieces_and_the_rest_last(client: httpx.AsyncClient) -> None:
    reply = await client.post("/infill", json=GAP | {"stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.strip().split("\n\n")]
    assert [event["content"] for event in events] == ["Hello", ",", " world"]
    assert [event["stop"] for event in events] == [False, False, True]
    assert events[-1]["stop_type"] == "eos"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input_extra": [{"filename": "ok"}]}, "input_extra[0].text"),
    ({"input_extra": [{"filename": 123, "text": "abc"}]}, "input_extra[0].filename"),
    ({"input_extra": {"a.py": "abc"}}, "input_extra"),
    ({"prompt": ["abc"]}, "prompt"),
    ({"prompt": None, "input_suffix": None}, "input_suffix"),
    ({"n": 2}, "n"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"samplers": ["dry", "infill"]}, "samplers"),
    ({"lora": [{"id": 0, "scale": 0.5}]}, "lora"),
    ({"n_indent": -1}, "n_indent"),
    ({"t_max_predict_ms": 2**31}, "t_max_predict_ms"),
    ({"n_predict": -2}, "n_predict"),
    ({"bogus": 1}, "bogus"),
]


@pytest.mark.covers("http/infill")
@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: next(iter(value)))
async def test_what_an_infill_cannot_have_is_refused_by_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    reply = await client.post("/infill", json=GAP | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("reason", "stop_reason", "fields", "expected"),
    [
        (FinishReason.LENGTH, None, {}, ("limit", "")),
        (FinishReason.STOP, "end", {"stop": "end"}, ("word", "end")),
        (FinishReason.STOP, 7, {"stop_token_ids": [7]}, ("word", "7")),
        (FinishReason.STOP, 7, {}, ("eos", "")),  # a token of the format
        (FinishReason.GRAMMAR, None, {}, ("eos", "")),
    ],
)
async def test_the_kind_of_end_is_told(
    reason: FinishReason, stop_reason: str | int | None, fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    async with client_of(FakeEngine(Script(finish_reason=reason, stop_reason=stop_reason))) as client:
        answer = (await client.post("/infill", json=GAP | fields)).json()
    assert (answer["stop_type"], answer["stopping_word"]) == expected


@pytest.mark.covers("http/infill")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_ends_before_a_line_that_is_not_indented_enough(*, stream: bool) -> None:
    steps = (((1,), "x\n  "), ((2,), "  y\n"), ((3,), "  "), ((4,), "z"), ((5,), " more"))
    engine = FakeEngine(Script(steps=steps))
    async with client_of(engine) as client:
        reply = await client.post("/infill", json=GAP | {"n_indent": 4, "stream": stream})
        await engine.wait_until_idle()
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.strip().split("\n\n")]
    assert "".join(event["content"] for event in events) == "x\n    y"
    assert (events[-1]["stop_type"], events[-1]["tokens_predicted"], events[-1]["has_new_line"]) == ("limit", 4, True)
    assert engine.streams[0].aborted


def text_of(pieces: list[tuple[str, float]], *, n_indent: int = 0, most_ms: int = 0) -> str:
    limits = LineLimits(n_indent=n_indent, most_ms=most_ms)
    text = ""
    for piece, elapsed_ms in pieces:
        text += limits.add(piece, elapsed_ms=elapsed_ms)
        if limits.is_over:
            break
    return text + limits.finish()


@pytest.mark.parametrize(
    ("text", "n_indent", "expected"),
    [
        ("a\nb", 0, "a\nb"),
        ("a\nb", 1, "a"),
        ("a\n\tb\nc", 1, "a\n\tb"),
        ("a\n    b\n", 4, "a\n    b\n"),
        ("a\n    b\n\nc", 4, "a\n    b"),
        ("a\n  ", 4, "a\n  "),
    ],
)
def test_lines_are_indented_the_same_however_they_come(text: str, n_indent: int, expected: str) -> None:
    assert text_of([(text, 0.0)], n_indent=n_indent) == expected
    assert text_of([(character, 0.0) for character in text], n_indent=n_indent) == expected


def test_after_a_time_the_line_that_is_complete_is_the_last() -> None:
    assert text_of([("a\n", 5), ("b", 50), ("c", 60), ("\nd", 70), ("e", 80)], most_ms=40) == "a\nbc"
    assert text_of([("a", 500), ("b", 600)], most_ms=40) == "ab"
    for never in (0, -1):
        assert text_of([("a\n", 500), ("b", 600)], most_ms=never) == "a\nb"

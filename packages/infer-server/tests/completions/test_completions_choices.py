"""Several choices, echoed prompts and log-probabilities of `POST /v1/completions`, whole and streamed."""

from typing import Any

import pytest

from infer_engine.protocol import StepOutput
from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of
from infer_server.openai.usage import usage_of


async def complete(engine: FakeEngine | None = None, **body: Any) -> Any:
    async with client_of(engine or FakeEngine()) as client:
        reply = await client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def stream(engine: FakeEngine | None = None, **body: Any) -> list[Any]:
    """Return the data of each event, without `[DONE]`."""
    async with client_of(engine or FakeEngine()) as client:
        reply = await client.post("/v1/completions", json={"stream": True, **body})
    *chunks, (_, done) = sse_events(reply.text)
    assert done == "[DONE]"
    return [data for _, data in chunks]


@pytest.mark.covers("http/body-n")
async def test_choices_are_numbered_prompt_by_prompt() -> None:
    engine = FakeEngine()
    answer = await complete(engine, prompt=["a", "bc"], n=2, best_of=2, echo=True)
    assert [(choice["index"], choice["text"][:2]) for choice in answer["choices"]] == [
        (0, "aH"),
        (1, "aH"),
        (2, "bc"),
        (3, "bc"),
    ]
    assert [request.params.n for request in engine.requests] == [2, 2]


@pytest.mark.covers("http/body-n")
async def test_usage_counts_a_prompt_once_however_many_choices_it_has() -> None:
    answer = await complete(FakeEngine(Script(num_cached_tokens=1)), prompt=["a", "bc"], n=3)
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 18,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_what_one_choice_cached_for_another_is_no_cached_prompt() -> None:
    last = [
        StepOutput(request_id="r", token_ids=[], num_prompt_tokens=9, num_completion_tokens=1, num_cached_tokens=cached)
        for cached in (8, 0, 4, 8)
    ]
    (first, second) = (usage_of(choices, choices_per_prompt=2) for choices in (last[:2], last))
    assert first.prompt_tokens_details is None
    assert second.prompt_tokens_details is not None
    assert (second.prompt_tokens, second.prompt_tokens_details.cached_tokens) == (18, 4)


@pytest.mark.covers("http/stream-terminal-event")
async def test_stream_of_choices_ends_each_once_with_its_own_usage_where_no_total_comes_last() -> None:
    *chunks, total = await stream(prompt=["a", "bc"], n=2, stream_options={"include_usage": True})
    assert not any("usage" in chunk for chunk in chunks)
    chunks = await stream(prompt=["a", "bc"], n=2)
    ends = {chunk["choices"][0]["index"]: chunk["usage"] for chunk in chunks if "usage" in chunk}
    assert {index: usage["total_tokens"] for index, usage in ends.items()} == {0: 4, 1: 4, 2: 5, 3: 5}
    assert len(chunks) == 4 * (3 + 1)
    assert (total["choices"], total["usage"]["prompt_tokens"], total["usage"]["total_tokens"]) == ([], 3, 15)


@pytest.mark.covers("http/body-echo")
@pytest.mark.parametrize("prompt", ["hi", [104, 105]])
async def test_echo_begins_the_text_with_the_prompt_also_one_of_token_ids(prompt: object) -> None:
    answer = await complete(prompt=prompt, echo=True)
    assert answer["choices"][0]["text"] == "hiHello, world"
    assert answer["choices"][0]["logprobs"] is None


@pytest.mark.covers("http/stream-echo")
async def test_streamed_echo_is_one_chunk_without_a_token_id_before_each_choices_tokens() -> None:
    chunks = await stream(prompt=["hi", "yo"], echo=True)
    for index, prompt in enumerate(["hi", "yo"]):
        echo, *tokens, _ = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert (echo["token"], echo["token_id"], echo["choices"][0]["text"]) == (prompt, None, prompt)
        assert [chunk["token_id"] for chunk in tokens] == [1, 2, 3]


@pytest.mark.covers("http/body-logprobs")
async def test_logprobs_are_lists_side_by_side() -> None:
    answer = await complete(prompt="hi", logprobs=2)
    assert answer["choices"][0]["logprobs"] == {
        "text_offset": [0, 5, 6],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "tokens": ["Hello", ",", " world"],
        "top_logprobs": [
            {"Hello": -0.5, ",": -1.5},
            {",": -0.5, " world": -1.5},
            {" world": -0.5, "<4>": -1.5},
        ],
    }


@pytest.mark.covers("http/body-echo")
async def test_logprobs_of_an_echoed_prompt_come_first_and_nothing_precedes_its_first_token() -> None:
    engine = FakeEngine()
    answer = await complete(engine, prompt="hi", logprobs=0, echo=True)
    assert engine.requests[0].params.prompt_logprobs == 0
    assert answer["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2, 7, 8],
        "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
        "tokens": ["h", "i", "Hello", ",", " world"],
        "top_logprobs": [None, {"i": -0.5}, {"Hello": -0.5}, {",": -0.5}, {" world": -0.5}],
    }


@pytest.mark.covers("http/body-logprobs")
async def test_streamed_logprobs_join_up_to_the_whole_ones() -> None:
    body: dict[str, Any] = {"prompt": "hi", "logprobs": 1, "echo": True}
    whole = (await complete(**body))["choices"][0]["logprobs"]
    pieces = [chunk["choices"][0]["logprobs"] for chunk in (await stream(**body))[:-1]]
    assert {name: [entry for piece in pieces for entry in piece[name]] for name in whole} == whole


async def test_tokens_of_one_step_have_their_own_logprobs_each() -> None:
    engine = FakeEngine(Script(steps=(((104, 105), "hi"),)))
    first, second, _ = await stream(engine, prompt="x", logprobs=0)
    assert first["choices"][0]["logprobs"]["tokens"] == ["h"]
    assert second["choices"][0]["logprobs"]["tokens"] == ["i"]


class EngineWithoutTexts(FakeEngine):
    """Fails where a prompt's text is asked for."""

    async def detokenize(self, token_ids: list[int]) -> str:
        """Fail."""
        raise RuntimeError(token_ids)


@pytest.mark.parametrize("streaming", [True, False])
async def test_request_whose_prompt_cannot_be_echoed_is_aborted(*, streaming: bool) -> None:
    engine = EngineWithoutTexts()
    async with client_of(engine) as client:
        reply = await client.post("/v1/completions", json={"prompt": [1], "echo": True, "stream": streaming})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert [stream.aborted for stream in engine.streams] == [True]

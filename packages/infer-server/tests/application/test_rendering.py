"""`POST` to `/render` below each API, and llama.cpp's `/apply-template`: a prompt is shown, and nothing generated."""

from typing import Any

import httpx
import pytest

HI = [{"role": "user", "content": "hi"}]
RENDERED = {"prompt": "hi", "token_ids": [104, 105]}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 5, "model": "fake-model"},
}


@pytest.mark.covers("http/render")
@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("more", [{}, {"stream": True}, {"temperature": 0.5}])
async def test_a_conversation_is_shown_as_the_model_would_get_it(
    client: httpx.AsyncClient, path: str, more: dict[str, Any]
) -> None:
    reply = await client.post(f"{path}/render", json=REQUESTS[path] | more)
    assert (reply.status_code, reply.json()) == (200, RENDERED)


@pytest.mark.covers("http/render")
@pytest.mark.parametrize(
    ("prompt", "rendered"),
    [
        ("hi", [{"prompt": "<0>hi", "token_ids": [0, 104, 105]}]),
        ([104, 105], [RENDERED]),
        ([[104, 105], [104, 105]], [RENDERED, RENDERED]),
    ],
)
async def test_each_prompt_of_a_completion_is_shown(
    client: httpx.AsyncClient, prompt: object, rendered: list[dict[str, Any]]
) -> None:
    reply = await client.post("/v1/completions/render", json={"prompt": prompt, "max_tokens": 3})
    assert (reply.status_code, reply.json()) == (200, rendered)


# ikawrakow/ik_llama.cpp#999: the route was written and never registered
@pytest.mark.covers("http/render")
async def test_llama_cpps_name_shows_the_text(client: httpx.AsyncClient) -> None:
    assert (await client.post("/apply-template", json={"messages": HI})).json()["prompt"] == "hi"


@pytest.mark.parametrize("path", REQUESTS)
async def test_what_the_api_refuses_its_rendering_refuses_in_the_same_words(
    client: httpx.AsyncClient, path: str
) -> None:
    for wrong in ({"model": "other"}, {"temperature": "hot"}, {"bogus": 1}):
        body = REQUESTS[path] | wrong
        asked, shown = [await client.post(each, json=body) for each in (path, f"{path}/render")]
        assert shown.status_code == asked.status_code
        assert shown.json().get("error") == asked.json().get("error")

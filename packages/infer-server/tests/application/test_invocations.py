"""`/invocations`, where SageMaker sends everything: the body says whose route it is for, and a key is needed."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import ContextLengthExceededError
from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}


@pytest.mark.covers("http/invocations")
@pytest.mark.parametrize(("body", "kind"), [(CHAT, "chat.completion"), (COMPLETION, "text_completion")])
async def test_the_body_says_whose_route_it_is_for(client: httpx.AsyncClient, body: dict[str, Any], kind: str) -> None:
    reply = await client.post("/invocations", json=body)
    assert (reply.status_code, reply.json()["object"]) == (200, kind)
    stream = await client.post("/invocations", json=body | {"stream": True})
    assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.covers("http/invocations", "http/api-keys")
@pytest.mark.parametrize("body", [CHAT, COMPLETION, {}])
async def test_a_key_is_needed(body: dict[str, Any]) -> None:  # vllm-project/vllm#58144
    async with client_of(FakeEngine(), ServerSettings(api_key=("secret",))) as client:
        for path in ("/invocations", "/invocations/", "/infill"):
            assert (await client.post(path, json=body)).status_code == 401
        held = {"Authorization": "Bearer secret"}
        status = (await client.post("/invocations", json=body, headers=held)).status_code
    assert status == (200 if body else 400)


REFUSED: list[tuple[bytes, str, str | None]] = [
    (b"{}", "missing_field", "messages"),
    (b'{"input": "hi"}', "missing_field", "messages"),
    (b"[1]", "missing_field", "messages"),
    (b"{", "invalid_json", None),
    (b'{"prompt": "\xff"}', "invalid_json", None),
    (b'{"messages": 3}', "invalid_type", "messages"),
    (b'{"messages": [], "prompt": "hi"}', "unknown_field", "prompt"),
    (b'{"prompt": "hi", "bogus": 1}', "unknown_field", "bogus"),
]


@pytest.mark.covers("http/invocations")
@pytest.mark.parametrize(("raw", "code", "param"), REFUSED)
async def test_what_is_of_no_route_is_refused(
    client: httpx.AsyncClient, raw: bytes, code: str, param: str | None
) -> None:
    reply = await client.post("/invocations", content=raw)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)


@pytest.mark.parametrize(("body", "param"), [(CHAT, "messages"), (COMPLETION, "prompt")])
async def test_what_the_engine_refuses_names_the_field_of_the_route(
    engine: FakeEngine, body: dict[str, Any], param: str
) -> None:
    engine.refusal = ContextLengthExceededError(max_seq_len=8, num_prompt_tokens=9, max_tokens=1)
    async with client_of(engine) as client:
        reply = await client.post("/invocations", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)

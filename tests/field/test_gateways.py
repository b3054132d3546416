"""Requests as gateways and SDKs send them: compressed, under a path of the gateway's, under other names of the model.

Sources: agentgateway/agentgateway#2402, ollama/ollama#12386, ggml-org/llama.cpp#28059, QuantumNous/new-api#4913,
zyycn/codex-proxy-rs#66, Kilo-Org/cloud#5802 (compressed bodies); vllm-project/vllm#1227, #10172, #44900,
abetlen/llama-cpp-python#1420, fastapi/fastapi#829 (paths); vllm-project/vllm#1988, #15845,
ai-dynamo/dynamo#8038 (names).
"""

import gzip
import json
import logging
import zlib
from functools import partial
from typing import Any

import httpx
import pytest

from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

BODY = b'{"prompt": "A", "max_tokens": 2}'
gzipped = partial(gzip.compress, mtime=0)  # the time would be in the names of the tests, and each worker has its own
BOMB = gzipped(b'{"prompt": "' + b"A" * 50_000_000)
RAW = zlib.compressobj(wbits=-15)
RAW_DEFLATED = RAW.compress(BODY) + RAW.flush()
ZSTD = b"\x28\xb5\x2f\xfd\x20\x01\x00"
NAMES = ("org/model-7b", "gpt-4o", "default")


async def posted(body: bytes, *codings: str, **settings: Any) -> httpx.Response:
    headers = [("content-type", "application/json"), *(("content-encoding", coding) for coding in codings)]
    async with client_of(FakeEngine(), ServerSettings(**settings)) as client:
        return await client.post("/v1/completions", content=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "codings"),
    [
        (gzipped(BODY), ["gzip"]),
        (gzipped(BODY), ["X-GZip"]),
        (zlib.compress(BODY), ["deflate"]),
        (RAW_DEFLATED, ["deflate"]),
        (gzipped(BODY[:9]) + gzipped(BODY[9:]) + b"\0\0", ["gzip"]),
        (gzipped(zlib.compress(BODY)), ["deflate, gzip"]),
        (gzipped(zlib.compress(BODY)), ["deflate", "gzip"]),
        (BODY, ["identity"]),
        (BODY, [""]),
        (gzipped(BODY), ["identity, gzip"]),
    ],
)
async def test_a_compressed_body_is_decompressed(body: bytes, codings: list[str]) -> None:
    reply = await posted(body, *codings)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"])
async def test_every_route_decompresses(path: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "input": "x", "max_tokens": 2, "prompt": "x"}
    wanted = {"/v1/responses": ["input"], "/tokenize": ["prompt"]}.get(path, ["messages", "max_tokens"])
    content = gzipped(json.dumps({name: body[name] for name in wanted}).encode())
    async with client_of(FakeEngine()) as client:
        reply = await client.post(path, content=content, headers={"content-encoding": "gzip"})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("coding", ["zstd", "br", "compress", "gzip, br", "gzip, gzip, gzip"])
async def test_an_unknown_coding_is_415_and_says_which_are_known(coding: str) -> None:
    reply = await posted(ZSTD, coding)
    assert (reply.status_code, reply.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert f"`Content-Encoding` is `{coding}`" in reply.json()["error"]["message"]


@pytest.mark.parametrize("body", [BODY, b"", gzipped(BODY)[:-9], gzipped(BODY) + b"rest", b"\x1f\x8b"])
async def test_a_body_that_is_not_what_its_coding_says_is_400_and_names_the_header(body: bytes) -> None:
    reply = await posted(body, "gzip")
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "invalid_content_encoding")
    assert "not valid gzip" in error["message"]


async def test_many_empty_streams_are_refused_at_once() -> None:
    reply = await posted(gzipped(b"") * 100_000, "gzip")
    assert (reply.status_code, "more than 64 streams" in reply.text) == (400, True)


@pytest.mark.parametrize("codings", ["gzip", "gzip, gzip"])
async def test_the_limit_of_a_body_is_that_of_its_contents(codings: str) -> None:
    body = BOMB if codings == "gzip" else gzipped(BOMB)
    assert len(body) < 100_000
    reply = await posted(body, codings, max_body_size="1MB")
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert (await posted(gzipped(BODY), "gzip", max_body_size=100)).status_code == 200


@pytest.mark.parametrize(("body", "coding"), [(gzipped(BODY), "gzip"), (ZSTD, "zstd")])
async def test_a_compressed_body_without_the_header_is_told_so(body: bytes, coding: str) -> None:
    message = (await posted(body)).json()["error"]["message"]
    assert message == f"The body is not JSON, but compressed with {coding}; say so in `Content-Encoding`."


@pytest.mark.covers("command-line-and-library/root-path")
@pytest.mark.parametrize("root", ["/llm", "llm/", "/a/b-c/"])
async def test_routes_answer_below_the_root_and_without_it(root: str) -> None:
    prefix = "/" + root.strip("/")
    async with client_of(FakeEngine(), ServerSettings(root_path=root)) as client:
        for path in ("/v1/models", "/v1/models/fake-model", "/health", "/metrics", "/", "/schema", "/v1/models/"):
            assert (await client.get(prefix + path)).status_code == 200, path
            assert (await client.get(path)).status_code == 200, path
        assert (await client.get(prefix + "x/v1/models")).status_code == 404
        moved = await client.get(prefix)
        assert (moved.status_code, moved.headers["location"]) == (307, f"{prefix}/")


async def test_a_model_whose_name_has_the_root_in_it_is_found() -> None:
    settings = ServerSettings(root_path="/llm", served_model_name="org/llm/7b")
    async with client_of(FakeEngine(), settings) as client:
        for path in ("/v1/models/org/llm/7b", "/llm/v1/models/org/llm/7b", "/llm/v1/models/org%2Fllm%2F7b"):
            assert (await client.get(path)).json()["id"] == "org/llm/7b"


async def test_keys_are_asked_for_below_the_root_as_above_it() -> None:
    async with client_of(FakeEngine(), ServerSettings(root_path="/llm", api_key=("key",))) as client:
        assert (await client.get("/llm/health")).status_code == 200
        refused = await client.post("/llm/v1/messages", json={})
        assert (refused.status_code, refused.json()["type"]) == (401, "error")


@pytest.mark.covers("command-line-and-library/root-path")
async def test_links_metrics_and_logs_know_the_root(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "infer_server.access")
    async with client_of(FakeEngine(), ServerSettings(root_path="/llm")) as client:
        await client.get("/llm/v1/models")
        await client.get("/llm/health")
        assert 'href="/llm/schema/openapi.json"' in (await client.get("/llm/schema")).text
        assert (await client.get("/schema/openapi.json")).json()["servers"] == [{"url": "/llm"}]
        assert 'handler="/v1/models"' in (await client.get("/llm/metrics")).text
    logged = [record.__dict__["path"] for record in caplog.records]
    assert ("/llm/v1/models" in logged, "/llm/health" in logged) == (True, False)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/completions", "/v1/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/V1/Responses", "/v1/responses"),
    ],
)
async def test_a_path_with_a_wrong_base_is_told_the_right_one(
    client: httpx.AsyncClient, asked: str, meant: str
) -> None:
    reply = await client.post(asked, json={})
    assert (reply.status_code, f"`{meant}` is what you may mean" in reply.text) == (404, True)
    assert "`/schema` lists" in (await client.get("/nothing/like/it")).text


@pytest.fixture
def client() -> httpx.AsyncClient:
    """A client of an application with the defaults."""
    return client_of(FakeEngine())


@pytest.mark.covers("http/served-model-name")
async def test_every_name_is_listed_answered_and_repeated() -> None:
    async with client_of(FakeEngine(), ServerSettings(served_model_name=NAMES)) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == list(NAMES)
        for name in NAMES:
            assert (await client.get(f"/v1/models/{name}")).json()["id"] == name
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
        bodies: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": "x"},
            "/v1/chat/completions": chat,
            "/v1/responses": {"input": "x"},
            "/v1/messages": chat,
        }
        for path, body in bodies.items():
            answered = [(await client.post(path, json=body | {"model": name})).json()["model"] for name in NAMES]
            assert answered == list(NAMES), path
            assert (await client.post(path, json=body)).json()["model"] == NAMES[0]
        for path, body in (
            ("/tokenize", {"prompt": "x"}),
            ("/v1/messages/count_tokens", {"messages": chat["messages"]}),
        ):
            assert (await client.post(path, json=body | {"model": "gpt-4o"})).status_code == 200
            assert (await client.post(path, json=body | {"model": "gpt-5"})).status_code == 404


async def test_streams_repeat_the_name_that_was_asked_for() -> None:
    async with client_of(FakeEngine(), ServerSettings(served_model_name=NAMES)) as client:
        reply = await client.post("/v1/completions", json={"prompt": "x", "model": "gpt-4o", "stream": True})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert {event["model"] for event in events} == {"gpt-4o"}


async def test_a_name_given_twice_is_listed_once() -> None:
    async with client_of(FakeEngine(), ServerSettings(served_model_name=("a", "b", "a"))) as client:
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["a", "b"]

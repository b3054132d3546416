"""Each HTTP exchange is one log line, also after errors; prompts are logged only if that is configured."""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from infer_engine.protocol import GenerateRequest, RequestFailure, RequestStream, SamplingParams
from infer_proofs.server import FakeEngine, Script, running_server
from infer_server import ServerSettings, create_app
from infer_server.observability.access_log import AccessLog, log_prompts, record_generation
from infer_server.observability.logs import formatter
from infer_server.observability.metrics import ServerMetrics
from infer_server.observability.observed_engine import ObservedEngine

Records = pytest.LogCaptureFixture

MARKER = "hunter2-marker"


@pytest.fixture(autouse=True)
def everything_logged(caplog: Records) -> None:
    caplog.set_level(logging.DEBUG)


def lines(caplog: Records, name: str = "infer_server.access") -> list[Any]:
    """Return the records of one logger; their facts are attributes."""
    return [record for record in caplog.records if record.name == name]


def client_of(app: object, *, fails: bool = False) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=not fails)  # type: ignore[arg-type]  # litestar's own ASGI types
    return httpx.AsyncClient(transport=transport, base_url="http://server")


@pytest.fixture(scope="module")
def client() -> httpx.AsyncClient:
    client = client_of(create_app(FakeEngine(), settings=ServerSettings(api_key=("k",), max_body_size=100)))
    client.headers["Authorization"] = "Bearer k"
    return client


@pytest.mark.covers("command-line-and-library/access-log")
@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/version", b"", 200),
        ("GET", "/nothing", b"", 404),
        ("PUT", "/v1/completions", b"", 405),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"x" * 101, 413),
    ],
)
async def test_every_exchange_is_one_line(
    client: httpx.AsyncClient, caplog: Records, method: str, path: str, content: bytes, status: int
) -> None:
    reply = await client.request(method, path, content=content, headers={"X-Request-Id": "id-1"})
    (line,) = lines(caplog)
    assert (line.levelname, line.getMessage()) == ("INFO", "request")
    assert (line.method, line.path, line.status, line.request_id) == (method, path, status, "id-1")
    assert (reply.status_code, line.bytes_out) == (status, len(reply.content))
    assert line.client == "127.0.0.1:123"
    assert 0 <= line.duration_ms < 10_000


@pytest.mark.covers("command-line-and-library/access-log")
@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/v1/completions", {"prompt": "x", "top_p": 2}, "decimal_above_max_value", "top_p"),
        ("/v1/completions", {"prompt": "x", "temperatur": 1}, "unknown_field", "temperatur"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "missing_field", "messages[0].content"),
        ("/v1/messages", {"messages": [], "max_tokens": 1}, "empty_prompt", "messages"),
        ("/v1/completions", {"prompt": "x" * 100}, "body_too_large", None),
        ("/nothing", {}, "not_found", None),
    ],
)
async def test_a_refused_request_is_told_by_code_and_field(
    client: httpx.AsyncClient, caplog: Records, path: str, body: dict[str, Any], code: str, param: str | None
) -> None:
    reply = (await client.post(path, json=body)).json()["error"]
    (line,) = lines(caplog)
    assert (line.error_code, getattr(line, "error_param", None)) == (code, param)
    if path != "/v1/messages":  # whose errors have no such fields
        assert (reply["code"], reply["param"]) == (code, param)


async def test_an_answered_request_has_no_code(client: httpx.AsyncClient, caplog: Records) -> None:
    await client.get("/version")
    (line,) = lines(caplog)
    assert not hasattr(line, "error_code")


async def test_request_without_a_key_is_one_line(client: httpx.AsyncClient, caplog: Records) -> None:
    await client.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    (line,) = lines(caplog)
    assert (line.path, line.status) == ("/v1/models", 401)
    assert "wrong" not in caplog.text


async def test_page_of_another_origin_that_asks_for_permission_is_one_line(caplog: Records) -> None:
    app = create_app(FakeEngine(), settings=ServerSettings(cors_allow_origins=("*",)))
    headers = {"Origin": "http://x", "Access-Control-Request-Method": "POST"}
    async with client_of(app) as client:
        await client.options("/v1/completions", headers=headers)
    assert [(line.method, line.status) for line in lines(caplog)] == [("OPTIONS", 204)]


async def test_unforeseen_failure_is_one_line_beside_its_traceback(caplog: Records) -> None:
    engine = FakeEngine()
    engine.refusal = ZeroDivisionError("a bug")
    async with client_of(create_app(engine, settings=ServerSettings())) as client:
        await client.post("/v1/completions", json={"prompt": "x"})
    (line,) = lines(caplog)
    assert line.status == 500
    assert sum(record.exc_info is not None for record in caplog.records) == 1


async def test_failure_of_the_application_itself_is_one_line(caplog: Records) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with client_of(wrapped(broken, observed()), fails=True) as client:
        assert (await client.get("/x")).status_code == 500
    assert [(line.path, line.status) for line in lines(caplog)] == [("/x", 500)]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/ping", "/v2/health/ready"])
async def test_probes_are_below_info(client: httpx.AsyncClient, caplog: Records, path: str) -> None:
    await client.get(path)
    assert [(line.levelname, line.path) for line in lines(caplog)] == [("DEBUG", path)]


@pytest.mark.covers("command-line-and-library/access-log")
async def test_access_log_can_be_off_while_metrics_go_on(caplog: Records) -> None:
    async with client_of(create_app(FakeEngine(), settings=ServerSettings(access_log=False))) as client:
        await client.get("/version")
        assert 'handler="/version"' in (await client.get("/metrics")).text
    assert lines(caplog) == []


async def test_generation_is_told_with_its_tokens_and_times(caplog: Records) -> None:
    engine = FakeEngine(Script(num_cached_tokens=2))
    body = json.dumps({"prompt": ["abcd", "ef"]}).encode()
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        reply = await client.post("/v1/completions", content=body)
    (line,) = lines(caplog)
    assert (line.sequences, line.prompt_tokens, line.completion_tokens, line.cached_tokens) == (2, 6, 6, 4)
    assert line.finish_reasons == {"eos": 2}
    assert 0 <= line.queue_ms <= line.ttft_ms <= line.duration_ms
    assert line.tokens_per_s > 0
    assert (line.bytes_in, line.bytes_out) == (len(body), len(reply.content))
    assert not hasattr(line, "disconnected")


async def test_times_of_a_batch_are_those_of_its_fastest_sequence(caplog: Records) -> None:
    engine = FakeEngine(Script(pause_after=0))
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        reply = asyncio.create_task(client.post("/v1/completions", json={"prompt": ["a", "b"]}))
        await engine.wait_for_requests(2)
        engine.streams[0].times.arrived_s -= 1000
        engine.resume()
        await reply
    (line,) = lines(caplog)
    assert line.queue_ms < 1000 * 1000
    assert line.ttft_ms < 1000 * 1000


async def test_prompt_of_several_choices_is_counted_once(caplog: Records) -> None:
    engine = observed()
    async with client_of(wrapped(answering(engine, n=3), engine)) as client:
        await client.get("/x")
    (line,) = lines(caplog)
    assert (line.sequences, line.prompt_tokens, line.completion_tokens) == (3, 4, 9)


async def test_failed_generation_is_told_by_its_code(caplog: Records) -> None:
    failure = RequestFailure(message="no", code="not_finite")
    async with running_server(FakeEngine(Script(failure=failure))) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post("/v1/completions", json={"prompt": "x"})
    (line,) = lines(caplog)
    assert (line.status, line.finish_reasons) == (500, {"not_finite": 1})


@pytest.mark.parametrize("streaming", [True, False])
async def test_client_that_leaves_is_one_line_that_says_so(caplog: Records, *, streaming: bool) -> None:
    engine = FakeEngine(Script(pause_after=1))
    async with running_server(engine) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        content = json.dumps({"prompt": "x", "stream": streaming})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write((head + content).encode())
        await engine.wait_for_requests(1)
        writer.close()
        await engine.wait_until_idle()
    (line,) = lines(caplog)
    assert line.disconnected is True
    assert (line.status, line.finish_reasons) == (200 if streaming else 499, {"abort": 1})
    assert all(record.levelno <= logging.INFO for record in caplog.records)


async def test_no_log_has_a_prompt(caplog: Records) -> None:
    async with running_server(FakeEngine()) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post("/v1/completions", json={"prompt": MARKER})
        await client.post("/v1/completions", json={"prompt": MARKER, "stream": True})
        await client.post("/v1/completions", json={"prompt": MARKER, "logprobs": "x"})
        await client.post("/v1/completions", content=f'{{"prompt": "{MARKER}"')
    assert len(lines(caplog)) == 4
    assert not any(MARKER in formatter("json").format(record) for record in caplog.records)


@pytest.mark.covers("command-line-and-library/access-log")
@pytest.mark.parametrize("wanted", [True, False])
async def test_prompts_are_logged_if_asked_for(caplog: Records, *, wanted: bool) -> None:
    engine = observed()
    app = wrapped(answering(engine, prompt=MARKER), engine, ServerSettings(log_prompts=wanted))
    async with client_of(app) as client:
        await client.get("/x", headers={"X-Request-Id": "id-1"})
    logged = [(line.levelname, line.request_id, line.prompts) for line in lines(caplog, "infer_server.prompts")]
    assert logged == ([("INFO", "id-1", [MARKER])] if wanted else [])


@pytest.mark.parametrize("path", ["/a%0A2030-01-01%20INFO%20forged", "/%1b[31m", "/x%20status=200", "/%E2%80%A8%FF"])
async def test_no_path_forges_a_line_or_a_fact(client: httpx.AsyncClient, caplog: Records, path: str) -> None:
    await client.get(path, headers={"X-Request-Id": "x status=200", "User-Agent": "x\x1b status=200"})
    (line,) = lines(caplog)
    text = formatter("text").format(line)
    assert text.isprintable()
    assert text.isascii()
    assert text.count(" status=") - text.count('x status=200"') == 1
    assert json.loads(formatter("json").format(line))["status"] == 404


async def test_long_paths_are_cut(client: httpx.AsyncClient, caplog: Records) -> None:
    await client.get("/" + "x" * 5000)
    assert len(lines(caplog)[0].path) == 256


def test_notes_on_a_request_that_nothing_wraps_are_dropped() -> None:
    scope: Any = {"type": "http", "state": {}, "headers": []}
    record_generation(scope, [])
    log_prompts(scope, [GenerateRequest(prompt=MARKER, params=SamplingParams())])


def observed(engine: FakeEngine | None = None) -> ObservedEngine:
    engine = engine or FakeEngine()
    return ObservedEngine(engine, ServerMetrics(engine, served_model="m").requests)


def wrapped(app: object, engine: ObservedEngine, settings: ServerSettings | None = None) -> AccessLog:
    metrics = ServerMetrics(engine, served_model="m").http
    return AccessLog(app, engine=engine, metrics=metrics, settings=settings or ServerSettings())  # type: ignore[arg-type]  # plain ASGI


def answering(engine: ObservedEngine, *, prompt: str = "abcd", n: int = 1) -> Any:
    """Return a bare application that generates, as a route does."""

    async def app(scope: Any, _: object, send: Any) -> None:
        requests = [GenerateRequest(prompt=prompt, params=SamplingParams(n=n))]
        log_prompts(scope, requests)
        streams: list[RequestStream] = await engine.submit(requests)
        record_generation(scope, streams)
        for stream in streams:
            async for _ in stream:
                pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    return app

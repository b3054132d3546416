"""Hostile requests to a real server: each is answered, or refused with the error object, and none leaves a trace.

Afterwards the server is healthy, gives the same greedy answers as before, runs nothing and holds nothing, and its log
has no traceback.
"""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from infer_proofs.server import metric_samples
from infer_proofs.server.hostile_requests import (
    CHATS,
    COMPLETIONS,
    DETOKENIZE,
    LIMIT,
    NOT_JSON,
    ODD,
    SHORT,
    SOUND,
    UNFINISHED,
    places_of_cuts,
    post,
    post_in_chunks,
    requests_to_cut,
    with_field,
)
from infer_server.api.foreign_fields import ForeignFields

Serve = Callable[..., AbstractContextManager[Any]]

CACHE = ("--dtype", "float32", "--num-gpu-blocks", "96", "--block-size", "16", "--batch-invariant")
TIMEOUTS = ("--receive-timeout", "2", "--log-level", "warning")
VOCABULARY = 320
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}


@pytest.fixture(scope="module")
def place() -> str:
    """Where the engine computes; a test of what gets as far as that tries both."""
    return "--engine-process"


@pytest.fixture(scope="module")
def server(serve_for_many: Serve, folder: Path, place: str) -> Iterator[Any]:
    """A server that must end in good order when all tests are done with it."""
    with serve_for_many("--model", str(folder), *CACHE, *TIMEOUTS, place) as server:
        yield server
        assert server.terminate() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def client(server: Any) -> Iterator[httpx.Client]:
    """A client of the server, which must be unharmed when the test is done with it."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        before = greedy_answers(client)
        yield client
        assert client.get("/health").status_code == 200
        assert_idle(client)
        assert greedy_answers(client) == before


def greedy_answers(client: httpx.Client) -> list[Any]:
    text = {"prompt": "To be, or", "logprobs": 3, "echo": True} | GREEDY
    chat = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 3} | GREEDY
    replies = [client.post(path, json=body) for path, body in ((COMPLETIONS, text), (CHATS, chat))]
    assert [reply.status_code for reply in replies] == [200, 200], [reply.text for reply in replies]
    return [reply.json()["choices"] for reply in replies]


def assert_idle(client: httpx.Client) -> None:
    """Wait until nothing runs or waits, and see that the cache is empty then."""
    deadline_s = time.monotonic() + 5
    while True:
        samples = {name: value for (name, _), value in metric_samples(client.get("/metrics").text).items()}
        if samples["infer:num_requests_running"] == samples["infer:num_requests_waiting"] == 0:
            break
        assert time.monotonic() < deadline_s, "requests are left"
        time.sleep(0.05)
    assert samples["infer:kv_cache_usage_perc"] == 0


def status(client: httpx.Client, path: str, body: bytes | str, **headers: str) -> int:
    """Return the status of the reply to `body`, once it is seen to be an answer or an error object."""
    reply = client.post(path, content=body, headers={"Content-Type": "application/json"} | headers)
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(reply.content) <= 1024, reply.text
        expected = {400, 413, 422} if path == COMPLETIONS else {400, 404, 413}
        assert reply.status_code in expected, (path, body[:99], reply.text)
    return reply.status_code


def test_body_that_is_no_json_object_is_refused(client: httpx.Client) -> None:
    for name, body in NOT_JSON.items():
        for path in SOUND:
            assert status(client, path, body) in ({413} if "limit" in name else {400}), (name, path)


@pytest.mark.covers("http/max-body-size")
def test_body_as_large_as_the_limit_is_read(client: httpx.Client) -> None:
    for path, fields in SOUND.items():
        sound = json.dumps(fields).encode()
        assert status(client, path, sound + b" " * (LIMIT - len(sound))) == 200
    huge = "x " * (LIMIT // 2 - 100)
    assert status(client, COMPLETIONS, json.dumps({"prompt": huge})) == 422
    assert status(client, CHATS, json.dumps({"messages": [{"role": "user", "content": huge}]})) == 400
    assert status(client, COMPLETIONS, b'{"prompt": [' + b"5," * 4_900_000 + b"5]}") == 422
    assert status(client, DETOKENIZE, b'{"tokens": [' + b"-5," * 3_000_000 + b"5]}") == 400
    assert status(client, CHATS, b'{"messages": [' + b"{}," * 3_000_000 + b"{}]}") == 400


FOREIGN = {field.encode_name for field in msgspec.structs.fields(ForeignFields)}


@pytest.mark.covers("http/error-object")
def test_any_field_with_any_odd_value_is_answered_or_refused(client: httpx.Client) -> None:
    paths = client.get("/schema/openapi.json").json()["paths"]
    for path in SOUND:
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        foreign = sorted(FOREIGN & set(body["properties"]))[::9]  # one check is for all of them
        for name in [*(set(body["properties"]) - FOREIGN), *foreign, "\\ud800", "bogus", ""]:
            for raw in ODD:
                status(client, path, with_field(path, name, raw))


TAKEN = {
    "max_tokens": ["0", "-1", "1", "510"],
    "temperature": ["0", "100", "1e-300", "-0.0"],
    "top_p": ["0", "1e-300", "1"],
    "top_k": ["0", "-1", "1", "320", "321", str(2**63 - 1), str(2**64), str(10**30)],
    "min_p": ["0", "1"],
    "repetition_penalty": ["1e-300", "10"],
    "presence_penalty": ["-2", "2"],
    "frequency_penalty": ["-2", "2"],
    "n": ["1", "128"],
    "logprobs": ["0", "20", "true", "false"],
    "min_tokens": ["0", "2"],
    "seed": ["0", "-1", str(2**63 - 1), str(-(2**63))],
    "priority": [str(2**31 - 1), str(1 - 2**31)],
    "prompt": [json.dumps([5] * 510), "[319]", json.dumps(["x"] * 512), '"\\u0000"'],
    "stop": [json.dumps(["x" * 1023 + chr(33 + i) for i in range(64)]), '"' + "y" * 1024 + '"', '""'],
    "stop_token_ids": [json.dumps(list(range(VOCABULARY)))],
    "logit_bias": [json.dumps(dict.fromkeys(map(str, range(VOCABULARY)), -100)), '{"0": 100, "319": 100}'],
}
BEYOND = {
    "max_tokens": ["-2", "511", str(2**31), str(2**63), str(10**30)],
    "temperature": ["-1e-300", "100.0001"],
    "top_p": ["-0.001", "1.0001"],
    "top_k": ["-2"],
    "min_p": ["-0.001", "1.001"],
    "repetition_penalty": ["0", "10.001"],
    "presence_penalty": ["-2.001", "2.001"],
    "frequency_penalty": ["-2.001", "2.001"],
    "n": ["0", "129", str(10**30)],
    "logprobs": ["-1", "21"],
    "min_tokens": ["-1", "3"],
    "seed": [str(2**63), str(-(2**63) - 1)],
    "priority": [str(2**31), str(-(2**31)), str(10**30)],
    "prompt": [json.dumps([5] * 511), "[320]", "[-1]", json.dumps(["x"] * 2049), f"[{2**63}]"],
    "stop": [json.dumps(["x"] * 65), '"' + "y" * 1025 + '"'],
    "stop_token_ids": [json.dumps([5] * 1025), "[320]", "[-1]", f"[{10**30}]"],
    "logit_bias": [json.dumps(dict.fromkeys(map(str, range(1024)), 1)), '{"0": 100.1}', '{"0": -100.1}', '{"320": 1}'],
}


@pytest.mark.covers("http/body-sampling")
@pytest.mark.parametrize("place", ["--engine-process", "--no-engine-process"], scope="module")
def test_every_field_is_taken_to_its_ends_and_refused_beyond(client: httpx.Client) -> None:
    sent = [(200, name, raw) for name in TAKEN for raw in TAKEN[name]]
    sent += [(422, name, raw) for name in BEYOND for raw in BEYOND[name]]
    for expected, name, raw in sent:
        assert status(client, COMPLETIONS, with_field(COMPLETIONS, name, raw)) == expected, (name, raw[:60])


CONTENT_TYPES = ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "text/json; charset=x"]


def test_body_is_read_the_same_whatever_it_says_of_itself_or_says_twice(client: httpx.Client) -> None:
    for content_type in [*CONTENT_TYPES, "", "/", "\xff", "application/json" * 1000]:
        for path, body in SOUND.items():
            header = [(b"Content-Type", content_type.encode("latin-1"))]
            assert client.post(path, content=json.dumps(body), headers=header).status_code == 200, content_type
    assert status(client, COMPLETIONS, b'{"max_tokens": 1' + b', "prompt": "x"' * 100_000 + b"}") == 200
    assert status(client, COMPLETIONS, b'{"max_tokens": 1, "prompt": "x", "prompt": []}') == 400


def connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=30)


def everything(connection: socket.socket) -> bytes:
    """Return what the server sends until it closes, in good order or not."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


LENGTHY = {"prompt": "x", "max_tokens": 50, "ignore_eos": True}


def test_dripping_sockets_keep_nobody_from_being_answered(client: httpx.Client) -> None:
    with ExitStack() as opened:
        dripping = [opened.enter_context(connect(client)) for _ in range(48)]
        for index, connection in enumerate(dripping):
            connection.sendall(UNFINISHED[index % len(UNFINISHED)])
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + 1.5:
            for connection in dripping:
                with suppress(ConnectionError):  # the server may be rid of it already
                    connection.sendall(b"a")
            assert client.get("/health", timeout=5).status_code == 200
            assert client.post(COMPLETIONS, content=SHORT).status_code == 200
            time.sleep(0.1)
        replies = [everything(connection) for connection in dripping]
    assert time.monotonic() < begun_s + 15
    assert {reply[:12] for reply in replies} <= {b"HTTP/1.1 408", b"HTTP/1.1 400", b""}
    assert sum(b'{"error":' in reply for reply in replies) > 20


def test_connections_cut_at_any_point_leave_nothing_behind(client: httpx.Client) -> None:
    for request in requests_to_cut(16):
        for end in places_of_cuts(request):
            with connect(client) as half_closed, connect(client) as closed:
                for connection in (half_closed, closed):
                    connection.sendall(request[:end])
                half_closed.shutdown(socket.SHUT_WR)
                closed.close()
                assert b" 500 " not in everything(half_closed)
        assert client.get("/health").status_code == 200


def test_requests_in_one_piece_and_in_single_bytes_are_answered_in_order(client: httpx.Client) -> None:
    bad, last = post(b"[" * 100_000), post(SHORT, b"Connection: close", b"Expect: 100-continue")
    with connect(client) as connection:
        connection.sendall((post(SHORT) + bad + post_in_chunks(SHORT + b" " * 20_000)) * 3 + last)
        replies = everything(connection)
    found = re.findall(rb"HTTP/1.1 (\d+) ", replies)
    assert [status for status in found if status != b"100"] == [b"200", b"400", b"200"] * 3 + [b"200"]


REQUEST_IDS = [b"", b"\x01", b"\x7f", b"\xff\xfe", b"a b", b"a\tb", b"x" * 200, b"x" * 60_000, b'"}{', b"%0d%0aX: y"]


def test_request_ids_are_sane_in_replies_and_may_be_equal(client: httpx.Client) -> None:
    for sent in REQUEST_IDS:
        with connect(client) as connection:
            connection.sendall(post(SHORT, b"X-Request-Id: " + sent, b"Connection: close"))
            reply = everything(connection)
        assert reply[9:12] in (b"200", b"400"), (sent, reply)
        assert len(re.findall(rb"\r\nx-request-id: [\x21-\x7e]{1,128}\r\n", reply)) == 1, (sent, reply)
    same = {"X-Request-Id": "same"}
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: client.post(COMPLETIONS, json=LENGTHY, headers=same), range(16)))
    assert {(reply.status_code, reply.headers["x-request-id"]) for reply in replies} == {(200, "same")}

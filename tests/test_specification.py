"""Sentences of the specification that only a whole server can prove: what it shares, writes, and does when stuck."""

import json
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer
from infer_proofs.server import metric_samples

Serve = Callable[..., AbstractContextManager[Any]]
PLACES = ["--engine-process", "--no-engine-process"]
LONG: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 1000, "ignore_eos": True}


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, for a minute at most."""
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def metric(client: httpx.Client, name: str) -> float:
    """Return the value of the one series that the metric `name` has."""
    samples = metric_samples(client.get("/metrics").text)
    [value] = [value for (known, _), value in samples.items() if known == f"infer:{name}"]
    return value


@contextmanager
def unread(url: str, **fields: object) -> Iterator[None]:
    """A request whose answer nobody reads: the end of the block is the end of its connection."""
    connection = HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", "/v1/completions", json.dumps(LONG | fields))
    try:
        yield
    finally:
        connection.close()


def cached_tokens(client: httpx.Client, key: str, **fields: object) -> int:
    """Return how many tokens of one long prompt are found in the cache for a caller with `key`."""
    body = {"prompt": list(range(10, 210)), "max_tokens": 1} | fields
    reply = client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    details = reply.json()["usage"].get("prompt_tokens_details")
    return int(details["cached_tokens"]) if details else 0


@pytest.mark.covers("kv-cache/cache-salt", "http/prompt-logprobs-read-no-cache")
def test_prefixes_are_shared_by_key_and_salt_and_never_read_for_prompt_logprobs(serve: Serve, folder: Path) -> None:
    flags = ("--model", str(folder), "--block-size", "16", "--api-key", "ann", "--api-key", "bob")
    with serve(*flags) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert cached_tokens(client, "ann") == 0
        assert cached_tokens(client, "ann") == 192
        assert cached_tokens(client, "bob") == 0
        assert cached_tokens(client, "ann", cache_salt="x") == 0
        assert cached_tokens(client, "ann", cache_salt="x") == 192
        assert cached_tokens(client, "ann", echo=True, logprobs=1) == 0
        assert client.get("/playground/batch").status_code == 401


@pytest.mark.covers("http/error-no-template")
def test_conversation_for_a_model_without_a_template_is_400_and_texts_go_on(serve: Serve, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "model")
    save_tiny_tokenizer(tmp_path / "model", chat_template=None)
    chat = {"messages": [{"role": "user", "content": "x"}]}
    with serve("--model", str(tmp_path / "model")) as server:
        for path in ("/v1/chat/completions", "/tokenize"):
            reply = httpx.post(server.url + path, json=chat)
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "chat_template_unusable")
        reply = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 2})
        assert reply.status_code == 200


@pytest.mark.parametrize("place", PLACES)
def test_standard_error_of_a_whole_life_is_nothing_but_its_log(
    serve: Serve, folder: Path, tmp_path: Path, place: str
) -> None:
    with serve("--model", str(folder), "--log-format", "json", place) as server:
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
        assert server.terminate() == 0
    records = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines()]
    messages = [record["message"].split(":")[0] for record in records]
    assert messages == ["Speculative decoding by `suffix`, up to 16 draft tokens", "request", "SIGTERM"]


@pytest.mark.parametrize("place", PLACES)
def test_server_that_can_write_nothing_serves_and_ends_cleanly(folder: Path, tmp_path: Path, place: str) -> None:
    """No file may grow, there is no home and no place for temporary files, and its output is full."""
    socket_path = tmp_path / "socket"
    program = f"import resource; resource.setrlimit({resource.RLIMIT_FSIZE}, (0, 0)); "
    program += "import sys, infer_server.cli; sys.exit(infer_server.cli.main())"
    flags = ["--model", str(folder), "--uds", str(socket_path), place]
    nowhere = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(tmp_path / "nowhere"))
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen([sys.executable, "-c", program, *flags], stdout=full, stderr=full, env=nowhere)
    with process, httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_path)), base_url="http://server") as client:
        try:
            until(lambda: process.poll() is not None or listens(socket_path))
            reply = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=60)
            assert reply.status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.mark.covers("http/stuck-engine", "http/ready-while-draining")
def test_stuck_core_ends_its_streams_turns_health_red_and_exits_with_1(serve: Serve) -> None:
    with serve("--engine-process", "--step-timeout-s", "1") as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG | {"stream": True}, timeout=60) as reply:
            lines = reply.iter_lines()
            assert "token_id" in next(lines)
            [core] = psutil.Process(server.process.pid).children()
            core.suspend()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "engine_stuck"
        assert httpx.get(f"{server.url}/health").status_code == 503
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        assert server.process.wait(timeout=30) == 1
        core.wait(timeout=10)


@pytest.mark.covers("requests/aborted", "http/abort-within-a-step")
def test_clients_that_leave_in_any_state_leave_nothing_and_no_warning(serve: Serve, tmp_path: Path) -> None:
    with serve("--max-batch-size", "1") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as running:
            lines = running.iter_lines()
            assert "token_id" in next(lines)
            for stream in (True, False):
                with unread(server.url, stream=stream):
                    until(lambda: metric(client, "num_requests_waiting") == 1)
                until(lambda: metric(client, "num_requests_waiting") == 0)
        until(lambda: metric(client, "num_requests_running") == 0)
        with unread(server.url):
            until(lambda: metric(client, "num_requests_running") == 1)
        until(lambda: metric(client, "num_requests_running") == 0)
        assert metric(client, "num_aborted_requests_total") == 4
        assert metric(client, "kv_cache_usage_perc") == 0
        assert server.terminate() == 0
    log = (tmp_path / "server.log").read_text()
    assert not {"WARNING", "ERROR", "Traceback"} & set(log.split())


@pytest.mark.covers("http/tokenizing-off-the-loop")
def test_health_is_told_while_five_megabytes_are_tokenized(demo_server: Any) -> None:
    with httpx.Client(base_url=demo_server.url, timeout=120) as client, ThreadPoolExecutor(1) as pool:
        text = "To be, or not to be. " * 240_000
        tokenized = pool.submit(httpx.post, f"{demo_server.url}/tokenize", json={"prompt": text}, timeout=120)
        waits_s = []
        while wait([tokenized], timeout=0.1).not_done:
            asked_s = time.monotonic()
            assert client.get("/health").status_code == 200
            waits_s.append(time.monotonic() - asked_s)
        assert tokenized.result().json()["count"] > 1_000_000
        assert len(waits_s) > 3
        assert max(waits_s) < 1


@pytest.mark.covers("command-line-and-library/first-curl")
def test_first_request_that_the_server_suggests_is_answered(serve: Serve) -> None:
    with serve("--api-key", "secret") as server:
        words = shlex.split(server.banner.split("Try it:")[1])
        url = next(word for word in words if word.startswith("http"))
        headers = dict(words[i + 1].split(": ") for i, word in enumerate(words) if word == "-H")
        headers["Authorization"] = headers["Authorization"].replace("$INFER_API_KEY", "secret")
        reply = httpx.post(url, content=words[words.index("-d") + 1], headers=headers, timeout=60)
    assert reply.status_code == 200
    assert reply.text.endswith("data: [DONE]\n\n")

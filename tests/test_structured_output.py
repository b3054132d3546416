"""Structured output over HTTP, by a real client: what is generated, what is refused, and who waits meanwhile."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "night": {"type": "boolean"}},
    "required": ["city", "night"],
    "additionalProperties": False,
}
HOSTILE: list[dict[str, Any]] = [
    {"json": {"type": "integer", "multipleOf": 999983}},
    {"json": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (9973, 9967, 9949, 9941)]}},
    {"json": {"anyOf": [{"type": "string", "pattern": f"^(a|b)*{n}(a|b){{900}}$"} for n in range(20)]}},
    {"regex": "((a{1,200}){1,200}){1,200}"},
    {"regex": "(.*a){500}(.*b){500}"},
    {"grammar": "start: " + "(" * 3000 + '"a"' + ")" * 3000},
    {"grammar": "start: a\na: a a | " + " | ".join(f'"{n}"' for n in range(4000))},
    {"choice": [f"{n}" * 60 for n in range(1000)]},
]  # fmt: skip


Serve = Callable[..., AbstractContextManager[Any]]


@pytest.mark.covers("structured-tools-agents/response-format")
def test_the_openai_client_gets_what_it_asks_for(demo_server: Any) -> None:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="-") as client:
        wanted: Any = {"type": "json_schema", "json_schema": {"name": "stay", "schema": SCHEMA, "strict": True}}
        messages: Any = [{"role": "user", "content": "Where?"}]
        model = client.models.list().data[0].id
        chat = client.chat.completions.create(
            model=model, messages=messages, response_format=wanted, seed=1, max_tokens=200
        )
        assert set(json.loads(chat.choices[0].message.content or "")) == {"city", "night"}
        assert chat.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(
            model=model, messages=messages, response_format=wanted, seed=1, max_tokens=200, stream=True
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert streamed == chat.choices[0].message.content
        short = client.chat.completions.create(
            model=model, messages=messages, response_format={"type": "json_object"}, seed=1, max_tokens=1
        )
        assert short.choices[0].finish_reason == "length"
        choice: Any = {"structured_outputs": {"choice": ["To be", "not to be"]}}
        completion = client.completions.create(model=model, prompt="Hamlet:", extra_body=choice, n=3)
        assert {each.text for each in completion.choices} <= {"To be", "not to be"}
        broken: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"frobnicate": 1}, "strict": True}}
        with pytest.raises(openai.BadRequestError, match="frobnicate") as refusal:
            client.chat.completions.create(model=model, messages=messages, response_format=broken)
        assert refusal.value.param == "response_format"


@pytest.mark.covers("structured-tools-agents/hostile-grammars-hold-up-nobody")
def test_hostile_grammars_hold_up_nobody(serve: Serve, folder: Path) -> None:
    """Others' gaps and `/health` are bounded generously here, for busy machines."""
    with (
        serve("--model", str(folder), "--max-seq-len", "512") as server,
        httpx.Client(base_url=server.url, timeout=90) as client,
    ):
        small = {"prompt": [5, 6, 7], "max_tokens": 8}
        assert client.post("/v1/completions", json=small | {"structured_outputs": {"choice": ["ab"]}}).is_success
        memory_before = _memory_mb(server.process.pid)
        times: list[float] = []
        stop = threading.Event()
        stream = threading.Thread(target=_note_times, args=(server.url, times, stop))
        stream.start()
        waits: list[float] = []
        statuses: list[int | str] = []
        with httpx.Client(base_url=server.url, timeout=90) as attacker, ThreadPoolExecutor(1) as pool:
            for each in HOSTILE:
                attack = pool.submit(_attack, attacker, small | {"structured_outputs": each})
                while not attack.done():
                    began_s = time.perf_counter()
                    assert client.get("/health").status_code == 200
                    waits.append(time.perf_counter() - began_s)
                    time.sleep(0.01)
                statuses.append(attack.result())
        stop.set()
        stream.join()
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert len(statuses) == len(HOSTILE)
        assert set(statuses) <= {200, 422, "grammar_failed"}
        assert statuses.count(422) >= 4
        assert max(waits) < 1.0, sorted(waits)[-5:]
        assert max(gaps) < 1.0, sorted(gaps)[-5:]
        assert client.post("/v1/completions", json=small | {"structured_outputs": {"choice": ["cd"]}}).is_success
        assert _memory_mb(server.process.pid) < memory_before + 150


def _memory_mb(pid: int) -> float:
    """Return what the server and all its processes hold."""
    server = psutil.Process(pid)
    return sum(each.memory_full_info().uss for each in (server, *server.children(recursive=True))) / 1e6


def _attack(client: httpx.Client, body: dict[str, Any]) -> int | str:
    """Return the status, or the code of a request that failed while it was computed."""
    reply = client.post("/v1/completions", json=body)
    return str(reply.json()["error"]["code"]) if reply.status_code == 500 else reply.status_code


def _note_times(url: str, times: list[float], stop: threading.Event) -> None:
    """Note when the tokens of one free stream after another come, until `stop`."""
    body = {"prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True, "stream": True}
    while not stop.is_set():
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if "token_id" in line:
                    times.append(time.perf_counter())
                if stop.is_set():
                    break

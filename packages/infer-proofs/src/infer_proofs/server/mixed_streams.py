"""Streams of several kinds at once, whose texts do not depend on what else a server does. Needs httpx."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from infer_proofs.server.parsing import metric_samples

NUM_TOKENS = 200

_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("v1/completions", {"prompt": "ROMEO:\n", "temperature": 0}),
    ("v1/completions", {"prompt": "JULIET:\n", "temperature": 1, "seed": 1, "frequency_penalty": 0.5}),
    ("v1/completions", {"prompt": "A code: ", "seed": 2, "structured_outputs": {"regex": "([a-f][0-9]){120}"}}),
    ("v1/chat/completions", {"messages": [{"role": "user", "content": "Who is there?"}], "seed": 3}),
]


def mixed_bodies(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the paths and bodies of requests: greedy, sampled, with a grammar, chats; prompts of their own."""
    found = []
    for index in range(number):
        path, body = _BODIES[index % len(_BODIES)]
        more = {"prompt": f"{index}. {body['prompt']}"} if "prompt" in body else {}
        found.append((path, {"max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True, **body, **more}))
    return found


def read_stream(
    url: str,
    path: str,
    body: dict[str, Any],
    *,
    timeout_s: float = 120.0,
    on_event: Callable[[], object] = lambda: None,
) -> str:
    """Return the text of a stream, which must be whole; call `on_event` for each event."""
    text, last = "", ""
    with httpx.stream("POST", f"{url}/{path}", json=body, timeout=timeout_s) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                last = line or last
                continue
            on_event()
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    assert last == "data: [DONE]", last
    return text


def read_streams(
    url: str, bodies: Sequence[tuple[str, dict[str, Any]]], *, on_event: Callable[[], object] = lambda: None
) -> list[str]:
    """Return the texts of streams that are read at the same time; call `on_event`, in threads, for each event."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda stream: read_stream(url, *stream, on_event=on_event), bodies))


def sample(url: str, stem: str) -> float:
    """Return the sum of the samples of the metric `infer:{stem}`."""
    samples = metric_samples(httpx.get(f"{url}/metrics", timeout=30).text)
    return sum(value for (name, _), value in samples.items() if name == f"infer:{stem}")

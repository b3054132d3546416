"""The whole product: the demo model, served over HTTP, read by real clients."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import openai
import pytest

from infer_models.hub import DEMO_MODEL_NAME, default_model_name

Serve = Callable[..., AbstractContextManager[Any]]


@pytest.mark.covers("command-line-and-library/serves-demo")
def test_without_any_flag_a_model_that_is_installed_is_served(serve: Serve) -> None:
    with serve(model=None) as server:
        assert [each["id"] for each in httpx.get(f"{server.url}/v1/models").json()["data"]] == [default_model_name()]
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"temperature": 0}, timeout=60).json()
        assert default_model_name() == DEMO_MODEL_NAME or "Paris" in reply["choices"][0]["message"]["content"]
        assert reply["usage"]["completion_tokens"] > 0


@pytest.mark.covers("http/model-id")
def test_the_demo_model_is_served_and_ends_cleanly(serve: Serve) -> None:
    with serve() as server:
        assert "infer-demo" in server.banner
        assert f"curl -N {server.url}/v1/chat/completions" in server.banner
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            assert [model.id for model in client.models.list()] == ["infer-demo"]
            request: dict[str, Any] = {"model": "infer-demo", "prompt": "ROMEO:\n", "max_tokens": 16, "seed": 3}
            deltas = [chunk.choices[0].text for chunk in client.completions.create(**request, stream=True)]
            whole = client.completions.create(**request)
        assert len(deltas) > 10
        assert "".join(deltas) == whole.choices[0].text
        assert server.terminate() == 0


def test_sigterm_lets_running_streams_finish(serve: Serve) -> None:
    body = {"prompt": "ROMEO:\n", "max_tokens": 300, "stream": True, "ignore_eos": True}
    with serve() as server, httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        server.process.terminate()
        rest = [line for line in lines if line.startswith("data: ")]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["usage"]["completion_tokens"] == 300
        assert server.process.wait(timeout=30) == 0

"""The whole product: checkpoints saved by transformers, served over HTTP, read by real clients."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from infer_models.testing import save_tiny_gemma3, save_tiny_llama, save_tiny_qwen3, save_tiny_tokenizer

NUM_PROMPTS = 8
NUM_TOKENS = 32
FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": save_tiny_llama,
    "qwen3": save_tiny_qwen3,
    "gemma3_text": save_tiny_gemma3,
}
Serve = Callable[..., AbstractContextManager[Any]]


def prompts(vocab_size: int) -> list[list[int]]:
    draw = random.Random(1)  # noqa: S311 - a test's choices
    return [[draw.randrange(3, vocab_size) for _ in range(draw.randint(1, 40))] for _ in range(NUM_PROMPTS)]


def greedy(model: Any, prompt: list[int]) -> list[int]:
    model.generation_config.eos_token_id = None
    out = model.generate(torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0)
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]  # transformers has no types


def streamed_ids(url: str, prompt: list[int]) -> list[int]:
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    ids = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if event.get("token_id") is not None:
                    ids.append(event["token_id"])
    return ids


@pytest.mark.parametrize("shard_size", ["1GB", "40KB"], ids=["one file", "shards"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_saved_by_transformers_gives_its_greedy_tokens_over_http_alone_and_together(
    family: str, shard_size: str, tmp_path: Path, serve: Serve
) -> None:
    folder = tmp_path / "checkpoint"
    model = FAMILIES[family](folder, max_shard_size=shard_size)
    vocab_size = model.config.vocab_size
    save_tiny_tokenizer(folder, vocab_size=vocab_size)
    assert (folder / "model.safetensors.index.json").exists() == (shard_size == "40KB")
    expected = [greedy(model, prompt) for prompt in prompts(vocab_size)]
    with serve("--model", str(folder), "--dtype", "float32", "--prefill-chunk-size", "16") as server:
        alone = [streamed_ids(server.url, prompt) for prompt in prompts(vocab_size)]
        with ThreadPoolExecutor(NUM_PROMPTS) as pool:
            together = list(pool.map(lambda prompt: streamed_ids(server.url, prompt), prompts(vocab_size)))
    assert alone == expected
    assert together == expected


def test_the_demo_model_is_served_without_any_flag_and_ends_cleanly(serve: Serve) -> None:
    with serve() as server:
        assert "infer-demo" in server.banner
        assert f"curl -N {server.url}/v1/completions" in server.banner
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

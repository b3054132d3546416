"""GGUF files behind a real server: tokens of the dequantized twin, chats, the prefix cache and schemas."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import transformers

from infer_proofs.engine.models import VOCAB_SIZE, greedy_tokens, random_prompt
from infer_proofs.models import save_tiny, save_tiny_tokenizer
from infer_proofs.models.gguf_files import save_gguf

PROMPT = random_prompt(17)
NUM_TOKENS = 16
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}

Serve = Callable[..., AbstractContextManager[Any]]


def as_q4_k_m(name: str) -> str:
    """Return the types of a common mixture: attention's values and the head in more bits."""
    return "Q6_K" if name.split(".")[-2] in ("attn_v", "ffn_down", "token_embd", "output") else "Q4_K"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A file, beside the checkpoint with its numbers in fp32."""
    save_tiny("llama", tmp_path, vocab_size=VOCAB_SIZE, **WIDE)
    save_tiny_tokenizer(tmp_path, vocab_size=VOCAB_SIZE)
    save_gguf(tmp_path, tmp_path / "tiny-Q4_K_M.gguf", kind_of=as_q4_k_m)
    return tmp_path / "tiny-Q4_K_M.gguf"


def twin_of(path: Path) -> Any:
    twin: Any = transformers.AutoModelForCausalLM.from_pretrained(path.parent)
    twin.eval()
    twin.generation_config.eos_token_id = None
    return twin


def completed(url: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True} | fields
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def streamed_ids(url: str) -> list[int]:
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    return [event["token_id"] for event in events if event.get("token_id") is not None]


@pytest.mark.covers("gguf/over-http")
def test_a_file_gives_the_tokens_of_its_dequantized_twin(checkpoint: Path, serve: Serve) -> None:
    twin = twin_of(checkpoint)
    with serve("--model", str(checkpoint), "--dtype", "float32", "--quantization", "none") as server:
        assert streamed_ids(server.url) == greedy_tokens(twin, PROMPT, NUM_TOKENS)
    with torch.inference_mode():
        expected = twin(torch.tensor([PROMPT])).logits[0, -1].log_softmax(dim=-1).max().item()
    with serve("--model", str(checkpoint), "--dtype", "float32") as server:
        (told,) = completed(server.url, max_tokens=1, logprobs=1)["choices"][0]["logprobs"]["token_logprobs"]
        assert abs(told - expected) <= 0.1  # inputs have eight bits


@pytest.mark.covers("gguf/over-http")
def test_what_other_checkpoints_can_do_files_can_do(checkpoint: Path, serve: Serve) -> None:
    with serve("--model", str(checkpoint.parent / checkpoint.name), "--served-model-name", "tiny") as server:
        long = [1, *PROMPT] * 10
        first, second = (completed(server.url, prompt=long) for _ in range(2))
        assert first["choices"][0]["text"] == second["choices"][0]["text"]
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=8, temperature=0
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens > 8  # the template of the metadata
            schema = {
                "type": "object",
                "properties": {"a": {"type": "boolean"}},
                "required": ["a"],
                "additionalProperties": False,
            }
            form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            strict = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=60, response_format=form
            )
            assert set(json.loads(strict.choices[0].message.content or "")) == {"a"}

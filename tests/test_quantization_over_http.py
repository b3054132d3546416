"""Quantized checkpoints behind a real server: its tokens and log-probabilities are those of the dequantized twins."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from infer_proofs.engine.models import VOCAB_SIZE, greedy_tokens, random_prompt
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import QUANTIZED_CHECKPOINTS, save_quantized, save_tiny, save_tiny_tokenizer

PROMPT = random_prompt(17)
NUM_TOKENS = 16
ONE_OF_EACH_METHOD = ("compressed_w4a16", "compressed_fp8_block", "fp8_block", "gptq", "awq")
QUICK = ("compressed_w4a16", "fp8_block")  # integers and floats; loading tells the methods apart, not the server


def marks_of(kind: str) -> Sequence[pytest.MarkDecorator]:
    """The full run takes one of each method, the long run all."""
    if kind in QUICK:
        return []
    return [pytest.mark.full if kind in ONE_OF_EACH_METHOD else pytest.mark.exhaustive]


Serve = Callable[..., AbstractContextManager[Any]]


def complete(url: str, **fields: Any) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        return client.completions.create(
            model=model,
            prompt=PROMPT,
            temperature=0,
            extra_body={"ignore_eos": True},
            **fields,
        )


def streamed_ids(url: str) -> list[int]:
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    return [event["token_id"] for event in events if event.get("token_id") is not None]


@torch.inference_mode()
def logprobs_of(twin: Any) -> torch.Tensor:
    """Return the log-probabilities of the token after the prompt, [vocab]."""
    logprobs: torch.Tensor = twin(torch.tensor([PROMPT])).logits[0, -1].log_softmax(dim=-1)
    return logprobs


def check_first_token(url: str, twin: Any, *, within: float) -> None:
    """Compare the log-probability of the most probable token, which tells more than the token."""
    (told,) = complete(url, max_tokens=1, logprobs=1).choices[0].logprobs.token_logprobs
    expected = logprobs_of(twin).max().item()
    assert abs(told - expected) <= within


@pytest.mark.covers("quantization/over-http")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks_of(kind)) for kind in QUANTIZED_CHECKPOINTS])
def test_a_quantized_checkpoint_is_served(kind: str, tmp_path: Path, serve: Serve) -> None:
    folder = tmp_path / "checkpoint"
    twin = save_quantized(folder, kind, is_sharded=True, vocab_size=VOCAB_SIZE).model
    save_tiny_tokenizer(folder, vocab_size=VOCAB_SIZE)
    twin.generation_config.eos_token_id = None
    if kind in ONE_OF_EACH_METHOD:  # the weights of all kinds are compared in the models' tests
        with serve("--model", str(folder), "--dtype", "float32", "--quantization", "none") as server:
            assert streamed_ids(server.url) == greedy_tokens(twin, PROMPT, NUM_TOKENS)
            check_first_token(server.url, twin, within=2e-3)
    with serve("--model", str(folder), "--dtype", "float32") as server:
        check_first_token(server.url, twin, within=0.1)
        assert len(complete(server.url, max_tokens=NUM_TOKENS).choices[0].text) > 0


@needs_cpu_kernels
@pytest.mark.parametrize(("quantization", "within"), [("int8", 0.1), ("int4", 1.0)])
def test_a_plain_checkpoint_is_quantized_while_it_is_read(
    quantization: str, within: float, tmp_path: Path, serve: Serve
) -> None:
    folder = tmp_path / "checkpoint"
    twin = save_tiny("qwen3", folder, vocab_size=VOCAB_SIZE, tie_word_embeddings=True)
    save_tiny_tokenizer(folder, vocab_size=VOCAB_SIZE)
    with serve("--model", str(folder), "--dtype", "float32", "--quantization", quantization) as server:
        check_first_token(server.url, twin, within=within)

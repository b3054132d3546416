"""Checkpoints of every family as `transformers` saves them: the server's tokens are those of `transformers`."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from infer_proofs.engine.models import ALL_FAMILIES, greedy_tokens, random_prompt, save_servable
from infer_proofs.models import CHAT_STYLES, save_chat_style

NUM_TOKENS = 24
LENGTHS = (1, 7, 16, 17, 40, 53)
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is Rome?"},
    {"role": "assistant", "content": "In Italy."},
    {"role": "user", "content": "naïve 日本,\n  who is there?"},
]
Serve = Callable[..., AbstractContextManager[Any]]
QUICK = ("llama", "gemma3", "gpt_oss", "qwen3_moe")
"""Families in whose servers anything may differ: windows, sinks, experts, templates."""
FULL = ("gemma4_moe", "granitemoehybrid", "lfm2", "mistral", "olmo3", "phi3", "qwen3_5")
"""Families that the full run adds: states, shared tensors, layers that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """How a checkpoint is saved: in `shards` or one file, with its LM head `tied` to the embedding or its own."""

    shards: bool
    tied: bool


def cases() -> Iterator[Any]:
    """Yield each family saved in two ways, which differ in both respects; the second is for the long run.

    Other runs have a few: each family's tokens are those of its twin in the models' and the engine's tests too.
    """
    for index, family in enumerate(ALL_FAMILIES):
        for is_first in (True, False):
            saved = Saved(shards=(index % 2 == 0) is is_first, tied=(index // 2 % 2 == 0) is is_first)
            name = f"{family}, {'shards' if saved.shards else 'one file'}, {'tied' if saved.tied else 'untied'}"
            first = () if family in QUICK else pytest.mark.full if family in FULL else pytest.mark.exhaustive
            yield pytest.param(family, saved, id=name, marks=first if is_first else pytest.mark.exhaustive)


def save(family: str, folder: Path, saved: Saved) -> Any:
    """Save a checkpoint with its family's chat template; return its twin of `transformers`."""
    shard_size = "40KB" if saved.shards else "1GB"
    twin = save_servable(family, folder, tie_word_embeddings=saved.tied, max_shard_size=shard_size)
    assert (folder / "model.safetensors.index.json").exists() is saved.shards
    names = [name for path in folder.glob("*.safetensors") for name in load_file(path)]
    assert any(name.endswith("lm_head.weight") for name in names) is not saved.tied
    save_chat_style(family, folder)
    return twin


def streamed_ids(url: str, prompt: Sequence[int]) -> list[int]:
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


def check_completions(url: str, twin: Any) -> None:
    prompts = [random_prompt(length) for length in LENGTHS]
    expected = [greedy_tokens(twin, prompt, NUM_TOKENS) for prompt in prompts]
    assert [streamed_ids(url, prompt) for prompt in prompts] == expected
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(lambda prompt: streamed_ids(url, prompt), prompts)) == expected


def prompt_by_transformers(family: str, folder: Path) -> tuple[list[int], PreTrainedTokenizerFast]:
    """Return the ids of `CONVERSATION` as `transformers` makes them of the files in `folder`, and its tokenizer."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    messages: list[dict[str, Any]] = CONVERSATION
    template = None
    if CHAT_STYLES[family].file == "chat_template.json":  # a processor's, which reads it and wants parts
        template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
        messages = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    ids = tokenizer.apply_chat_template(messages, chat_template=template, add_generation_prompt=True, return_dict=False)
    return ids, tokenizer


def check_chat(url: str, twin: Any, family: str, folder: Path) -> None:
    prompt, tokenizer = prompt_by_transformers(family, folder)
    tokenized = httpx.post(f"{url}/tokenize", json={"messages": CONVERSATION}).json()
    assert tokenized["tokens"] == prompt
    answer = tokenizer.decode(greedy_tokens(twin, prompt, NUM_TOKENS), skip_special_tokens=True)
    request: dict[str, Any] = {"messages": CONVERSATION, "max_tokens": NUM_TOKENS, "temperature": 0}
    request |= {"model": str(folder), "extra_body": {"ignore_eos": True}}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(**request)
        chunks = list(client.chat.completions.create(**request, stream=True))
    assert whole.choices[0].message.content == answer
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt), NUM_TOKENS)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answer


@pytest.mark.covers("models/safetensors-and-shards", "models/parity-sharded")
@pytest.mark.parametrize(("family", "saved"), list(cases()))
def test_a_checkpoint_saved_by_transformers_gives_its_greedy_tokens_over_http(
    family: str, saved: Saved, tmp_path: Path, serve: Serve
) -> None:
    folder = tmp_path / "checkpoint"
    twin = save(family, folder, saved)
    with serve("--model", str(folder), "--dtype", "float32", "--prefill-chunk-size", "16") as server:
        check_completions(server.url, twin)
        check_chat(server.url, twin, family, folder)

"""The bundled demo model: small, complete, and the same model to `transformers` as to us."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from infer_models import CausalLM, CausalView, GenerationConfig, ModelConfig, load_model
from infer_models.hub import demo_model_folder
from infer_models.text import Tokenizer

FOLDER = demo_model_folder()
PROMPTS = ["ROMEO:\n", "KING RICHARD III:\nNow is the", "First Citizen:\nBefore we proceed any further, hear me"]
CHAT = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return load_model(FOLDER, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(FOLDER)


def greedy(model: CausalLM, prompt_ids: list[int], num_tokens: int) -> list[int]:
    ids = list(prompt_ids)
    for _ in range(num_tokens):
        ids.append(int(next_logits(model, ids).argmax()))
    return ids[len(prompt_ids) :]


def sampled(model: CausalLM, prompt_ids: list[int], *, seed: int, num_tokens: int, end: int | None) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt_ids)
    while len(ids) < len(prompt_ids) + num_tokens and ids[-1] != end:
        shares = (next_logits(model, ids) / 0.8).softmax(0)
        ids.append(int(torch.multinomial(shares, 1, generator=generator)))
    return ids[len(prompt_ids) :]


def next_logits(model: CausalLM, ids: list[int]) -> torch.Tensor:
    last = torch.tensor([len(ids) - 1])
    logits: torch.Tensor = model(torch.tensor(ids), torch.arange(len(ids)), CausalView(), last)
    return logits[0]


def test_the_files_take_at_most_10_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 10_000_000


def test_it_has_3_to_5_million_parameters_and_a_context_of_1024(model: CausalLM) -> None:
    config = ModelConfig.from_folder(FOLDER)
    assert (config.model_type, config.dtype, config.max_position_embeddings) == ("llama", "bfloat16", 1024)
    assert 3_000_000 <= model.num_parameters <= 5_000_000


@pytest.mark.parametrize("prompt", PROMPTS)
def test_its_greedy_tokens_are_those_of_transformers(model: CausalLM, tokenizer: Tokenizer, prompt: str) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    token_ids = tokenizer.encode(prompt)
    ids = torch.tensor([token_ids])
    expected = theirs.generate(ids, do_sample=False, max_new_tokens=24, eos_token_id=None)  # type: ignore[misc]  # theirs
    assert greedy(model, token_ids, 24) == expected[0, len(token_ids) :].tolist()


@pytest.mark.covers("models/tokenizers")
def test_its_tokens_and_chats_are_those_of_transformers(tokenizer: Tokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer.encode(PROMPTS[2]) == theirs(PROMPTS[2])["input_ids"]
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode_chat(CHAT) == expected


def test_it_says_how_an_answer_ends(tokenizer: Tokenizer) -> None:
    assert list(GenerationConfig.from_folder(FOLDER).eos_token_ids) == [tokenizer.eos_token_id]


@pytest.mark.full
def test_it_writes_words_of_its_play(model: CausalLM, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("ROMEO:\n")
    text = tokenizer.decode(sampled(model, prompt, seed=0, num_tokens=200, end=None))
    words = [word.strip(".,;:!?'-").lower() for word in text.split()]
    common = {"i", "the", "and", "to", "of", "my", "that", "you", "a", "is", "be", "not", "thou", "with", "it", "in"}
    assert len(words) >= 60
    assert sum(word in common for word in words) >= len(words) / 8


@pytest.mark.full
def test_in_a_chat_its_answer_ends(model: CausalLM, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode_chat(CHAT)
    answers = [sampled(model, prompt, seed=seed, num_tokens=200, end=tokenizer.eos_token_id) for seed in range(4)]
    assert sum(answer[-1] == tokenizer.eos_token_id for answer in answers) >= 3


def test_the_card_says_how_it_was_made() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for fact in ("examples/train_demo.py --data", "nats per token", "bits per byte", "| parameters |", "| data |"):
        assert fact in card


def test_nothing_but_safetensors_and_text_is_bundled() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    described = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert names == {*described, "chat_template.jinja", "model.safetensors", "README.md"}
    assert all(isinstance(json.loads(Path(FOLDER / name).read_text(encoding="utf-8")), dict) for name in described)

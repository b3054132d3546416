"""Folders whose tokenizer is in older or other files: the engine loads them and makes the prompts of `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from infer_engine import LLM, SamplingParams
from infer_proofs.models import save_tiny, save_tiny_tokenizer

HELLO = [{"role": "user", "content": "hello my world"}]


def edit(path: Path, *drop: str, **fields: object) -> None:
    """Change fields of a JSON file."""
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({name: value for name, value in (old | fields).items() if name not in drop}))


def num_prompt_tokens(folder: Path, prompt: Any) -> int:
    llm = LLM(str(folder), kv_cache_memory="32MiB", max_batch_size=2)
    ask = llm.generate if isinstance(prompt, str) else llm.chat
    [done] = ask(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
    return done.num_prompt_tokens


def test_vocabulary_and_merges_are_a_tokenizer(tmp_path: Path) -> None:
    # huggingface/text-embeddings-inference#122, ggml-org/llama.cpp#3732
    save_tiny("qwen2", tmp_path)
    save_tiny_tokenizer(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *lines]))
    (tmp_path / "tokenizer.json").unlink()
    edit(tmp_path / "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer")
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert num_prompt_tokens(tmp_path, "hello my world") == len(theirs("hello my world")["input_ids"])
    assert num_prompt_tokens(tmp_path, HELLO) == len(
        theirs.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    )


@pytest.mark.parametrize("as_object", [True, False])
def test_special_tokens_may_be_named_in_their_own_file(tmp_path: Path, as_object: bool) -> None:  # noqa: FBT001 - a case
    # ggml-org/llama.cpp#5040, huggingface/text-generation-inference#1132
    save_tiny("llama", tmp_path)
    save_tiny_tokenizer(tmp_path)
    edit(tmp_path / "tokenizer_config.json", "bos_token", "eos_token", "pad_token")
    named = {name: f"<{name.removesuffix('_token')}>" for name in ("bos_token", "eos_token", "pad_token")}
    edit(
        tmp_path / "special_tokens_map.json",
        **{name: {"content": text, "lstrip": False} if as_object else text for name, text in named.items()},
    )
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    assert expected[0] == theirs.bos_token_id
    assert num_prompt_tokens(tmp_path, HELLO) == len(expected)


def test_a_tokenizer_that_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    save_tiny("mistral", tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(Exception, match=r"tekken\.json is the only tokenizer, .* add the `tokenizer\.json`"):
        LLM(str(tmp_path), kv_cache_memory="32MiB", max_batch_size=2)

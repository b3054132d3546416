"""Tokens that a checkpoint says are never generated: of no request, and of no draft."""

import json
from pathlib import Path
from typing import Any

import pytest

from infer_engine import LLM, SamplingParams
from infer_models.text import Tokenizer
from infer_proofs.models import save_scripted

SCRIPT = ["one", "<|image|>", " two", " three"]
PROMPT = ("one", "<|image|>", " two", "one")
"""Whose end was followed by the image before, as drafts of repeated words have it."""

NGRAM = '{"method": "ngram", "prompt_lookup_min": 1}'


def ids(folder: Path, *texts: str) -> list[int]:
    tokenizer = Tokenizer.from_folder(folder)
    known = {tokenizer.decode([token], skip_special_tokens=False): token for token in range(tokenizer.vocab_size)}
    return [known[text] for text in texts]


@pytest.mark.parametrize("drafts", [None, NGRAM], ids=["alone", "drafted"])
@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 1, "seed": 1}, {"temperature": 0, "min_tokens": 3}]
)
def test_a_suppressed_token_is_in_no_answer(params: dict[str, Any], drafts: Any, tmp_path: Path) -> None:
    # cloudrift-ai/emmy#413, microsoft/onnxruntime-genai#2201: Gemma 4 writes tokens of images
    save_scripted(tmp_path, SCRIPT, special_tokens=["<|image|>"])
    (image,) = ids(tmp_path, "<|image|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"suppress_tokens": [image]}))
    llm = LLM(str(tmp_path), kv_cache_memory="16MiB", max_batch_size=2, speculative_config=drafts)
    prompt = ids(tmp_path, *PROMPT)
    [done] = llm.generate([prompt], SamplingParams(max_tokens=8, ignore_eos=True, **params), use_tqdm=False)
    assert len(done.token_ids) == 8
    assert image not in done.token_ids


def test_a_token_that_may_not_begin_an_answer_may_be_later_in_it(tmp_path: Path) -> None:
    save_scripted(tmp_path, SCRIPT[:1] + SCRIPT[2:], special_tokens=["<|image|>"])
    one, two, three = ids(tmp_path, "one", " two", " three")
    (tmp_path / "generation_config.json").write_text(json.dumps({"begin_suppress_tokens": [one]}))
    llm = LLM(str(tmp_path), kv_cache_memory="16MiB", max_batch_size=2)
    [done] = llm.generate(["hello"], SamplingParams(max_tokens=6, temperature=0, ignore_eos=True), use_tqdm=False)
    assert done.token_ids[0] != one
    assert {one, two, three} <= set(done.token_ids)

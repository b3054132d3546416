"""The engine over real (tiny) models: `transformers`' own tokens, and the same ones in whatever company."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from infer_engine import LLM, SamplingParams
from infer_engine.frontend.completion import Completion
from infer_engine.protocol import (
    CheckpointUnusableError,
    ContextLengthExceededError,
    FinishReason,
    InvalidRequestError,
)
from infer_proofs.engine.models import FAMILIES, VOCAB_SIZE, Twin, greedy_tokens, random_prompt
from infer_proofs.kernels.pairwise import parametrize_each_value
from infer_proofs.models import save_tiny_tokenizer

NUM_TOKENS = 16
PROMPTS = [random_prompt(length) for length in (1, 3, 8, 9, 17, 40)]
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def expected_of(twin_of: Callable[[str], Twin]) -> Callable[[str], list[list[int]]]:
    """Return a function that gives what `transformers` generates from each family's checkpoint for each prompt."""
    return cache(lambda family: [greedy_tokens(twin_of(family).model, prompt, NUM_TOKENS) for prompt in PROMPTS])


@pytest.fixture
def expected(family: str, expected_of: Callable[[str], list[list[int]]]) -> list[list[int]]:
    """What `transformers` generates from the family's checkpoint for each prompt."""
    return expected_of(family)


@pytest.fixture
def folder(folder_of: Callable[[str], Path]) -> Path:
    """The checkpoint of one family, where any will do."""
    return folder_of("llama")


def token_ids(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


SWITCHES: dict[str, dict[str, Any]] = {
    "default": {},
    "one by one": {"max_batch_size": 1},
    "chunks of 4": {"prefill_chunk_size": 4},
    "whole prompts": {"use_chunked_prefill": False},
    "block size 1": {"block_size": 1, "prefill_chunk_size": 5},
    "block size 5": {"block_size": 5, "max_num_batched_tokens": 7},
    "tiny pool": {"block_size": 4, "num_kv_blocks": 15, "kv_reserve": 0.0, "max_seq_len": 60},
}


@pytest.mark.covers("command-line-and-library/generate")
@parametrize_each_value(family=list(FAMILIES), switches=list(SWITCHES))
def test_greedy_tokens_are_those_of_transformers_with_every_switch(
    twin: Twin, expected: list[list[int]], switches: str
) -> None:
    llm = LLM(str(twin.folder), dtype="float32", **SWITCHES[switches])
    assert token_ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected


@pytest.mark.covers("scheduling/preempted-output")
def test_a_pool_too_small_for_all_preempts_and_changes_nothing(twin: Twin, expected: list[list[int]]) -> None:
    llm = LLM(str(twin.folder), dtype="float32", block_size=4, num_kv_blocks=15, kv_reserve=0.0, max_seq_len=60)
    assert token_ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
    stats = llm.stats
    assert stats.num_preemptions > 0
    assert (stats.num_free_blocks, stats.num_leaked_blocks) == (stats.num_blocks, 0)


@pytest.mark.covers("requests/seed-in-any-batch")
def test_a_seed_gives_the_same_tokens_alone_and_in_company(folder: Path) -> None:
    llm = LLM(str(folder), dtype="float32")
    params = [SamplingParams(temperature=0.8, top_p=0.9, seed=seed, max_tokens=12) for seed in range(len(PROMPTS))]
    together = token_ids(llm.generate(PROMPTS, params, use_tqdm=False))
    alone = [
        token_ids(llm.generate([prompt], param, use_tqdm=False))[0]
        for prompt, param in zip(PROMPTS, params, strict=True)
    ]
    assert together == alone


@pytest.mark.covers("configuration/seed")
def test_the_base_seed_makes_requests_without_their_own_reproducible(folder: Path) -> None:
    def run(seed: int) -> list[list[int]]:
        llm = LLM(str(folder), dtype="float32", seed=seed)
        return token_ids(llm.generate(PROMPTS[:3], SamplingParams(max_tokens=12), use_tqdm=False))

    [same_prompt, twice] = LLM(str(folder), seed=1).generate(
        [PROMPTS[0], PROMPTS[0]], SamplingParams(max_tokens=12), use_tqdm=False
    )
    assert same_prompt.token_ids != twice.token_ids
    assert run(1) == run(1)
    assert run(1) != run(2)


def test_texts_are_the_decoded_tokens_and_a_stop_string_cuts_them(folder: Path) -> None:
    llm = LLM(str(folder), dtype="float32")
    [whole] = llm.generate("hello", GREEDY, use_tqdm=False)
    assert len(whole.text) > 4
    stop = whole.text[3:5]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, stop=(stop,))
    [cut] = llm.generate("hello", params, use_tqdm=False)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]


@pytest.mark.covers("command-line-and-library/chat")
def test_chat_renders_the_checkpoints_template(folder: Path) -> None:
    llm = LLM(str(folder), dtype="float32")
    messages = [{"role": "user", "content": "hi"}]
    [answer] = llm.chat(messages, GREEDY, use_tqdm=False)
    [same] = llm.chat([messages], GREEDY, use_tqdm=False)
    assert answer.token_ids == same.token_ids
    assert answer.num_prompt_tokens > len("hi")


def test_a_refused_prompt_leaves_nothing_behind(folder: Path) -> None:
    llm = LLM(str(folder), dtype="float32", max_seq_len=64)
    with pytest.raises(ContextLengthExceededError, match="maximum context length is 64 tokens"):
        llm.generate([[5], [5] * 60], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="`prompt` is empty"):
        llm.generate([[]], GREEDY, use_tqdm=False)
    with pytest.raises(ValueError, match="2 entries for 1 prompts"):
        llm.generate([[5]], [GREEDY, GREEDY], use_tqdm=False)
    assert llm.stats.num_running == llm.stats.num_waiting == 0


@pytest.mark.covers("command-line-and-library/progress-bar")
def test_a_progress_bar_goes_to_standard_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LLM(str(folder), dtype="float32").generate(PROMPTS[:2], GREEDY)
    captured = capsys.readouterr()
    assert "2/2" in captured.err
    assert captured.out == ""


@pytest.mark.covers("models/dummy-weights", "configuration/load-format")
def test_dummy_weights_need_nothing_but_a_config(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    llm = LLM(str(tmp_path), load_format="dummy")
    [completion] = llm.generate("bytes", GREEDY, use_tqdm=False)
    assert completion.num_prompt_tokens == len("bytes")
    assert len(completion.token_ids) == NUM_TOKENS


def test_a_tokenizer_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    save_tiny_tokenizer(tmp_path, vocab_size=VOCAB_SIZE + 1)
    with pytest.raises(CheckpointUnusableError, match="belongs to another model"):
        LLM(str(tmp_path))


def test_a_tokenizer_with_added_tokens_beyond_the_embedding_is_usable_without_them(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    llm = LLM(str(tmp_path))
    assert llm.info.vocab_size == VOCAB_SIZE
    with pytest.raises(InvalidRequestError, match=f"token id {VOCAB_SIZE}"):
        llm.generate("<image>", GREEDY, use_tqdm=False)


def test_prompts_may_be_tuples_of_ids(folder: Path) -> None:
    llm = LLM(str(folder), dtype="float32")
    prompt: Any = tuple(PROMPTS[2])
    assert token_ids(llm.generate(prompt, GREEDY, use_tqdm=False)) == token_ids(
        llm.generate(PROMPTS[2], GREEDY, use_tqdm=False)
    )


@pytest.mark.covers("configuration/model")
def test_the_demo_model_writes_text() -> None:
    llm = LLM("infer-demo")
    [completion] = llm.generate("ROMEO:\n", SamplingParams(max_tokens=20, seed=1), use_tqdm=False)
    assert len(completion.text) > 10
    assert llm.info.model == "infer-demo"

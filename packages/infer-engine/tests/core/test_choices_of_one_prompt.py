"""`n` continuations of one prompt: different where they are drawn, each the one of its own seed, in every mode."""

from pathlib import Path
from typing import Any

import pytest

from infer_engine import LLM, SamplingParams
from infer_proofs.engine.models import FAMILIES, random_prompt
from infer_proofs.kernels.pairwise import parametrize_each_value

PROMPT = random_prompt(30)
NUM_TOKENS = 10
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "static": {"batching_mode": "static", "batch_wait_timeout_s": 0.0},
    "contiguous": {"kv_cache_backend": "contiguous", "prefill_chunk_size": 8},
    "one by one": {"max_batch_size": 1},
    "small blocks": {"block_size": 1, "prefill_chunk_size": 5},
    "no prefix caching": {"block_size": 4, "use_prefix_caching": False},
    "prefill first": {"scheduler_policy": "prefill_first", "block_size": 4, "prefill_chunk_size": 8},
    "tiny pool": {"block_size": 4, "num_kv_blocks": 16, "kv_reserve": 0.0, "max_seq_len": 60},
}


def drawn(*, n: int = 1, seed: int | None = 7, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(n=n, seed=seed, temperature=temperature, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)


def choices(llm: LLM, params: SamplingParams) -> list[list[int]]:
    """Return the tokens of each choice, in company of other requests."""
    completions = llm.generate([random_prompt(5), PROMPT, PROMPT[:20]], [drawn(), params, drawn()], use_tqdm=False)
    assert all(completion.error is None for completion in completions)
    return [completion.token_ids for completion in completions[1:-1]]


def load(folder: Path, **switches: Any) -> LLM:
    config: dict[str, Any] = {"max_seq_len": 128, "max_batch_size": 8, "batch_invariant": True, **switches}
    return LLM(str(folder), dtype="float32", **config)


@pytest.mark.covers("requests/n")
@parametrize_each_value(family=list(FAMILIES), mode=list(MODES))
def test_choices_differ_and_each_is_what_its_seed_gives_alone(folder: Path, mode: str) -> None:
    found = choices(load(folder, **MODES[mode]), drawn(n=4))
    alone = load(folder, use_prefix_caching=False)
    assert found == [alone.generate([PROMPT], drawn(seed=7 + i), use_tqdm=False)[0].token_ids for i in range(4)]
    assert len({tuple(tokens) for tokens in found}) == 4


def test_greedy_choices_are_one_answer_n_times(folder: Path) -> None:
    llm = load(folder, block_size=4)
    [single] = choices(llm, drawn(temperature=0.0))
    assert choices(llm, drawn(n=5, temperature=0.0)) == [single] * 5


def test_choices_without_a_seed_differ_too(folder: Path) -> None:
    found = choices(load(folder), drawn(n=6, seed=None))
    assert len({tuple(tokens) for tokens in found}) == 6


@pytest.mark.parametrize("caches", [True, False], ids=["caching", "not caching"])
def test_choices_compute_their_prompt_together(folder: Path, *, caches: bool) -> None:
    llm = load(folder, block_size=2, use_prefix_caching=caches)
    llm.generate([PROMPT], drawn(n=8), use_tqdm=False)
    assert llm.stats.num_computed_tokens < 2 * len(PROMPT) + 8 * NUM_TOKENS
    assert llm.stats.num_free_blocks == llm.stats.num_blocks

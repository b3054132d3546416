"""With `batch_invariant` the logits are the same bits, however a request was computed and beside whom."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from infer_engine.protocol import SamplingParams
from infer_kernels.cpu import library
from infer_proofs.engine.models import ALL_FAMILIES, FAMILIES, ModelEngine, random_prompt, sound_tokens
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_one_in_all_ways
from infer_proofs.kernels.threads import torch_threads

DTYPES = ("float32", "bfloat16")
NUM_TOKENS = 5
PROMPTS = {"short": random_prompt(3), "of a window": random_prompt(8), "long": random_prompt(43)}
PLAIN: dict[str, Any] = {"use_prefix_caching": False, "block_size": 16}
Logits = dict[tuple[str, int], Tensor]


MODELS = [*(f"{family} float32" for family in FAMILIES), *(f"{family} bfloat16" for family in ALL_FAMILIES)]
WHOLE = "gemma3 bfloat16"
SOME_MODELS = pytest.mark.parametrize(
    "model", [pytest.param(m, marks=() if m in ("llama float32", WHOLE) else pytest.mark.full) for m in MODELS]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A family's checkpoint in one dtype."""

    folder: Path
    dtype: str

    def engine(self, *, batch_invariant: bool = True, **config: Any) -> ModelEngine:
        """Return an engine over it."""
        return ModelEngine(self.folder, dtype=self.dtype, batch_invariant=batch_invariant, **config)


@pytest.fixture
def checkpoint(model: str, folder_of: Callable[[str], Path]) -> Checkpoint:
    """The checkpoint of one of `MODELS`."""
    family, dtype = model.split()
    return Checkpoint(folder=folder_of(family), dtype=dtype)


@pytest.fixture(scope="module")
def expected_of() -> Callable[[Checkpoint], Logits]:
    """Return a function that gives the logits of each prompt alone, whole, in an unused cache."""
    return cache(alone)


@pytest.fixture
def expected(checkpoint: Checkpoint, expected_of: Callable[[Checkpoint], Logits]) -> Logits:
    """The logits of each prompt alone."""
    return expected_of(checkpoint)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Compute with two threads."""
    with torch_threads(2):
        yield


def alone(checkpoint: Checkpoint, *, batch_invariant: bool = True) -> Logits:
    """Return every prompt's logits where it has an engine to itself and is computed whole."""
    engine = checkpoint.engine(batch_invariant=batch_invariant, **PLAIN)
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, max_tokens=NUM_TOKENS)
        engine.run()
    return engine.logits


def together(engine: ModelEngine, *, num_others: int = 0) -> Logits:
    """Return the prompts' logits where they are computed together, with others of many lengths before and behind."""
    for number in range(num_others):
        length = (1, 17, 5, 30)[number % 4]
        if number == num_others // 2:
            submit_prompts(engine)
        engine.submit(f"other {number}", random_prompt(length, seed=number), max_tokens=3 + number)
    if not num_others:
        submit_prompts(engine)
    sound_tokens(engine.run())
    return of_prompts(engine)


def submit_prompts(engine: ModelEngine) -> None:
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, max_tokens=NUM_TOKENS)


def of_prompts(engine: ModelEngine) -> Logits:
    return {key: row for key, row in engine.logits.items() if key[0] in PROMPTS}


def are_equal(logits: Logits, expected: Logits) -> bool:
    """Whether all rows are the same bits."""
    assert logits.keys() == expected.keys()
    return all(torch.equal(row, expected[key]) for key, row in logits.items())


WAYS: dict[str, dict[str, Any]] = {
    "together": PLAIN,
    "chunks of 1": {**PLAIN, "prefill_chunk_size": 1},
    "chunks of 3": {**PLAIN, "prefill_chunk_size": 3},
    "chunks of a window": {**PLAIN, "prefill_chunk_size": 8},
    "chunks of 17": {**PLAIN, "prefill_chunk_size": 17, "max_num_batched_tokens": 18},
    "whole": {"use_chunked_prefill": False},
    "contiguous": {"kv_cache_backend": "contiguous", "max_batch_size": 3},
    "contiguous, in chunks": {"kv_cache_backend": "contiguous", "max_batch_size": 2, "prefill_chunk_size": 7},
    "static": {"batching_mode": "static", "max_batch_size": 3},
    "blocks of 1": {"block_size": 1, "prefill_chunk_size": 9},
    "blocks of 5": {"block_size": 5},
    "prefill first": {"scheduler_policy": "prefill_first", "prefill_chunk_size": 16},
    "decodes in turns": {"scheduler_policy": "decode_round_robin", "max_num_batched_tokens": 4},
}


@pytest.mark.covers("configuration/batch-invariant", "requests/batch-invariant", "scheduling/contiguous-bits")
@parametrize_one_in_all_ways(whole=WHOLE, model=MODELS, way=list(WAYS))
def test_logits_beside_others_are_those_of_the_request_alone(
    checkpoint: Checkpoint, expected: Logits, way: str
) -> None:
    assert are_equal(together(checkpoint.engine(**WAYS[way]), num_others=9), expected)


@parametrize_each_value(model=MODELS, way=["chunks of 1", "chunks of a window", "contiguous"])
def test_logits_of_three_prompts_are_those_of_each_alone(checkpoint: Checkpoint, expected: Logits, way: str) -> None:
    assert are_equal(together(checkpoint.engine(**WAYS[way])), expected)


@SOME_MODELS
def test_logits_are_the_same_in_scattered_blocks(checkpoint: Checkpoint, expected: Logits) -> None:
    engine = checkpoint.engine(
        use_prefix_caching=False,
        block_size=2,
        num_kv_blocks=70,
        kv_reserve=0.0,
        max_prefill_tokens_beside_decodes=512,
    )
    for number in range(8):
        engine.submit(f"there before {number}", random_prompt(3, seed=number), max_tokens=40)
    for _ in range(12):
        engine.step()
    for number in range(1, 8):
        engine.abort(f"there before {number}")
    engine.submit("between", random_prompt(70), max_tokens=2)
    engine.submit("long", PROMPTS["long"], max_tokens=NUM_TOKENS)
    engine.step()
    blocks = engine.paged_manager.blocks("long")
    for name in ("short", "of a window"):
        engine.submit(name, PROMPTS[name], max_tokens=NUM_TOKENS)
    sound_tokens(engine.run())
    assert list(blocks) != list(range(blocks[0], blocks[0] + len(blocks)))
    assert are_equal(of_prompts(engine), expected)


@pytest.mark.covers("requests/same-for-hit-and-miss")
@parametrize_each_value(model=MODELS[::-1], num_shared=[20, 43])
def test_logits_are_the_same_where_a_prefix_was_found(
    checkpoint: Checkpoint, expected: Logits, num_shared: int
) -> None:
    engine = checkpoint.engine(block_size=4, use_prefix_caching=True, prefill_chunk_size=16)
    engine.submit("first", PROMPTS["long"][:num_shared], max_tokens=1)
    engine.run()
    logits = together(engine)
    assert engine.core.stats.num_cached_tokens >= num_shared // 4 * 4
    assert are_equal(logits, expected)


@pytest.mark.covers("requests/same-when-preempted")
@parametrize_each_value(model=MODELS, caches=[True, False])
def test_logits_are_the_same_after_a_preemption(
    checkpoint: Checkpoint, expected: Logits, model: str, *, caches: bool
) -> None:
    engine = checkpoint.engine(
        use_prefix_caching=caches, block_size=2, num_kv_blocks=34, max_seq_len=60, kv_reserve=0.0, prefill_chunk_size=9
    )
    for number in range(3):
        engine.submit(f"growing {number}", random_prompt(2, seed=number), max_tokens=16)
    assert are_equal(together(engine), expected)
    if model != "mistral bfloat16":  # whose layers all slide, so that few blocks are enough
        assert engine.core.stats.num_preemptions > 0


@pytest.mark.full
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_the_same_in_company_on_two_threads(folder_of: Callable[[str], Path], dtype: str) -> None:
    checkpoint = Checkpoint(folder=folder_of("gemma3"), dtype=dtype)
    batched = checkpoint.engine(block_size=5, prefill_chunk_size=13)
    single = checkpoint.engine(**PLAIN)
    for number in range(4):
        batched.submit(f"{number}", random_prompt(11 * number + 1), max_tokens=2)
        single.submit(f"{number}", random_prompt(11 * number + 1), max_tokens=2)
        single.run()
    batched.run()
    assert are_equal(batched.logits, single.logits)


def test_without_the_flag_bits_depend_on_the_company_unless_cpu_kernels_compute(
    folder_of: Callable[[str], Path],
) -> None:
    checkpoints = [Checkpoint(folder=folder_of(family), dtype=dtype) for family in FAMILIES for dtype in DTYPES]
    assert (library() is not None) == all(
        are_equal(
            together(checkpoint.engine(batch_invariant=False, **WAYS[way]), num_others=9),
            alone(checkpoint, batch_invariant=False),
        )
        for checkpoint in checkpoints
        for way in ("together", "chunks of 3", "blocks of 5")
    )


prompts = st.builds(random_prompt, st.integers(1, 50), seed=st.integers(0, 2))


@pytest.mark.covers("requests/batch-invariant", "scheduling/chunked-bits")
@settings(max_examples=max(2, settings().max_examples // 16))
@given(
    family=st.sampled_from(ALL_FAMILIES),
    dtype=st.sampled_from(DTYPES),
    batch=st.lists(st.tuples(prompts, st.integers(0, 6)), min_size=2, max_size=6),
    chunk=st.integers(1, 40),
    block_size=st.integers(1, 20),
    budget=st.integers(0, 40),
)
def test_logits_are_the_same_in_any_batch_in_any_chunks(
    folder_of: Callable[[str], Path],
    family: str,
    dtype: str,
    batch: list[tuple[list[int], int]],
    chunk: int,
    block_size: int,
    budget: int,
) -> None:
    checkpoint = Checkpoint(folder=folder_of(family), dtype=dtype)
    mixed = checkpoint.engine(
        block_size=block_size, prefill_chunk_size=chunk, max_num_batched_tokens=chunk + budget, max_batch_size=4
    )
    single = checkpoint.engine(**PLAIN)
    sampled = SamplingParams(temperature=1.0, ignore_eos=True)
    for number, (prompt, num_steps) in enumerate(batch):
        mixed.submit(f"{number}", prompt, max_tokens=3, params=sampled, seed=number)
        for _ in range(num_steps):
            mixed.step()
        single.submit(f"{number}", prompt, max_tokens=3, params=sampled, seed=number)
        single.run()
    mixed.run()
    assert are_equal(mixed.logits, single.logits)


@pytest.mark.covers("requests/same-tokens-without-batch-invariant")
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.full if name in ("llama", "qwen3") else ()) for name in FAMILIES]
)
def test_without_it_a_token_in_company_differs_only_within_rounding(
    folder_of: Callable[[str], Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain PyTorch rounds products of more rows in another way, which our kernels on a CPU do not."""
    libraries = import_module("infer_kernels.cpu.library")._libraries  # noqa: SLF001 - as if there were no compiler
    monkeypatch.setitem(libraries, "bfloat16", None)
    prompts = {str(number): random_prompt(5 + 9 * number, seed=number) for number in range(8)}
    params = SamplingParams(temperature=0, ignore_eos=True)
    company = ModelEngine(folder_of(family), dtype="bfloat16")
    for name, prompt in prompts.items():
        company.submit(name, prompt, max_tokens=30, params=params)
    together = sound_tokens(company.run())
    num_clear = 0
    for name, prompt in prompts.items():
        alone = ModelEngine(folder_of(family), dtype="bfloat16")
        alone.submit(name, prompt, max_tokens=30, params=params)
        token_ids = sound_tokens(alone.run())[name]
        for number, (token_id, other) in enumerate(zip(token_ids, together[name], strict=True)):
            logits = alone.observer.logits[name, len(prompt) + number].float()
            best, second = logits.topk(2).values.tolist()
            is_clear = best - second > 0.1 * float(logits.std())
            num_clear += is_clear
            if token_id != other:  # another text from here on
                assert not is_clear
                break
    assert num_clear > 60

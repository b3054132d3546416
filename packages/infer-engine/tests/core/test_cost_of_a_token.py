"""A token late in an answer takes what an early one takes: as many instructions of Python, which can be counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infer_engine.frontend.output_processor import OutputProcessor
from infer_engine.messages import TokenOutput
from infer_engine.protocol import SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_models.text import IncrementalDetokenizer, StopStringMatcher, Tokenizer
from infer_proofs.engine.formula import FormulaEngine
from infer_proofs.engine.models import ModelEngine, random_prompt
from infer_proofs.kernels.python_instructions import num_instructions
from infer_proofs.text import byte_level

BLOCK_SIZE = 4
MANY = 400
"""Tokens between those that are compared."""
LIMITS = SchedulerLimits(max_batch_size=4, max_num_batched_tokens=64, prefill_chunk_size=16, kv_reserve=0.0)
MODES: dict[str, dict[str, Any]] = {
    "continuous": {},
    "prefixes are cached": {"use_prefix_caching": True},
    "contiguous": {"kv_cache_backend": "contiguous", "num_blocks": 4 * 600},
    "scheduled ahead": {"use_async_scheduling": True},
}


def costs_of_decodes(step: Callable[[], object], *, between: int) -> tuple[int, int]:
    """Return the instructions of early and late steps, as many as each request fills one block in."""

    def steps() -> None:
        for _ in range(BLOCK_SIZE):
            step()

    for _ in range(10):
        step()
    early = num_instructions(steps, of="infer_", without="infer_proofs.")
    for _ in range(between):
        step()
    return early, num_instructions(steps, of="infer_", without="infer_proofs.")


@pytest.mark.covers("requests/cost-of-the-rest")
@pytest.mark.parametrize("mode", MODES)
def test_a_step_takes_the_same_after_hundreds_of_tokens(mode: str) -> None:
    engine = FormulaEngine(**{"num_blocks": 500, "block_size": BLOCK_SIZE, "limits": LIMITS, **MODES[mode]})
    for name in "abc":
        engine.submit(name, [ord(name)] * 5, max_tokens=2 * MANY)
    early, late = costs_of_decodes(engine.core.step, between=MANY)
    assert early > 100 * BLOCK_SIZE
    assert late == early


@pytest.mark.covers("requests/cost-of-the-rest")
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, ignore_eos=True),
        SamplingParams(temperature=0.9, top_p=0.9, ignore_eos=True),
        SamplingParams(logprobs=2, repetition_penalty=1.1, ignore_eos=True),
    ],
    ids=["greedy", "drawn", "penalties"],
)
def test_a_step_of_a_model_takes_the_same(folder_of: Callable[[str], Path], params: SamplingParams) -> None:
    engine = ModelEngine(folder_of("llama"), block_size=BLOCK_SIZE, speculative_config="none")
    for number in range(3):
        engine.submit(str(number), random_prompt(8, seed=number), max_tokens=110, params=params)
    early, late = costs_of_decodes(engine.core.step, between=80)
    assert early > 100 * BLOCK_SIZE
    assert late == early


@pytest.mark.covers("requests/cost-of-the-rest")
def test_the_text_of_a_token_takes_the_same_while_stop_strings_are_watched() -> None:
    tokenizer = Tokenizer(byte_level())
    token_ids = tokenizer.encode("the quick fox, é日本, ", add_special_tokens=False)
    text = OutputProcessor(
        IncrementalDetokenizer(tokenizer, []), StopStringMatcher(("never", "the quick dog")), min_tokens=0
    )
    num_tokens = 0

    def sentences(count: int) -> None:
        nonlocal num_tokens
        for token_id in token_ids * count:
            num_tokens += 1
            text.process(
                TokenOutput(request_id="r", token_ids=[token_id], num_prompt_tokens=1, num_completion_tokens=num_tokens)
            )

    sentences(2)
    early = num_instructions(lambda: sentences(1))
    sentences(100)
    assert num_instructions(lambda: sentences(1)) == early > 10 * len(token_ids)

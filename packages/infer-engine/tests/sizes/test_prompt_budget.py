"""How many prompt tokens a GPU computes beside decodes."""

import pytest
import torch

from infer_engine.assembly.core import build_kv_cache_manager, build_scheduler
from infer_engine.model_runner.graphs.padded_shapes import LARGER_SIZES, MAX_CAPTURED_TOKENS, PaddedShapes
from infer_engine.model_runner.graphs.prompt_tokens import DECODES_BESIDE_PROMPTS, limit_prompts_beside_decodes
from infer_engine.protocol import EngineConfig
from infer_engine.scheduling import SchedulerLimits
from infer_engine.sizing import size_step
from infer_proofs.engine.formula import FormulaEngine

SIZES = [MAX_CAPTURED_TOKENS, *LARGER_SIZES]


def limits_of(config: EngineConfig, most_prompt_tokens: int) -> SchedulerLimits:
    limits = size_step(config, device=torch.device("cuda"), model_max_seq_len=9000)
    found = limit_prompts_beside_decodes(limits, most_prompt_tokens=most_prompt_tokens)
    assert found.prefill_chunk_size == 2048  # in steps without decodes
    return found


@pytest.mark.covers("configuration/prefill-beside-decodes-gpu")
@pytest.mark.parametrize(("size", "tokens"), list(zip(SIZES, [480, 992, 2016, 2272], strict=True)))
def test_prompt_tokens_beside_decodes_fill_the_largest_captured_step_of_a_gpu(size: int, tokens: int) -> None:
    limits = limits_of(EngineConfig(), size)
    assert (limits.max_prefill_tokens_beside_decodes, limits.max_decode_slowdown) == (tokens, None)
    shapes = PaddedShapes(max_seqs=256, max_tokens=8192, max_prompt_tokens=size)
    padded = shapes.least(tokens + DECODES_BESIDE_PROMPTS, 40, is_decode_only=False)
    assert padded is not None
    assert padded.num_tokens == size


def prompt_tokens_beside(num_decodes: int, limits: SchedulerLimits) -> int:
    """Return how many tokens of a long prompt a step computes beside decodes."""
    engine = FormulaEngine(num_blocks=10_000, block_size=16, limits=limits)
    for number in range(num_decodes):
        engine.submit(f"decode {number}", [number], max_tokens=100)
    while engine.core.stats.num_generated_tokens < num_decodes:
        engine.step()
    engine.submit("prompt", [5] * 8000, max_tokens=1)
    engine.step()
    num_tokens = dict(engine.runner.schedules[-1])
    assert len(num_tokens) == num_decodes + 1
    return num_tokens["prompt"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_decodes", [1, 40, 128, 255])
def test_a_step_with_many_decodes_fits_the_largest_captured_step_too(size: int, num_decodes: int) -> None:
    found = prompt_tokens_beside(num_decodes, limits_of(EngineConfig(), size))
    assert found == min(2048, size - max(num_decodes, DECODES_BESIDE_PROMPTS))


def test_more_decodes_than_half_of_the_largest_captured_step_leave_the_other_half_to_prompts() -> None:
    limits = limits_of(EngineConfig(max_batch_size=400), MAX_CAPTURED_TOKENS)
    assert prompt_tokens_beside(399, limits) == MAX_CAPTURED_TOKENS // 2


@pytest.mark.parametrize("size", SIZES)
def test_prompt_tokens_beside_decodes_are_those_that_were_set(size: int) -> None:
    limits = limits_of(EngineConfig(max_prefill_tokens_beside_decodes=7), size)
    assert (limits.max_prefill_tokens_beside_decodes, limits.max_captured_tokens) == (7, None)


@pytest.mark.parametrize("size", SIZES)
def test_a_slowdown_that_was_set_allows_no_more_tokens_than_the_largest_captured_step_has(size: int) -> None:
    config = EngineConfig(max_decode_slowdown=3.0)
    limits = limits_of(config, size)
    manager = build_kv_cache_manager(config, limits, num_blocks=[100], windows=[None], block_size=64)
    share = build_scheduler(config, manager, limits).prefill_share
    assert share is not None
    for num_prompt_tokens in range(0, 2000, 100):
        share.observe(8, num_prompt_tokens, 0.01 + 1e-9 * num_prompt_tokens)
    assert share.num_tokens(8) == limits.max_prefill_tokens_beside_decodes == size - DECODES_BESIDE_PROMPTS

"""How many prompt tokens a GPU computes beside decodes."""

import pytest
import torch

from infer_engine.model_runner.graphs.padded_shapes import LARGER_SIZES, MAX_CAPTURED_TOKENS, PaddedShapes
from infer_engine.model_runner.graphs.prompt_tokens import DECODES_BESIDE_PROMPTS, limit_prompts_beside_decodes
from infer_engine.protocol import EngineConfig
from infer_engine.sizing import size_step

SIZES = [MAX_CAPTURED_TOKENS, *LARGER_SIZES]


def budget(config: EngineConfig, most_prompt_tokens: int) -> int:
    limits = size_step(config, device=torch.device("cuda"), model_max_seq_len=9000)
    found = limit_prompts_beside_decodes(limits, most_prompt_tokens=most_prompt_tokens)
    assert found.max_prefill_tokens_beside_decodes is not None
    assert found.prefill_chunk_size == 2048  # in steps without decodes
    return found.max_prefill_tokens_beside_decodes


@pytest.mark.covers("configuration/prefill-beside-decodes-gpu")
@pytest.mark.parametrize(("size", "tokens"), list(zip(SIZES, [480, 992, 2016, 2272], strict=True)))
def test_prompt_tokens_beside_decodes_fill_the_largest_captured_step_of_a_gpu(size: int, tokens: int) -> None:
    assert budget(EngineConfig(), size) == tokens
    shapes = PaddedShapes(max_seqs=256, max_tokens=8192, max_prompt_tokens=size)
    padded = shapes.least(tokens + DECODES_BESIDE_PROMPTS, 40, is_decode_only=False)
    assert padded is not None
    assert padded.num_tokens == size


@pytest.mark.parametrize("size", SIZES)
def test_prompt_tokens_beside_decodes_are_those_that_were_set(size: int) -> None:
    assert budget(EngineConfig(max_prefill_tokens_beside_decodes=7), size) == 7

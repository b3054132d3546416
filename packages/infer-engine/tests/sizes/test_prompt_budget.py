"""How many prompt tokens a GPU computes beside decodes."""

from pathlib import Path

import pytest
import torch

from infer_engine.assembly.core import build_kv_cache_manager, build_scheduler
from infer_engine.model_runner.graphs.padded_shapes import LARGER_SIZES, MAX_CAPTURED_TOKENS, PaddedShapes
from infer_engine.model_runner.graphs.prompt_tokens import (
    DECODES_BESIDE_PROMPTS,
    LayerWeights,
    limit_prompts_beside_decodes,
)
from infer_engine.protocol import EngineConfig
from infer_engine.scheduling import SchedulerLimits
from infer_engine.sizing import size_step
from infer_kernels.gpu import Gpu
from infer_models import load_model
from infer_proofs.engine.formula import FormulaEngine
from infer_proofs.engine.models import save_servable

H100 = Gpu((9, 0), 132)
SIZES = [MAX_CAPTURED_TOKENS, *LARGER_SIZES]
MODELS = dict(zip(SIZES, (7.5e9, 1.41e9, 0.83e9, 0.44e9), strict=True))
"""By the rows of the largest step that an H100 captures, the weights of a model of 28 layers."""


def dense(num_weights: float, num_layers: int = 28) -> LayerWeights:
    return LayerWeights(num_layers=num_layers, of_a_token=int(num_weights), num_bytes=2 * int(num_weights))


def limits_of(config: EngineConfig, size: int) -> SchedulerLimits:
    limits = size_step(config, device=torch.device("cuda"), model_max_seq_len=9000)
    found = limit_prompts_beside_decodes(limits, dense(MODELS[size]), H100)
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


EXPERTS = {
    "Qwen3-30B-A3B": LayerWeights(num_layers=48, of_a_token=3_050_000_000, num_bytes=60_400_000_000),
    "Qwen3-30B-A3B, fp8": LayerWeights(num_layers=48, of_a_token=3_050_000_000, num_bytes=31_700_000_000),
    "gpt-oss-20b": LayerWeights(num_layers=24, of_a_token=3_000_000_000, num_bytes=11_800_000_000),
    "Qwen3-Next-80B-A3B": LayerWeights(num_layers=48, of_a_token=3_300_000_000, num_bytes=158_600_000_000),
    "Mixtral-8x7B": LayerWeights(num_layers=32, of_a_token=12_750_000_000, num_bytes=93_100_000_000),
}


@pytest.mark.covers("configuration/prefill-beside-decodes-gpu")
@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("Qwen3-30B-A3B", 2178),
        ("Qwen3-30B-A3B, fp8", 1143),
        ("gpt-oss-20b", 480),
        ("Qwen3-Next-80B-A3B", 5288),
        ("Mixtral-8x7B", 480),
    ],
)
def test_a_mixture_of_experts_computes_the_prompt_tokens_that_it_multiplies_while_it_reads_its_weights(
    model: str, tokens: int
) -> None:
    limits = size_step(EngineConfig(), device=torch.device("cuda"), model_max_seq_len=9000)
    found = limit_prompts_beside_decodes(limits, EXPERTS[model], H100)
    assert found.max_prefill_tokens_beside_decodes == pytest.approx(tokens, rel=0.01)
    assert found.max_captured_tokens == (512 if tokens == 480 else None)
    assert prompt_tokens_beside(64, found) == pytest.approx(448 if tokens == 480 else min(2048, tokens), rel=0.01)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "llama"])
def test_a_models_weights_are_counted(name: str, tmp_path: Path) -> None:
    config = save_servable(name, tmp_path).config
    model = load_model(tmp_path, device=torch.device("cpu"), dtype=torch.bfloat16)
    weights = LayerWeights.of(model)
    layers = {key: each.num_weights for key, each in model.stored_weights().items() if ".layers." in key}
    experts = sum(size for key, size in layers.items() if ".experts." in key and "bias" not in key)
    share = 1.0
    if name != "llama":
        assert experts > 0
        share = config.num_experts_per_tok / getattr(
            config, "num_experts", 0 if name != "gpt_oss" else config.num_local_experts
        )
    rest = sum(layers.values()) - experts
    assert weights.of_a_token == pytest.approx(rest + experts * share, abs=config.vocab_size * config.hidden_size + 99)
    assert weights.num_bytes >= 2 * (experts + rest)
    assert weights.num_layers == config.num_hidden_layers

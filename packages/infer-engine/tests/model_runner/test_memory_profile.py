"""The step that memory is measured with is as large as any, over one block of each group of layers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.model_runner.loading.memory_profile import measure_step_bytes, run_largest_step
from infer_engine.model_runner.loading.rank_loading import LoadedRank, load_rank
from infer_engine.model_runner.runner import ModelRunner
from infer_engine.protocol import EngineConfig
from infer_engine.sampling.prompt_logprobs import ROWS_AT_ONCE
from infer_engine.sampling.sampler import Sampler
from infer_proofs.models import save_tiny_gemma3, save_tiny_llama, save_tiny_nanogpt, save_tiny_qwen3

CPU = torch.device("cpu")


def runner_of(loaded: LoadedRank) -> ModelRunner:
    """Return a runner over one block of each group."""
    pool = loaded.allocate_pool([1] * len(loaded.groups.windows))
    loaded.rank_model.use_cache(loaded.host_planned_views(pool))
    sampler = Sampler(
        vocab_size=loaded.model_config.vocab_size,
        max_rows=loaded.limits.max_batch_size,
        eos_token_ids=frozenset(),
        device=CPU,
    )
    return ModelRunner(loaded.rank_model, input_buffers=loaded.allocate_input_buffers(), sampler=sampler, device=CPU)


def rows_of_largest_step(folder: Path, *, max_tokens: int, max_batch_size: int) -> list[int]:
    """Return the rows of each call of the LM head."""
    config = EngineConfig(dtype="float32", max_batch_size=max_batch_size, max_num_batched_tokens=max_tokens)
    loaded = load_rank(config, folder, device=CPU)
    rows: list[int] = []
    loaded.rank_model.model.lm_head.register_forward_hook(lambda _module, _inputs, logits: rows.append(len(logits)))
    run_largest_step(
        runner_of(loaded),
        max_tokens=max_tokens,
        max_batch_size=max_batch_size,
        max_seq_len=loaded.longest_seq_len,
    )
    return rows


@pytest.mark.covers("configuration/kv-cache-memory-cuda")
@pytest.mark.parametrize("save", [save_tiny_llama, save_tiny_qwen3, save_tiny_gemma3, save_tiny_nanogpt])
def test_largest_step_measures_prompts_and_samples_for_every_row(save: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path)
    first_half, *largest = rows_of_largest_step(tmp_path, max_tokens=12, max_batch_size=3)
    assert first_half == 2
    assert largest == [12 - 3, 3]  # a prompt's last row tells no token of it


def test_largest_step_measures_every_row_of_prompts_a_few_at_a_time(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, max_position_embeddings=512)
    rows = rows_of_largest_step(tmp_path, max_tokens=302, max_batch_size=2)
    assert rows == [1, ROWS_AT_ONCE, 300 - ROWS_AT_ONCE, 2]


def test_a_step_of_more_tokens_than_a_sequence_may_have_is_of_several(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, max_position_embeddings=100)
    assert rows_of_largest_step(tmp_path, max_tokens=202, max_batch_size=3)[-2:] == [202 - 3, 3]


def test_on_a_cpu_nothing_is_computed(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    runner = runner_of(load_rank(EngineConfig(dtype="float32"), tmp_path, device=CPU))
    assert measure_step_bytes(runner, max_tokens=9, max_batch_size=2, max_seq_len=8, device=CPU) == 0

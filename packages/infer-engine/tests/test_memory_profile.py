"""The step that memory is measured with goes through every family's model, as it would on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.model_runner.memory_profile import run_largest_step
from infer_engine.model_runner.rank_model import RankModel
from infer_engine.sampling.prompt_logprobs import ROWS_AT_ONCE
from infer_models import load_model
from infer_models.testing import save_tiny_gemma3, save_tiny_llama, save_tiny_nanogpt, save_tiny_qwen3


@pytest.mark.parametrize("save", [save_tiny_llama, save_tiny_qwen3, save_tiny_gemma3, save_tiny_nanogpt])
def test_largest_step_passes_through_every_layer(save: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path)
    cpu = torch.device("cpu")
    model = load_model(tmp_path, device=cpu, dtype=torch.float32)
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: rows.append(logits.shape[0]))
    run_largest_step(
        RankModel(model, device=cpu), vocab_size=model.config.vocab_size, max_tokens=9, max_batch_size=3, device=cpu
    )
    assert rows == [9, 3]  # what measures prompts, and what chooses tokens


def test_largest_step_measures_every_row_of_a_prompt_a_few_at_a_time(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    cpu = torch.device("cpu")
    model = load_model(tmp_path, device=cpu, dtype=torch.float32)
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: rows.append(logits.shape[0]))
    run_largest_step(
        RankModel(model, device=cpu), vocab_size=model.config.vocab_size, max_tokens=302, max_batch_size=2, device=cpu
    )
    assert rows == [ROWS_AT_ONCE, 302 - ROWS_AT_ONCE, 2]

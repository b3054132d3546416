"""The step that memory is measured with goes through every family's model, as it would on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.measuring import run_largest_step
from infer_engine.sizing import StepSizes
from infer_models import load_model
from infer_models.testing import save_tiny_gemma3, save_tiny_llama, save_tiny_nanogpt, save_tiny_qwen3


@pytest.mark.parametrize("save", [save_tiny_llama, save_tiny_qwen3, save_tiny_gemma3, save_tiny_nanogpt])
def test_largest_step_passes_through_every_layer(save: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path)
    cpu = torch.device("cpu")
    model = load_model(tmp_path, device=cpu, dtype=torch.float32)
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: rows.append(logits.shape[0]))
    run_largest_step(model, StepSizes(max_batch_size=3, max_num_batched_tokens=8, max_tokens=9), cpu)
    assert rows == [3]

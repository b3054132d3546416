"""A prepacked model computes what it computed before."""

from pathlib import Path

import pytest
import torch

from infer_models import CausalView, load_model
from infer_proofs.models import save_tiny_gemma3, save_tiny_llama


@pytest.mark.parametrize("save", [save_tiny_llama, save_tiny_gemma3])
def test_a_prepacked_model_gives_the_same_logits_and_counts_the_same_parameters(save: object, tmp_path: Path) -> None:
    save(tmp_path)  # type: ignore[operator]  # one of two functions
    model = load_model(tmp_path, device=torch.device("cpu"), dtype=torch.bfloat16)
    ids = torch.arange(3, 40)
    with torch.inference_mode():
        before = model(ids, ids - 3, CausalView()).float()
        num_parameters = model.num_parameters
        model.prepack()
        after = model(ids, ids - 3, CausalView()).float()
    assert model.num_parameters == num_parameters
    assert ((after - before).square().mean().sqrt() / before.std()).item() <= 2e-2

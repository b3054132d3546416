"""Attention without a cache, and training through it."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from infer_models import AttentionSpec, CausalView, load_model
from infer_models.layer_states import StateHeads, StateSpec
from infer_proofs.models import save_tiny, save_tiny_gemma3, save_tiny_llama, save_tiny_nanogpt, save_tiny_qwen3

CPU = torch.device("cpu")
SAVES = [
    save_tiny_llama,
    save_tiny_qwen3,
    save_tiny_gemma3,
    save_tiny_nanogpt,
    partial(save_tiny, "lfm2", conv_bias=True),
    partial(save_tiny, "qwen3_5"),
]


@pytest.mark.parametrize("family", ["gemma3", "lfm2", "qwen3_5", "qwen3_next"])
def test_sequences_end_to_end_are_as_if_alone(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    lengths = [1, 13, 7]
    ids = torch.randint(3, 320, (sum(lengths),), generator=torch.Generator().manual_seed(3))
    positions = torch.cat([torch.arange(length) for length in lengths])
    together = model(ids, positions, CausalView(lengths))
    alone = [model(part, torch.arange(len(part)), CausalView()) for part in torch.split(ids, lengths)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-4)


def test_lengths_that_do_not_add_up_are_refused() -> None:
    spec = AttentionSpec(q_heads=2, kv_heads=1, head_dim=16, scale=0.25)
    with pytest.raises(ValueError, match="`seq_lens` add up to 4 but the batch has 5 tokens"):
        CausalView([3, 1]).attend(0, torch.zeros(5, 2 + 1 + 1, 16), spec)
    with pytest.raises(ValueError, match="`seq_lens` add up to 4 but the batch has 5 tokens"):
        CausalView([3, 1]).state(0, StateSpec(num_before=2, parts=(StateHeads(8, 1),)), torch.zeros(5, 8))


@pytest.mark.parametrize("save", SAVES)
def test_every_parameter_learns(tmp_path: Path, save: object) -> None:
    assert callable(save)
    save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32).requires_grad_()
    ids = torch.randint(3, 65, (24,), generator=torch.Generator().manual_seed(4))
    positions = torch.arange(12).repeat(2)
    before = functional.cross_entropy(model(ids, positions, CausalView([12, 12])), ids.roll(-1))
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(before, list(parameters.values()))
    with torch.no_grad():
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            assert gradient.abs().max() > 0, name
            parameter.sub_(gradient, alpha=0.05)
    after = functional.cross_entropy(model(ids, positions, CausalView([12, 12])), ids.roll(-1))
    assert after < before


def test_a_loaded_model_wants_no_gradient(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    assert not model(torch.arange(4), torch.arange(4), CausalView()).requires_grad

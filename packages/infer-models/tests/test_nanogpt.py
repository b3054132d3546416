"""NanoGPT against a plain PyTorch rendering of it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from infer_models import CausalView, load_model
from infer_proofs.models import save_tiny_nanogpt

CPU = torch.device("cpu")


def plain_nanogpt(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Logits [tokens, vocab] of one sequence, head by head."""
    hidden = weights["model.embed_tokens.weight"].shape[1]
    x = weights["model.embed_tokens.weight"][ids] + weights["model.embed_positions.weight"][: len(ids)]
    for layer in range(4):
        at = f"model.layers.{layer}"
        normalized = plain_norm(weights, f"{at}.input_layernorm", x)
        heads = []
        for head in range(4):
            rows = slice(16 * head, 16 * head + 16)
            q, k, v = (normalized @ weights[f"{at}.self_attn.{name}_proj.weight"][rows].T for name in "qkv")
            scores = (q @ k.T) * 16**-0.5
            scores = scores.masked_fill(torch.ones(len(ids), len(ids)).tril() == 0, float("-inf"))
            heads.append(scores.softmax(-1) @ v)
        x = x + plain_linear(weights, f"{at}.self_attn.o_proj", torch.cat(heads, dim=-1))
        normalized = plain_norm(weights, f"{at}.post_attention_layernorm", x)
        inner = plain_linear(weights, f"{at}.mlp.up_proj", normalized).relu()
        assert inner.shape[1] == 4 * hidden
        x = x + plain_linear(weights, f"{at}.mlp.down_proj", inner)
    return plain_linear(weights, "lm_head", plain_norm(weights, "model.norm", x))


def plain_linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def plain_norm(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])


@pytest.mark.covers("models/nanogpt-size")
def test_nanogpt_has_209729_parameters(tmp_path: Path) -> None:
    assert save_tiny_nanogpt(tmp_path).num_parameters == 209_729


@pytest.mark.covers("models/nanogpt", "models/parity-nanogpt")
def test_nanogpt_equals_its_plain_rendering(tmp_path: Path) -> None:
    save_tiny_nanogpt(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    ids = torch.randint(65, (32,), generator=torch.Generator().manual_seed(2))
    logits = model(ids, torch.arange(32), CausalView())
    expected = plain_nanogpt(load_file(tmp_path / "model.safetensors"), ids)
    assert (logits - expected).abs().max() <= 1e-4

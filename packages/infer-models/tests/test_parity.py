"""Our logits are those of `transformers` on the same random checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infer_models import CausalLM, CausalView, load_model
from infer_models.layers.embedding import MAX_FUSED_ROWS
from infer_models.testing import LLAMA3_SCALING, save_tiny_gemma3, save_tiny_llama, save_tiny_qwen3

CPU = torch.device("cpu")
NUM_TOKENS = 90  # past Llama 3's original context of 32 tokens and many times Gemma's window of 8

Save = Callable[[Path], Any]

CASES: dict[str, Save] = {
    "llama": save_tiny_llama,
    "llama_tied": lambda folder: save_tiny_llama(folder, tie_word_embeddings=True),
    "llama_llama3_scaling": lambda folder: save_tiny_llama(folder, rope_parameters=LLAMA3_SCALING),
    "llama_linear_scaling": lambda folder: save_tiny_llama(
        folder, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "llama_head_dim_is_hidden_over_heads": lambda folder: save_tiny_llama(folder, head_dim=None),
    "llama_one_kv_head": lambda folder: save_tiny_llama(folder, num_key_value_heads=1),
    "llama_no_groups": lambda folder: save_tiny_llama(folder, num_key_value_heads=4),
    "qwen3": save_tiny_qwen3,
    "qwen3_tied": lambda folder: save_tiny_qwen3(folder, tie_word_embeddings=True, rope_parameters=LLAMA3_SCALING),
    "gemma3": save_tiny_gemma3,
    "gemma3_untied": lambda folder: save_tiny_gemma3(folder, tie_word_embeddings=False),
    "gemma3_capped_logits": lambda folder: save_tiny_gemma3(folder, final_logit_softcapping=2.0),
    "gemma3_unscaled": lambda folder: save_tiny_gemma3(folder, rope_parameters=None, sliding_window=30),
}
every_case = pytest.mark.parametrize("save", CASES.values(), ids=CASES.keys())


def token_ids() -> Tensor:
    return torch.randint(3, 320, (NUM_TOKENS,), generator=torch.Generator().manual_seed(1))


def our_logits(model: CausalLM, ids: Tensor) -> Tensor:
    logits: Tensor = model(ids, torch.arange(len(ids)), CausalView())
    return logits


@torch.no_grad()
@every_case
def test_logits_in_fp32_differ_by_at_most_one_ten_thousandth(tmp_path: Path, save: Save) -> None:
    twin = save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    expected = twin(token_ids()[None]).logits[0]
    assert (our_logits(model, token_ids()) - expected).abs().max() <= 1e-4


@torch.no_grad()
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("num_rows", [3, MAX_FUSED_ROWS + 1])
@every_case
def test_the_most_probable_token_has_the_largest_logit_of_the_vocabulary(
    tmp_path: Path, save: Save, num_rows: int, *, batch_invariant: bool
) -> None:
    save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32, batch_invariant=batch_invariant)
    hidden = torch.randn(num_rows, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for vocab_size in (5, model.config.vocab_size):
        largest, token_ids = model.logits(hidden)[:, :vocab_size].max(dim=-1)
        chosen = model.most_probable(hidden, vocab_size=vocab_size)
        assert torch.equal(chosen.token_ids, token_ids)
        assert torch.allclose(chosen.largest, largest)


@torch.no_grad()
@every_case
def test_logits_of_some_rows_of_the_hidden_states_are_those_of_the_whole(tmp_path: Path, save: Save) -> None:
    save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    hidden = model.hidden_states(token_ids(), torch.arange(NUM_TOKENS), CausalView())
    parts = [model.logits(hidden, torch.arange(start, start + 30)) for start in range(0, NUM_TOKENS, 30)]
    torch.testing.assert_close(torch.cat(parts), our_logits(model, token_ids()))
    torch.testing.assert_close(model.logits(hidden), our_logits(model, token_ids()))


@torch.no_grad()
@every_case
def test_hidden_states_in_fp32_agree_layer_by_layer(tmp_path: Path, save: Save) -> None:
    twin = save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    ours = residuals_of(model, token_ids())
    expected = residuals_of_twin(twin, token_ids())
    assert len(ours) == len(expected) == model.config.num_layers
    for layer in range(len(ours)):
        assert (ours[layer] - expected[layer]).abs().max() <= 1e-4, f"layer {layer}"


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "llama_llama3_scaling", "qwen3", "gemma3", "gemma3_untied"])
def test_logits_in_bf16_differ_by_rounding_only(tmp_path: Path, name: str) -> None:
    twin = CASES[name](tmp_path).to(torch.bfloat16)
    model = load_model(tmp_path, device=CPU, dtype=torch.bfloat16)
    ours = our_logits(model, token_ids())
    assert ours.dtype == torch.bfloat16
    expected = twin(token_ids()[None]).logits[0].float()
    difference = (ours.float() - expected) / expected.std()
    assert difference.square().mean().sqrt() <= 2e-2
    assert difference.abs().max() <= 1e-1
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2e-1 * expected.std()
    assert clear.sum() >= NUM_TOKENS // 4
    assert torch.equal(ours.argmax(-1)[clear], expected.argmax(-1)[clear])


@torch.no_grad()
def test_only_the_rows_asked_for_get_logits(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    rows = torch.tensor([0, 40, NUM_TOKENS - 1], dtype=torch.int32)
    ids, positions = token_ids().int(), torch.arange(NUM_TOKENS, dtype=torch.int32)
    some = model(ids, positions, CausalView(), rows)
    torch.testing.assert_close(some, our_logits(model, token_ids())[rows])


def residuals_of(model: CausalLM, ids: Tensor) -> list[Tensor]:
    """The residual stream after each of our layers."""
    residuals: list[Tensor] = []
    for layer in layers_of(model):
        layer.register_forward_hook(lambda _layer, _args, outputs: residuals.append(outputs[1]))
    our_logits(model, ids)
    return residuals


def residuals_of_twin(twin: Any, ids: Tensor) -> list[Tensor]:
    """The residual stream after each layer of the `transformers` model."""
    residuals: list[Tensor] = []
    for layer in layers_of(twin):
        layer.register_forward_hook(lambda _layer, _args, output: residuals.append(output[0]))
    twin(ids[None])
    return residuals


def layers_of(model: Any) -> list[nn.Module]:
    return list(model.model.layers)

"""The layer that predicts a token further (MTP): what it computes, and checkpoints with it and without."""

from pathlib import Path

import pytest
import torch

from infer_models import CausalView, CheckpointError, load_model
from infer_models.tensor_parallel import Shard
from infer_proofs.models import save_tiny
from infer_proofs.models.checkpoints import save_mtp

CPU = torch.device("cpu")
FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_5_wrapped", "qwen3_5_moe_wrapped")
TOKENS = torch.tensor([9, 3, 77, 12, 5, 8, 31, 2, 64, 90, 17, 4])


# ggml-org/llama.cpp#24025, ModelTC/LightLLM#1402: fed what was not normalized yet, fewer drafts were right
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_it_computes_what_transformers_computes_of_the_last_hidden_states(family: str, tmp_path: Path) -> None:
    twin = save_tiny(family, tmp_path)
    mtp = save_mtp(tmp_path, twin)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32, with_mtp=True)
    positions = torch.arange(len(TOKENS) - 1)
    hidden = model.hidden_states(TOKENS[:-1], positions, CausalView())
    once = model.predict_further(TOKENS[1:], hidden, positions, CausalView())
    text = getattr(twin.model, "language_model", twin.model)
    embeddings = twin.get_input_embeddings()(TOKENS[1:])
    expected = mtp(embeddings, text(TOKENS[None, :-1]).last_hidden_state[0])
    torch.testing.assert_close(once, expected, rtol=1e-3, atol=1e-3)
    twice = model.predict_further(TOKENS[2:], once[:-1], positions[:-1], CausalView())
    torch.testing.assert_close(twice, mtp(embeddings[1:], expected[:-1]), rtol=1e-3, atol=1e-3)


def test_a_model_without_it_is_the_same(tmp_path: Path) -> None:
    save_mtp(tmp_path, save_tiny("qwen3_5", tmp_path))
    with_it = load_model(tmp_path, device=CPU, dtype=torch.float32, with_mtp=True)
    without = load_model(tmp_path, device=CPU, dtype=torch.float32)
    assert without.mtp is None
    positions = torch.arange(len(TOKENS))
    logits = [each(TOKENS, positions, CausalView()) for each in (with_it, without)]
    assert torch.equal(*logits)
    assert with_it.num_parameters > without.num_parameters


def test_a_checkpoint_whose_layer_was_left_out_says_so(tmp_path: Path) -> None:
    save_tiny("qwen3_5", tmp_path)
    with pytest.raises(CheckpointError, match=r"mtp\."):
        load_model(tmp_path, device=CPU, dtype=torch.float32, with_mtp=True)


def test_a_family_that_has_none_is_named(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    with pytest.raises(ValueError, match="models of llama have no layer that predicts a token further"):
        load_model(tmp_path, device=CPU, dtype=torch.float32, with_mtp=True)


def test_it_is_not_divided_among_ranks(tmp_path: Path) -> None:
    save_tiny("qwen3_5", tmp_path)
    with pytest.raises(ValueError, match=r"\(MTP\) is not divided among ranks; draft otherwise"):
        load_model(tmp_path, device=CPU, dtype=torch.float32, with_mtp=True, shard=Shard(rank=0, size=2))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_it_is_quantized_as_the_other_layers_are(quantization: str, tmp_path: Path) -> None:
    save_mtp(tmp_path, save_tiny("qwen3_5", tmp_path))
    exact, rounded = (
        load_model(tmp_path, device=CPU, dtype=torch.bfloat16, with_mtp=True, quantization=each)  # type: ignore[arg-type]
        for each in ("none", quantization)
    )
    rounded.prepack()
    positions = torch.arange(len(TOKENS) - 1)
    hidden = exact.hidden_states(TOKENS[:-1], positions, CausalView())
    expected, found = (
        each.predict_further(TOKENS[1:], hidden, positions, CausalView()).float() for each in (exact, rounded)
    )
    assert 0 < (found - expected).norm() < 0.3 * expected.norm()

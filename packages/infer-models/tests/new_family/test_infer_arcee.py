"""Arcee computes what its `transformers` twin of the same random weights computes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_models import CausalLM, CausalView, CheckpointError, ModelConfig, load_model
from infer_proofs.models import YARN_SCALING, TinyFamily, save_tiny_twin

ARCEE = TinyFamily(config="ArceeConfig", model="ArceeForCausalLM")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "yarn_tied": {"rope_parameters": YARN_SCALING, "tie_word_embeddings": True, "num_key_value_heads": 1},
}
IDS = torch.randint(3, 320, (90,), generator=torch.Generator().manual_seed(1))
every_case = pytest.mark.parametrize("fields", CASES.values(), ids=CASES.keys())


def load(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    return load_model(folder, device=torch.device("cpu"), dtype=dtype)


def logits_of(model: CausalLM) -> Tensor:
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


@torch.no_grad()
@every_case
def test_logits_in_fp32_differ_by_at_most_one_ten_thousandth(tmp_path: Path, fields: dict[str, Any]) -> None:
    twin = save_tiny_twin(ARCEE, tmp_path, **fields)
    torch.testing.assert_close(logits_of(load(tmp_path)), twin(IDS[None]).logits[0], rtol=0, atol=1e-4)


@torch.no_grad()
@every_case
def test_hidden_states_in_fp32_agree_layer_by_layer(tmp_path: Path, fields: dict[str, Any]) -> None:
    twin = save_tiny_twin(ARCEE, tmp_path, **fields)
    model: Any = load(tmp_path)
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    for layer in model.model.layers:  # each returns the next one's normalized input, and the residual stream
        layer.register_forward_hook(lambda _layer, _args, output: ours.append(output[1]))
    for layer in twin.model.layers:
        layer.register_forward_hook(lambda _layer, _args, output: theirs.append(output[0]))
    logits_of(model)
    twin(IDS[None])
    assert len(ours) == len(theirs) == model.config.num_layers
    for index, (own, expected) in enumerate(zip(ours, theirs, strict=True)):
        bound = 1e-4 * max(1.0, float(expected.std()))
        assert (own - expected).abs().max() <= bound, f"layer {index}"


@torch.no_grad()
@every_case
def test_logits_in_bf16_differ_by_rounding_only(tmp_path: Path, fields: dict[str, Any]) -> None:
    twin = save_tiny_twin(ARCEE, tmp_path, **fields).to(torch.bfloat16)
    ours = logits_of(load(tmp_path, torch.bfloat16)).float()
    rounded = twin(IDS[None]).logits[0].float()
    exact = twin.float()(IDS[None]).logits[0]  # of the same rounded weights
    error, twins_error = ((logits - exact) / exact.std() for logits in (ours, rounded))
    assert error.square().mean().sqrt() <= 1.25 * twins_error.square().mean().sqrt() + 1e-3
    assert error.abs().max() <= 1.5 * twins_error.abs().max() + 1e-2


def test_a_field_that_is_left_out_is_what_transformers_takes_it_for(tmp_path: Path) -> None:
    save_tiny_twin(ARCEE, tmp_path)
    whole = ModelConfig.from_folder(tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    left_out = ("attention_bias", "mlp_bias", "hidden_act", "rms_norm_eps", "tie_word_embeddings")
    path.write_text(json.dumps({name: value for name, value in fields.items() if name not in left_out}))
    assert ModelConfig.from_folder(tmp_path) == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp_bias": True}, "`mlp_bias` is True; it must be false"),
        ({"hidden_act": "silu"}, "`hidden_act` is 'silu'; it must be `relu2`"),
    ],
)
def test_a_variant_that_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_tiny_twin(ARCEE, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.from_folder(tmp_path)
    assert message in str(caught.value)

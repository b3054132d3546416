"""A model means the same however its rotary table is written: families times dialects, beside `transformers`.

Files of transformers 4 have `rope_scaling` and `rope_theta`, those of 5 `rope_parameters`, edited ones something of
both: vllm-project/vllm#28542, NVIDIA-NeMo/Automodel#1400, vllm-project/vllm#8793.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from infer_models import CausalView, ModelConfig, load_model
from infer_proofs.models import save_tiny

FULL, SLIDING = "full_attention", "sliding_attention"
FAMILIES = ("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "smollm3", "granite", "olmo2", "gpt_oss")
THETA = 5000.0
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default"},
    "linear": {"type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.2, "mscale_all_dim": 0.8},
    "yarn with a factor for attention": YARN | {"attention_factor": 1.3},
}
ROPE_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta")


def dialects(scaling: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields that say the same in each dialect."""
    whole = scaling | {"rope_theta": THETA}
    return {
        "transformers 5": {"rope_parameters": whole},
        "transformers 4": {"rope_scaling": scaling, "rope_theta": THETA},
        "all in the older table": {"rope_scaling": whole},
        "the newer table, theta beside it": {"rope_parameters": scaling, "rope_theta": THETA},
        "a scaling added to a newer file": {
            "rope_scaling": whole,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "an older table that is null": {"rope_parameters": whole, "rope_scaling": None, "rope_theta": 7777.0},
    }


@cache
def prompt() -> Tensor:
    return torch.randint(3, 320, (48,), generator=torch.Generator().manual_seed(0))


def theirs(folder: Path) -> Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        logits: Tensor = model(prompt()[None]).logits[0]
    return logits


def ours(folder: Path) -> Tensor:
    model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32)
    positions = model.first_position(len(prompt())) + torch.arange(len(prompt()))
    with torch.no_grad():
        logits: Tensor = model(prompt(), positions, CausalView())
    return logits


def rewrite(folder: Path, original: dict[str, Any], **fields: Any) -> None:
    """Write a configuration without its rotary table, but with `fields`."""
    kept = {name: value for name, value in original.items() if name not in ROPE_FIELDS}
    (folder / "config.json").write_text(json.dumps(kept | fields))


def saved(family: str, folder: Path, **fields: Any) -> dict[str, Any]:
    save_tiny(family, folder, **fields)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def assert_as_transformers(folder: Path) -> None:
    torch.testing.assert_close(ours(folder), theirs(folder), rtol=0, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_dialect_means_what_it_means_to_transformers(tmp_path: Path, family: str) -> None:
    config = saved(family, tmp_path)
    for kind, scaling in SCALINGS.items():
        own = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 32} if family == "ministral3" else {}
        rewrite(tmp_path, config, **dialects(scaling | own)["transformers 5"])
        wanted = theirs(tmp_path)
        tables = set()
        for name, fields in dialects(scaling | own).items():
            rewrite(tmp_path, config, **fields)
            tables.add(ModelConfig.from_folder(tmp_path).ropes)
            if name == "a scaling added to a newer file":
                torch.testing.assert_close(theirs(tmp_path), wanted)
        assert len(tables) == 1, (kind, tables)
        assert torch.allclose(ours(tmp_path), wanted, rtol=0, atol=2e-4), kind


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "fields",
    [{}, {"rope_theta": THETA}, {"rope_scaling": {}, "rope_parameters": None}, {"rope_scaling": YARN}],
    ids=["nothing", "theta alone", "empty", "no theta"],
)
def test_what_a_file_leaves_out_of_its_table_is_the_familys(
    tmp_path: Path, family: str, fields: dict[str, Any]
) -> None:
    own = {"llama_4_scaling_beta": 0.1} if family == "ministral3" else {}
    config = saved(family, tmp_path)
    rewrite(tmp_path, config, **{name: value | own if value == YARN else value for name, value in fields.items()})
    assert_as_transformers(tmp_path)


@pytest.mark.parametrize("kinds", [[FULL, SLIDING, SLIDING], [FULL] * 3])
def test_a_mistral_with_kinds_of_layers_is_a_ministral(tmp_path: Path, kinds: list[str]) -> None:
    saved("mistral", tmp_path)
    plain = theirs(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_types": kinds}))
    assert not torch.allclose(theirs(tmp_path), plain)
    assert_as_transformers(tmp_path)


def test_the_older_name_of_the_activation_is_the_same(tmp_path: Path) -> None:
    config = saved("llama", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "swish"}))
    assert_as_transformers(tmp_path)

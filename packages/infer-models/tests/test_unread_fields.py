"""Fields of a checkpoint's files that nobody asks for are known by name; ordinary checkpoints have none."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import transformers

from infer_models.config.generation_config import read_generation_fields
from infer_models.config.model_config import unread_config_fields
from infer_models.families.tiny_family import SHAPE, VISION
from infer_models.text import Tokenizer
from infer_proofs.models import TINY_FAMILIES, save_tiny_tokenizer

PUBLISHED = json.loads(Path(__file__).with_name("published_configs.json").read_text(encoding="utf-8"))


def unread(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(fields))
    return dict(unread_config_fields(folder))


def saved_config(family: str, folder: Path) -> dict[str, Any]:
    """Return the `config.json` that `transformers` writes of a tiny model."""
    tiny = TINY_FAMILIES[family]
    config = getattr(transformers, tiny.config)(**deepcopy(SHAPE | tiny.fields))
    if tiny.wrapper is not None:
        outer, vision = tiny.wrapper
        config = getattr(transformers, outer)(text_config=config, vision_config=getattr(transformers, vision)(**VISION))
    config.save_pretrained(folder)
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return fields


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_of_a_published_configuration_is_read_or_changes_nothing(tmp_path: Path, name: str) -> None:
    assert unread(tmp_path, PUBLISHED[name]) == {}


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_all_that_transformers_saves_is_read_or_changes_nothing(tmp_path: Path, family: str) -> None:
    assert unread(tmp_path, saved_config(family, tmp_path)) == {}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Llama 3.2", {"logits_scaling": 8.0}),
        ("Llama 3.2", {"partial_rotary_factor": 0.5}),
        ("Qwen 3", {"final_logit_softcapping": 30.0, "clip_qkv": 8.0}),
        ("Mistral 7B", {"attention_bias": True}),
        ("OLMo 2", {"position_embedding_type": "alibi"}),
    ],
)
def test_a_field_that_a_family_does_not_read_is_named(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    assert unread(tmp_path, PUBLISHED[name] | fields) == fields


def test_a_field_inside_an_object_is_named_with_its_place(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0, "low_freq_factor": 2.0}
    assert unread(tmp_path, PUBLISHED["Llama 2"] | {"rope_parameters": rope}) == {
        "rope_parameters.low_freq_factor": 2.0
    }
    text = PUBLISHED["LLaVA 1.5"]["text_config"] | {"logits_scaling": 8.0}
    assert unread(tmp_path, PUBLISHED["LLaVA 1.5"] | {"text_config": text}) == {"text_config.logits_scaling": 8.0}


def test_a_field_of_generation_that_nothing_here_knows_is_not_taken(tmp_path: Path) -> None:
    fields = {"temperature": 0.5, "use_cache": True, "max_length": 20, "novel_penalty": 1.2, "novel_switch": False}
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    assert read_generation_fields(tmp_path).untaken == {"novel_penalty": 1.2}


def test_a_field_of_the_tokenizer_that_nothing_here_reads_is_named(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    assert Tokenizer.from_folder(tmp_path).unread_fields == ()
    path = tmp_path / "tokenizer_config.json"
    fields = json.loads(path.read_text()) | {"split_special_tokens": True, "model_max_length": 512, "legacy": False}
    path.write_text(json.dumps(fields))
    assert Tokenizer.from_folder(tmp_path).unread_fields == ("split_special_tokens",)

"""What the package shows, and what it costs to import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import infer_models
from infer_models import CheckpointError, ModelConfig
from infer_models.config.wrappers import WRAPPERS
from infer_models.families import FAMILIES


def test_the_public_names_are_these() -> None:
    assert sorted(infer_models.__all__) == [
        "AttentionSpec",
        "CausalLM",
        "CausalView",
        "CheckpointError",
        "GenerationConfig",
        "KVCacheView",
        "ModelConfig",
        "load_model",
        "register_family",
        "save_model",
    ]
    assert all(getattr(infer_models, name).__name__ == name for name in infer_models.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = infer_models.Nonsense


def test_configuration_imports_no_torch() -> None:
    code = "import sys; from infer_models import GenerationConfig, ModelConfig; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_every_model_type_that_is_read_has_a_family(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "?"}')
    with pytest.raises(CheckpointError, match="it must be one of") as caught:
        ModelConfig.from_folder(tmp_path)
    known = re.findall("`(.+?)`", str(caught.value).partition("one of")[2])
    assert known == [*FAMILIES, *WRAPPERS]


def test_every_text_model_of_a_wrapper_is_of_a_family(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava", "text_config": {"model_type": "llava"}}')
    with pytest.raises(CheckpointError, match=r"`text_config\.model_type` is 'llava'; it must be one of") as caught:
        ModelConfig.from_folder(tmp_path)
    assert re.findall("`(.+?)`", str(caught.value).partition("one of")[2]) == [*FAMILIES]

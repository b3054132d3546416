"""What the package shows, and what it costs to import."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import infer_models
from infer_models import CausalLM, CheckpointError, ModelConfig
from infer_models.config.registry import known_families
from infer_proofs.models import save_tiny

FAMILIES = known_families()
WRAPPERS = [wrapper for family in FAMILIES.values() for wrapper in family.wrappers]


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


def test_reading_a_configuration_of_any_family_imports_no_torch(tmp_path: Path) -> None:
    for model_type in FAMILIES.keys() - {"nanogpt"}:  # whose files leave nothing out
        (tmp_path / model_type).mkdir()
        (tmp_path / model_type / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    code = (
        "import sys; from pathlib import Path; from infer_models import ModelConfig\n"
        "for folder in Path(sys.argv[1]).iterdir(): assert ModelConfig.from_folder(folder).model_type == folder.name\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60).returncode == 0


def test_loading_a_model_imports_its_own_family_alone(tmp_path: Path) -> None:
    save_tiny("phi3", tmp_path)
    code = (
        "import sys; from pathlib import Path; import torch; from infer_models import load_model\n"
        "load_model(Path(sys.argv[1]), device=torch.device('cpu'), dtype=torch.float32)\n"
        "print(sorted(name for name in sys.modules if name.startswith('infer_models.families.')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60, capture_output=True)
    room = "infer_models.families.phi3"
    assert done.stdout.decode().strip() == str([room, f"{room}.config", f"{room}.model"])


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_has_the_path_of_a_class_of_models(model_type: str) -> None:
    builder: Any = FAMILIES[model_type].builder
    assert isinstance(FAMILIES[model_type].build, str)
    assert issubclass(builder, CausalLM)


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

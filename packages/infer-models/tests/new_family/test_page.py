"""The page that says how to add a family has the files of this folder, and what it says of registering is so."""

import json
import re
from pathlib import Path

import pytest

from infer_models import CheckpointError, ModelConfig, register_family
from infer_models.config.registry import REGISTERED
from infer_models.families.llama.config import read_llama
from infer_models.families.llama.model import Llama
from infer_proofs.models import TinyFamily, save_tiny_twin

FOLDER = Path(__file__).parent
PAGE = Path(__file__).parents[4] / "docs" / "new-family.md"


@pytest.mark.covers("models/new-family-page")
@pytest.mark.parametrize("name", ["pyproject.toml", "infer_arcee.py", "test_infer_arcee.py"])
def test_the_page_has_the_file_character_by_character(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert blocks[name] == (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.covers("models/family-plug-ins")
def test_a_checkpoint_of_an_unknown_family_loads_the_plug_in(tmp_path: Path) -> None:
    save_tiny_twin(TinyFamily(config="ArceeConfig", model="ArceeForCausalLM"), tmp_path)
    assert "arcee" not in REGISTERED
    assert ModelConfig.from_folder(tmp_path).model_type == "arcee"
    assert REGISTERED["arcee"].builder.__name__ == "Arcee"


def test_a_family_that_no_plug_in_has_is_named_with_all_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(CheckpointError, match=r"`model_type` is 'mamba'; it must be one of .*`llama`, .*`arcee`"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.covers("models/family-plug-ins")
def test_a_family_is_registered_once() -> None:
    register_family("arcee", read=read_llama, build=Llama)
    with pytest.raises(ValueError, match="`model_type` is 'arcee', of which there is a family already"):
        register_family("arcee", read=read_llama, build=Llama)
    with pytest.raises(ValueError, match="`model_type` is 'llama', of which there is a family already"):
        register_family("llama", read=read_llama, build=Llama)

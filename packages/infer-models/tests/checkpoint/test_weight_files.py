"""Which files of a folder hold the weights."""

import json
from pathlib import Path

import pytest

from infer_models import CheckpointError
from infer_models.checkpoint.files.weight_files import find_weight_files

INDEX = "model.safetensors.index.json"
TWO = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def fill(folder: Path, *files: str, index: list[str] | None = None) -> None:
    for name in files:
        (folder / name).write_bytes(b"x")
    if index is not None:
        (folder / INDEX).write_text(json.dumps({"weight_map": {f"tensor {i}": name for i, name in enumerate(index)}}))


@pytest.mark.parametrize(
    ("files", "index", "chosen"),
    [
        (["model.safetensors"], None, ["model.safetensors"]),
        (TWO, TWO, TWO),
        (TWO, None, TWO),
        (["model.safetensors", *TWO], TWO, TWO),
        (["model.safetensors", *TWO], None, ["model.safetensors"]),
        (["model.safetensors"], TWO, ["model.safetensors"]),
        ([*TWO, "model-00001-of-00003.safetensors"], None, TWO),
        ([*TWO, "consolidated.safetensors", "adapter_model.safetensors", "optimizer.safetensors"], None, TWO),
        (["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"], None, None),
        (["model.fp16-00001-of-00001.safetensors"], None, None),
        (["model-00001-of-00001.fp16.safetensors"], None, None),
        (["model.bf16.safetensors"], None, None),
        (["layer-a.safetensors", "layer-b.safetensors"], None, None),
    ],
)
def test_one_set_of_files_is_meant(
    tmp_path: Path, files: list[str], index: list[str] | None, chosen: list[str] | None
) -> None:
    fill(tmp_path, *files, index=index)
    assert [path.name for path in find_weight_files(tmp_path).paths] == (chosen or files)


@pytest.mark.parametrize(
    ("files", "index", "message"),
    [
        (TWO[:1], TWO, "model-00002-of-00002.safetensors is missing"),
        (TWO[1:], None, "model-00001-of-00002.safetensors is missing"),
        (["model-00005-of-00005.safetensors"], None, "model-00003-of-00005.safetensors and 1 more are missing"),
        ([*TWO, "other-00001-of-00001.safetensors"], None, "several sets of shards"),
        (["model.fp16.safetensors", "model.fp32.safetensors"], None, "several variants"),
        (["consolidated.safetensors"], None, "its maker's own layout"),
        ([], None, "the folder is empty"),
        (["flax_model.msgpack"], None, "flax_model.msgpack, of another library"),
    ],
)
def test_where_none_is_whole_or_several_could_be_the_error_names_them(
    tmp_path: Path, files: list[str], index: list[str] | None, message: str
) -> None:
    fill(tmp_path, *files, index=index)
    with pytest.raises(CheckpointError, match=message):
        find_weight_files(tmp_path)

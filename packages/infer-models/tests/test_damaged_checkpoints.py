"""Whatever is wrong with a checkpoint is one line that names the file and the cause."""

import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from infer_kernels import linear
from infer_models import CausalLM, CheckpointError, ModelConfig, load_model
from infer_models.checkpoint import check_weights
from infer_models.families import build_model
from infer_models.layers import ParameterFactory
from infer_proofs.models import save_tiny_gemma3, save_tiny_llama, save_tiny_nanogpt, save_tiny_qwen3

CPU = torch.device("cpu")


def refusal_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(folder, device=CPU, dtype=torch.float32)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):  # reading no weight finds the same
        check_weights(without_weights(folder), folder)
    return message


def without_weights(folder: Path) -> CausalLM:
    """Return the model of a folder without memory for its weights."""
    config = ModelConfig.from_folder(folder)
    config = replace(config, ropes=(None,) * config.num_layers)
    factory = ParameterFactory(device=torch.device("meta"), dtype=torch.float32, linear=linear)
    return build_model(config, factory)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_nanogpt(tmp_path)
    return tmp_path


def rewrite(folder: Path, **changes: Tensor | None) -> None:
    """Save the weights with some replaced, or with None left out; `__` in a name stands for a dot."""
    path = folder / "model.safetensors"
    weights: dict[str, Any] = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in weights.items() if value is not None}, path)


def write_raw(folder: Path, header: Any, data: bytes = b"") -> None:
    encoded = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


@pytest.mark.parametrize("save", [save_tiny_llama, save_tiny_nanogpt, save_tiny_qwen3, save_tiny_gemma3])
def test_a_whole_checkpoint_is_found_whole_without_reading_weights(save: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path)
    assert check_weights(without_weights(tmp_path), tmp_path) == 1


@pytest.mark.covers("models/missing-tensor")
def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, model__layers__1__self_attn__k_proj__weight=None)
    message = refusal_of(folder)
    assert "model.safetensors: tensor `model.layers.1.self_attn.k_proj.weight` is missing" in message


@pytest.mark.covers("models/missing-tensor")
def test_many_missing_tensors_are_counted(folder: Path) -> None:
    save_file({"lm_head.bias": torch.zeros(65)}, folder / "model.safetensors")
    assert re.search(r"tensors `.*`, `.*`, `.*` and 54 more are missing", refusal_of(folder))


@pytest.mark.covers("models/unexpected-tensor")
def test_an_unexpected_tensor_is_named(folder: Path) -> None:
    rewrite(folder, model__layers__0__self_attn__q_proj__bias=torch.ones(64))
    assert "tensor `model.layers.0.self_attn.q_proj.bias` is unexpected" in refusal_of(folder)


@pytest.mark.covers("models/misshaped-tensor")
@pytest.mark.parametrize("shape", [(65, 63), (65 * 64,), (64, 65)])
def test_a_misshaped_tensor_is_named_with_both_shapes(folder: Path, shape: tuple[int, ...]) -> None:
    rewrite(folder, lm_head__weight=torch.zeros(shape))
    message = refusal_of(folder)
    assert f"tensor `lm_head.weight` has shape {list(shape)} but `config.json` makes it [65, 64]" in message


@pytest.mark.covers("models/misshaped-tensor")
def test_a_tensor_that_is_not_of_floats_is_named(folder: Path) -> None:
    rewrite(folder, lm_head__bias=torch.zeros(65, dtype=torch.int8))
    assert "tensor `lm_head.bias` is I8" in refusal_of(folder)


@pytest.mark.covers("models/truncated-file")
@pytest.mark.parametrize("kept", [0.0, 1e-5, 1e-3, 0.5, 0.99999])
def test_a_truncated_file_is_an_error(folder: Path, kept: float) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    assert "truncated" in refusal_of(folder)


@pytest.mark.covers("models/truncated-file")
def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, max_shard_size="100KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert f"{shard} is truncated" in refusal_of(tmp_path)


@pytest.mark.covers("models/truncated-file")
@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"not a page" * 20, struct.pack("<Q", 2) + b"[]"])
def test_garbage_is_no_safetensors_file(folder: Path, garbage: bytes) -> None:
    (folder / "model.safetensors").write_bytes(garbage)
    assert "no safetensors file" in refusal_of(folder)


@pytest.mark.covers("models/truncated-file")
@pytest.mark.parametrize(
    "entry",
    [
        3,
        {"dtype": "F32", "shape": [4]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, "16"]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [16, 0]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]},
        {"dtype": "F128", "shape": [1], "data_offsets": [0, 16]},
    ],
)
def test_a_damaged_header_names_the_tensor(folder: Path, entry: object) -> None:
    write_raw(folder, {"lm_head.bias": entry}, b"\0" * 16)
    assert "tensor `lm_head.bias`" in refusal_of(folder)


def test_a_tensor_in_two_shards_is_an_error_where_nothing_says_which_is_meant(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, max_shard_size="100KB")
    (tmp_path / "model.safetensors.index.json").unlink()
    first, second, *_ = sorted(tmp_path.glob("*.safetensors"))
    save_file({name: each + 1 for name, each in load_file(first).items()} | load_file(second), second)
    assert f"is also in {first.name}, with other numbers" in refusal_of(tmp_path)


@pytest.mark.covers("models/missing-tensor")
def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, max_shard_size="100KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"index.json: {shard.name} is missing in the folder" in refusal_of(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "pytorch_model.bin"])
def test_a_shard_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.bias": name}}))
    assert "is not the name of a safetensors file in this folder" in refusal_of(folder)


@pytest.mark.covers("models/truncated-file")
@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "{"])
def test_a_damaged_index_is_an_error(folder: Path, index: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in refusal_of(folder)


@pytest.mark.covers("models/no-pickle")
def test_a_pickle_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin, a pickle" in refusal_of(folder)


def test_a_folder_without_weights_is_an_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has neither model.safetensors nor model.safetensors.index.json" in refusal_of(folder)


def test_a_folder_in_the_place_of_a_file_is_an_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    assert "cannot be read: Is a directory" in refusal_of(folder)

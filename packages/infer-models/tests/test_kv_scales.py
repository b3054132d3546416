"""Scales of an FP8 KV cache in checkpoints: every name they have, and what is refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from infer_kernels import KVScales
from infer_models import CheckpointError, load_model
from infer_models.checkpoint import load_kv_scales
from infer_models.kv_scales import read_kv_scales
from infer_proofs.models import save_tiny

ATTENTION = "model.layers.0.self_attn."
SPELLINGS = [
    ("k_scale", "v_scale"),
    ("k_proj.k_scale", "v_proj.v_scale"),
    ("k_proj.output_scale", "v_proj.output_scale"),
]


def read(numbers: Mapping[str, float]) -> Mapping[int, KVScales]:
    return read_kv_scales(numbers, numbers.__getitem__)


def add_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **tensors}, path)


@pytest.mark.parametrize(("keys", "values"), SPELLINGS)
def test_every_spelling_is_read(keys: str, values: str) -> None:
    numbers = {ATTENTION + keys: 0.5, ATTENTION + values: 2.0, "model.layers.0.self_attn.o_proj.weight": 7.0}
    assert read(numbers) == {0: KVScales(keys=0.5, values=2.0)}


def test_layers_have_scales_of_their_own_and_some_have_none() -> None:
    numbers = {f"model.layers.{layer}.self_attn.{side}_scale": layer + 1.0 for layer in (0, 11) for side in "kv"}
    assert read(numbers) == {0: KVScales(), 11: KVScales(keys=12.0, values=12.0)}


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["k", "v"])
def test_a_scale_that_is_not_positive_and_finite_is_refused_by_name(side: str, number: float) -> None:
    numbers = {f"{ATTENTION}k_scale": 1.0, f"{ATTENTION}v_scale": 1.0} | {f"{ATTENTION}{side}_scale": number}
    with pytest.raises(CheckpointError, match=rf"`model\.layers\.0\.self_attn\.{side}_scale` is .*; a scale must be"):
        read(numbers)


def test_one_scale_without_the_other_and_two_names_of_one_are_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"`model\.layers\.0\.self_attn\.k_scale` is a scale .* other one is missing"
    ):
        read({f"{ATTENTION}k_scale": 1.0})
    with pytest.raises(CheckpointError, match=r"k_scale` and `.*k_proj\.output_scale` are both the scale"):
        read({f"{ATTENTION}{name}": 1.0 + i for i, name in enumerate(("k_scale", "k_proj.output_scale", "v_scale"))})


@pytest.mark.parametrize("place", ["", "qkv_proj.", "attn."])
def test_scales_lie_where_their_makers_put_them(place: str) -> None:
    # vllm-project/vllm#25047, sgl-project/sglang#39942
    numbers = {f"{ATTENTION}{place}k_scale": 2.0, f"{ATTENTION}{place}v_scale": 3.0, f"{ATTENTION}k_scale": 2.0}
    assert read(numbers) == {0: KVScales(keys=2.0, values=3.0)}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_with_scales_loads_and_has_them(
    tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    save_tiny("llama", tmp_path)
    add_tensors(tmp_path, {f"{ATTENTION}{side}_scale": torch.full(shape, 0.25, dtype=dtype) for side in "kv"})
    load_model(tmp_path, device=torch.device("cpu"), dtype=torch.float32)
    assert load_kv_scales(tmp_path) == {0: KVScales(keys=0.25, values=0.25)}


def test_scales_are_found_in_shards_and_inside_multimodal_checkpoints(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "shards", max_shard_size="60KB")
    shard = max((tmp_path / "shards").glob("*.safetensors"))
    save_file({**load_file(shard), **{f"{ATTENTION}{side}_scale": torch.tensor(3.0) for side in "kv"}}, shard)
    found = load_kv_scales(tmp_path / "shards")
    assert found == {0: KVScales(keys=3.0, values=3.0)}
    save_tiny("llava", tmp_path / "wrapped")
    stored = load_file(tmp_path / "wrapped" / "model.safetensors")
    prefix = next(name for name in stored if name.endswith("layers.1.self_attn.k_proj.weight")).removesuffix(
        "k_proj.weight"
    )
    add_tensors(tmp_path / "wrapped", {f"{prefix}{side}_scale": torch.tensor(2.0) for side in "kv"})
    found = load_kv_scales(tmp_path / "wrapped")
    assert found == {1: KVScales(keys=2.0, values=2.0)}


def test_a_checkpoint_without_scales_has_none(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    assert load_kv_scales(tmp_path) == {}


@pytest.mark.parametrize("tensor", [torch.ones(2), torch.ones(1, dtype=torch.int32)], ids=["two numbers", "an integer"])
def test_a_scale_of_several_numbers_or_no_float_is_refused_by_name(tmp_path: Path, tensor: Tensor) -> None:
    save_tiny("llama", tmp_path)
    add_tensors(tmp_path, {f"{ATTENTION}{side}_scale": tensor.clone() for side in "kv"})
    with pytest.raises(CheckpointError, match=r"self_attn\.[kv]_scale` is .*; it must be one number"):
        load_kv_scales(tmp_path)

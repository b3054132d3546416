"""GGUF files whose queries, keys and values are rows of one tensor, as llama.cpp's converter writes them if asked."""

from pathlib import Path

import numpy as np
import pytest
import torch

import gguf
from infer_models import CheckpointError
from infer_models.model_loader import load_model
from infer_proofs.models import save_tiny
from infer_proofs.models.gguf_files import save_gguf

CPU = torch.device("cpu")
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}


def fuse(path: Path, parts: str = "qkv", *, spare_rows: int = 0) -> Path:
    """Write a file anew, with `parts` of each layer's attention in one tensor; return its path."""
    reader = gguf.GGUFReader(path)
    fused = path.with_name("fused.gguf")
    writer = gguf.GGUFWriter(fused, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            item = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], item)
    tensors = {each.name: each for each in reader.tensors}
    for name, tensor in tensors.items():
        layer, _, rest = name.partition(".attn_")
        part, _, leaf = rest.partition(".")
        names = [f"{layer}.attn_{each}.{leaf}" for each in parts]
        if part not in parts or not set(names) <= tensors.keys():
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
        elif part == parts[0]:
            data = np.concatenate([*(tensors[each].data for each in names), tensor.data[:spare_rows]])
            writer.add_tensor(f"{layer}.attn_qkv.{leaf}", data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return fused


def numbers(path: Path) -> dict[str, torch.Tensor]:
    model = load_model(path, device=CPU, dtype=torch.float32, quantization="none")
    return {name: each.detach() for name, each in model.named_parameters()}


def save_file(family: str, folder: Path, kind: str | None = None) -> Path:
    save_tiny(family, folder, **WIDE)
    save_gguf(folder, folder / "model.gguf", kind_of=lambda name: kind if "attn_" in name else None)
    return folder / "model.gguf"


@pytest.mark.covers("gguf/families")
@pytest.mark.parametrize("kind", [None, "F16", "Q4_K", "IQ3_S"])
@pytest.mark.parametrize("family", ["llama", "granite", "smollm3", "qwen2", "qwen3_5", "gemma3", "olmo2", "lfm2"])
def test_fused_attention_has_the_numbers_of_its_parts(family: str, kind: str | None, tmp_path: Path) -> None:
    # ggml-org/llama.cpp#20628: `--fuse-qkv`; rows of queries and keys are in the order of rotated pairs there too
    path = save_file(family, tmp_path, kind)
    right, found = numbers(path), numbers(fuse(path))
    assert right.keys() == found.keys()
    assert all(torch.equal(found[name], each) for name, each in right.items())


def test_layers_whose_values_are_their_keys_are_fused_without_values(tmp_path: Path) -> None:
    shape = {"num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0}
    save_tiny("gemma4", tmp_path, attention_k_eq_v=True, num_global_key_value_heads=1, **shape)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path)
    right, found = numbers(path), numbers(fuse(path, "qk"))
    assert all(torch.equal(found[name], each) for name, each in right.items())


def test_rows_that_the_metadata_does_not_explain_are_refused(tmp_path: Path) -> None:
    path = fuse(save_file("qwen3", tmp_path), spare_rows=1)
    with pytest.raises(CheckpointError, match=r"`blk\.0\.attn_qkv\.weight` has 513 rows; of the metadata 256 are"):
        numbers(path)

"""Weights of GGUF files on a device whose products are Triton's: all types stay packed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_kernels import QuantizedWeight, has_quantized_kernel
from infer_kernels.dispatch import TRITON_DEVICES
from infer_models import load_model
from infer_proofs.models import save_tiny
from infer_proofs.models.gguf_files import KINDS, save_gguf

CPU = torch.device("cpu")
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}


@pytest.fixture
def triton_on_cpu() -> Iterator[None]:
    """Let layers of a CPU choose as those of a GPU do; nothing may be computed inside."""
    TRITON_DEVICES.add("cpu")
    yield
    TRITON_DEVICES.discard("cpu")


@pytest.mark.parametrize("encoding", ["int4", "int8"])
@pytest.mark.parametrize("group_size", [16, 32, None])
def test_minimums_are_multiplied_where_zeros_are(encoding: Any, group_size: int | None) -> None:
    of: dict[str, Any] = {"group_size": group_size, "in_features": 256, "device": torch.device("cuda")}
    assert has_quantized_kernel(encoding, has_minimums=True, **of)
    assert not has_quantized_kernel(encoding, has_minimums=True, **of | {"group_size": 24})
    assert not has_quantized_kernel("fp8_e4m3", has_minimums=True, **of)


@pytest.mark.usefixtures("triton_on_cpu")
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_stays_packed(kind: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, **WIDE)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=lambda name: None if name == "token_embd.weight" else kind)
    model = load_model(path, device=CPU, dtype=torch.bfloat16)
    matrices = [weight for weight, _ in model.stored_by_parameter() if len(weight.shape) > 1]
    kept = [weight for weight in matrices if isinstance(weight, QuantizedWeight)]
    assert len(kept) == len(matrices) - 1
    has_minimums = kind in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
    assert {weight.minimums is not None for weight in kept} == {has_minimums}
    model.prepack()
    layer = model.get_submodule("model.layers.0.self_attn.o_proj").weight
    assert isinstance(layer, QuantizedWeight)
    whole_words = {"int4": 32, "int8": 16}.get(layer.encoding)
    assert layer.order == ("rows" if whole_words is None or layer.group_size % whole_words else "words")

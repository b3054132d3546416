"""Types of GGUF files that are dequantized while they are read, by the `gguf` package."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gguf
from infer_kernels import QuantizedWeight
from infer_models import CausalLM, CheckpointError, load_model
from infer_models.checkpoint import read_checkpoint_config
from infer_models.layers import own_weights
from infer_models.quantization.gguf.dequantization import dequantizer
from infer_models.tensor_parallel import Shard
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import save_tiny
from infer_proofs.models.gguf_files import DEQUANTIZED_KINDS, random_blocks, save_gguf

CPU = torch.device("cpu")
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}
HEADS: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
OWN = {"qwen3_5": HEADS, "gemma3": {"layer_types": None, "rope_parameters": None}}
SMALL = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256, "shared_intermediate_size": 256}
PLAIN = ("ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d", "ssm_norm")
MIXED = {
    "attn_q": "IQ3_S",
    "attn_k": "Q4_K",
    "attn_v": "Q6_K",
    "ffn_gate": "IQ2_XXS",
    "ffn_up": "Q4_K",
    "ffn_down": "TQ2_0",
}


def mixed(name: str) -> str | None:
    """Return types as files of two and three bits mix them: the first experts' parts are smaller than the last."""
    within = name.split(".")[-2]
    experts = {"ffn_gate_exps": "IQ2_XXS", "ffn_up_exps": "IQ1_M", "ffn_down_exps": "Q3_K", "token_embd": "Q4_K"}
    others = {"attn_output": "IQ3_XXS", "ssm_out": "IQ2_S", "ssm_in": "IQ2_XS", "ssm_alpha": "Q8_0", "ssm_beta": "Q8_0"}
    return None if within in PLAIN else {**MIXED, **experts, **others}.get(within, "IQ3_S")


def save(folder: Path, kind_of: Callable[[str], str | None], family: str = "llama", **fields: Any) -> Path:
    save_tiny(family, folder, **{**WIDE, **fields})
    save_gguf(folder, folder / "model.gguf", kind_of=kind_of)
    return folder / "model.gguf"


def loaded(path: Path, **how: Any) -> CausalLM:
    return load_model(path, device=CPU, dtype=torch.float32, **how)


def assert_same_models(ours: CausalLM, theirs: CausalLM) -> None:
    found, expected = numbers_of(ours), numbers_of(theirs)
    assert found.keys() == expected.keys()
    for name, numbers in found.items():
        atol = 0 if numbers.dim() > 1 else 5e-7  # vectors are stored changed
        torch.testing.assert_close(numbers, expected[name], rtol=0, atol=atol, msg=name)


def numbers_of(model: CausalLM) -> dict[str, torch.Tensor]:
    return {
        f"{path}.{name}": weight.dequantize() if isinstance(weight, QuantizedWeight) else weight.detach()
        for path, module in model.named_modules()
        for name, weight in own_weights(module)
    }


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Forget which types the package has, before and after."""
    dequantizer.cache_clear()
    yield
    dequantizer.cache_clear()


@pytest.mark.covers("gguf/types")
@pytest.mark.parametrize("kind", DEQUANTIZED_KINDS)
def test_a_file_of_one_type_is_the_checkpoint_of_its_numbers(kind: str, tmp_path: Path) -> None:
    path = save(tmp_path, lambda _: kind, tie_word_embeddings=kind != "IQ1_S", num_hidden_layers=1)
    config = read_checkpoint_config(path)
    assert (config.quantization, config.dtype) == (None, "bfloat16")
    assert_same_models(loaded(path), loaded(tmp_path))


@pytest.mark.covers("gguf/types")
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "granitemoehybrid", "qwen3_5", "gemma3"])
def test_types_are_mixed_with_others_in_products_and_experts(family: str, tmp_path: Path) -> None:
    path = save(tmp_path, mixed, family, **SMALL, **OWN.get(family, {}))
    assert_same_models(loaded(path), loaded(tmp_path))
    if family == "llama":  # the table of tokens is kept in four bits
        assert isinstance(loaded(path).get_submodule("model.embed_tokens").weight, QuantizedWeight)


@needs_cpu_kernels
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_such_weights_are_quantized_as_others_are(quantization: Any, tmp_path: Path) -> None:
    path = save(tmp_path, mixed, num_hidden_layers=1)
    assert_same_models(loaded(path, quantization=quantization), loaded(tmp_path, quantization=quantization))


def test_two_ranks_hold_their_parts(tmp_path: Path) -> None:
    path = save(tmp_path, mixed, num_hidden_layers=1)
    for rank in (0, 1):
        shard = Shard(rank=rank, size=2)
        assert_same_models(loaded(path, shard=shard), loaded(tmp_path, shard=shard))


@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0"])
def test_ternary_numbers_are_where_they_were(kind: str, tmp_path: Path) -> None:
    # ggml-org/llama.cpp#28769: planes of bits taken for neighbours read plausible numbers in wrong places
    save_tiny("llama", tmp_path, **WIDE, num_hidden_layers=1)
    tensors = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    ternary = {
        name: 0.0625 * torch.randint(-1, 2, each.shape, generator=generator).float() if each.dim() > 1 else each
        for name, each in tensors.items()
    }
    save_file(ternary, tmp_path / "model.safetensors", metadata={"format": "pt"})
    right = loaded(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        add, of = gguf.GGUFWriter.add_tensor, gguf.GGMLQuantizationType[kind]

        def packed(writer: Any, name: str, data: Any) -> None:
            is_matrix = data.ndim > 1
            add(
                writer, name, gguf.quants.quantize(data, of) if is_matrix else data, raw_dtype=of if is_matrix else None
            )

        patch.setattr(gguf.GGUFWriter, "add_tensor", packed)
        save_gguf(tmp_path, tmp_path / "model.gguf")
    assert_same_models(loaded(tmp_path / "model.gguf"), right)


def with_tensors(path: Path, more: Mapping[str, list[float]], made: Callable[[], Path]) -> Path:
    """Make a file with more tensors of fp32."""
    with pytest.MonkeyPatch.context() as patch:
        write = gguf.GGUFWriter.write_header_to_file

        def with_more(writer: Any) -> None:
            for name, numbers in more.items():
                writer.add_tensor(name, np.array(numbers, dtype=np.float32))
            write(writer)

        patch.setattr(gguf.GGUFWriter, "write_header_to_file", with_more)
        made()
    return path


def test_tensors_of_nvfp4_are_multiplied_by_their_own_factors(tmp_path: Path) -> None:
    # Luce-Org/lucebox#146, charlie12345/ROCmFPX#85: left out, answers are garbage, and those of experts have one each
    path, factors = tmp_path / "model.gguf", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    scales = {"blk.0.ffn_up_exps.scale": factors, "blk.0.attn_q.scale": [3.0], "blk.0.attn_q.input_scale": [7.0]}
    with_tensors(
        path, scales, lambda: save(tmp_path, lambda name: None if "inp" in name else "NVFP4", "qwen3_moe", **SMALL)
    )
    tensors, at = load_file(tmp_path / "model.safetensors"), "model.layers.0."
    ups = {f"{at}mlp.experts.{index}.up_proj.weight": each for index, each in enumerate(factors)}
    for name, factor in {**ups, f"{at}self_attn.q_proj.weight": 3.0}.items():
        tensors[name] = tensors[name] * factor
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_same_models(loaded(path), loaded(tmp_path))


@pytest.mark.parametrize("name", ["attn_q", "ffn_up_exps"])
def test_factors_that_do_not_fit_are_one_line(name: str, tmp_path: Path) -> None:
    path, more = tmp_path / "model.gguf", {f"blk.0.{name}.scale": [1.0] * 4}
    with_tensors(path, more, lambda: save(tmp_path, lambda _: "NVFP4", "qwen3_moe", num_hidden_layers=1, **SMALL))
    with pytest.raises(CheckpointError, match=rf"`blk\.0\.{name}\.scale` holds 4 numbers, not one"):
        loaded(path)


def test_a_scale_of_one_expert_that_is_no_number_is_an_error_that_names_it(tmp_path: Path) -> None:
    # ikawrakow/ik_llama.cpp#649: published files have such blocks in a few experts
    with pytest.MonkeyPatch.context() as patch:
        add = gguf.GGUFWriter.add_tensor

        def broken(writer: Any, name: str, data: Any, **how: Any) -> None:
            if name == "blk.1.ffn_down_exps.weight":
                data[4, 2, :2] = np.array([np.nan], dtype=np.float16).view(np.uint8)
            add(writer, name, data, **how)

        patch.setattr(gguf.GGUFWriter, "add_tensor", broken)
        path = save(tmp_path, lambda name: "IQ2_S" if "_exps" in name else None, "qwen3_moe", **SMALL)
    with pytest.raises(CheckpointError, match=r"`blk\.1\.ffn_down_exps\.weight\[4\].*` has a scale that is NaN"):
        loaded(path)


@pytest.mark.usefixtures("forgotten")
def test_without_the_package_the_error_says_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, lambda name: "IQ2_XS" if "ffn_up" in name else "Q4_K")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint_config(path)
    assert str(caught.value).endswith(
        "model.gguf: tensor `blk.0.ffn_up.weight` is of type IQ2_XS, which the package `gguf` dequantizes: "
        "`pip install gguf`, or `infer-server[gguf]`, brings it."
    )


@pytest.mark.usefixtures("forgotten")
def test_types_that_the_package_does_not_know_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, lambda name: "NVFP4" if "ffn_up" in name else None)
    monkeypatch.delitem(gguf.quants._type_traits, gguf.GGMLQuantizationType.NVFP4)  # noqa: SLF001 - as in older ones
    with pytest.raises(CheckpointError, match=r"is of type NVFP4, which the installed package `gguf` does not know"):
        read_checkpoint_config(path)


def test_what_they_take_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save(tmp_path, mixed)
    caplog.clear()
    loaded(path)
    (said,) = (each.getMessage() for each in caplog.records if "weights of" in each.getMessage())
    assert said.startswith(f"{path}: weights of IQ2_XXS, IQ3_S, IQ3_XXS, TQ2_0 are dequantized: they take 0.0")


def test_numbers_of_nvfp4_are_those_of_its_formula() -> None:
    data = torch.from_numpy(random_blocks("NVFP4", 8, 192, seed=3)).view(24, 36)
    codes = torch.cat([data[:, 4:].view(24, 4, 8) & 15, data[:, 4:].view(24, 4, 8) >> 4], dim=-1).long()
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    scales = data[:, :4].contiguous().view(torch.float8_e4m3fn).float().unsqueeze(-1)
    expected = torch.where(codes < 8, 1.0, -1.0) * table[codes % 8] * scales
    assert torch.equal(dequantizer("NVFP4")(data), expected.view(24, 64))

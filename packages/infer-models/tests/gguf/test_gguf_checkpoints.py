"""Models of GGUF files are those of the checkpoints that the files were made of, number for number."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gguf
from infer_kernels import QuantizedWeight, prepack
from infer_kernels.cpu import PackedQuantizedWeight
from infer_models import CausalLM, CheckpointError, load_model
from infer_models.checkpoint import read_checkpoint_config
from infer_models.config.generation_config import GenerationConfig, read_generation_fields
from infer_models.tensor_parallel import Shard
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import LLAMA3_SCALING, save_tiny, save_tiny_tokenizer
from infer_proofs.models.gguf_files import KINDS, save_gguf

CPU = torch.device("cpu")
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}
"""Sizes of rows that are whole blocks of every type."""
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3_moe": {"moe_intermediate_size": 256},
    "mixtral": {},
    "smollm3": {"no_rope_layers": None, "num_hidden_layers": 4},
    "granite": {},
    "olmo2": {},
    "gemma3": {"layer_types": None, "num_hidden_layers": 7, "query_pre_attn_scalar": 64, "rope_parameters": None},
}


def mixed(name: str) -> str | None:
    """Return types as common files mix them: of attention's three products another one for the values."""
    if name in ("token_embd.weight", "output.weight"):
        return "Q6_K"
    within = name.split(".")[-2]
    return {"attn_v": "Q6_K", "ffn_down": "Q5_K", "ffn_down_exps": "Q8_0", "ffn_gate_inp": None}.get(within, "Q4_K")


def loaded(path: Path, **how: Any) -> CausalLM:
    return load_model(path, device=CPU, dtype=torch.float32, **how)


def numbers_of(model: CausalLM) -> list[torch.Tensor]:
    return [
        weight.dequantize() if isinstance(weight, QuantizedWeight) else weight.detach()
        for weight, _ in model.stored_by_parameter()
    ]


def assert_same_models(ours: CausalLM, theirs: CausalLM) -> None:
    for found, expected in zip(numbers_of(ours), numbers_of(theirs), strict=True):
        if found.dim() > 1:
            assert torch.equal(found, expected)
        else:  # Gemma's files have one more than the weights of norms
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-7)
    tables = dict(theirs.named_buffers())
    for name, table in ours.named_buffers():
        torch.testing.assert_close(table, tables[name])


@pytest.mark.covers("gguf/families")
@pytest.mark.parametrize(
    ("kind_of", "dtype"), [(lambda _: None, "float32"), (mixed, "bfloat16")], ids=["plain", "mixed"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_the_checkpoint_that_it_was_made_of(
    family: str, kind_of: Callable[[str], str | None], dtype: str, tmp_path: Path
) -> None:
    save_tiny(family, tmp_path, **{**WIDE, **FAMILIES[family]})
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=kind_of)
    ours, theirs = read_checkpoint_config(path), read_checkpoint_config(tmp_path)
    for field in ours.__slots__:
        if field not in ("dtype", "quantization"):
            assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.dtype == dtype
    assert_same_models(loaded(path), loaded(tmp_path))


@pytest.mark.covers("models/mixtral")
def test_experts_that_are_tensors_of_their_own_are_read(tmp_path: Path) -> None:
    """So files of early 2024 and before have them, which llama.cpp reads no longer (its issue 10244)."""
    save_tiny("mixtral", tmp_path, **WIDE)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=mixed, stacks_experts=False)
    assert_same_models(loaded(path), loaded(tmp_path))


BITS = {
    "Q4_0": 4.5,
    "Q4_1": 5,
    "Q5_0": 6.5,
    "Q5_1": 7,
    "Q8_0": 8.5,
    "Q2_K": 5.125,
    "Q3_K": 4.5625,
    "Q4_K": 4.625,
    "Q5_K": 6.625,
    "Q6_K": 6.5625,
    "IQ4_NL": 4.5,
    "IQ4_XS": 4.3125,
    "MXFP4": 5,
}
"""Bits of a number in memory; a file has as many, or fewer where codes have two, three or five bits."""


@needs_cpu_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_stays_as_small_as_codes_allow(kind: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, **WIDE)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=lambda name: None if name == "token_embd.weight" else kind)
    ours = loaded(path)
    matrices = [weight for weight, _ in ours.stored_by_parameter() if len(weight.shape) > 1]
    kept = [weight for weight in matrices if isinstance(weight, QuantizedWeight)]
    assert len(kept) == len(matrices) - 1
    panels = [prepack(weight) for weight in kept]
    assert all(isinstance(each, PackedQuantizedWeight) for each in panels)
    num_bytes = sum(each.panels.numel() for each in panels if isinstance(each, PackedQuantizedWeight))
    assert num_bytes * 8 == BITS[kind] * sum(math.prod(weight.shape) for weight in kept)
    assert_same_models(ours, loaded(tmp_path))


@needs_cpu_kernels
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"])
def test_a_table_of_tokens_stays_as_small_as_a_product(kind: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, **WIDE, tie_word_embeddings=True)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=lambda name: kind if name == "token_embd.weight" else None)
    ours = loaded(path)
    kept = [weight for weight, _ in ours.stored_by_parameter() if isinstance(weight, QuantizedWeight)]
    encodings = {"Q4_0": "int4", "Q4_K": "int4", "Q6_K": "int6", "IQ4_NL": "iq4", "MXFP4": "int8"}
    assert [weight.encoding for weight in kept] == [encodings[kind]]
    assert_same_models(ours, loaded(tmp_path))


@needs_cpu_kernels
def test_products_of_one_launch_keep_their_numbers_whatever_the_types_of_their_parts(tmp_path: Path) -> None:
    kinds = {"attn_q": "Q4_K", "attn_k": "Q3_K", "attn_v": "Q6_K", "ffn_gate": "Q4_0", "ffn_up": "Q4_1"}
    save_tiny("llama", tmp_path, **WIDE)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=lambda name: kinds.get(name.split(".")[-2]))
    ours = loaded(path)
    found = {
        (weight.encoding, weight.group_size, weight.minimums is not None, weight.scales.dtype)
        for weight, _ in ours.stored_by_parameter()
        if isinstance(weight, QuantizedWeight)
    }
    assert found == {("int6", 16, True, torch.int8), ("int6", 32, True, torch.float16)}
    assert_same_models(ours, loaded(tmp_path))


RECIPES: dict[str, dict[str, str | None]] = {
    # Rows of no whole blocks of 256 fall back to other types; a file's name says its recipe, not its types.
    "IQ4_XS, fallen back": {"attn_v": "Q5_1", "ffn_down": "IQ4_XS", "output": "Q8_0", "": "IQ4_NL"},
    "Q4_K_M, fallen back": {"attn_v": "Q8_0", "ffn_down": "Q8_0", "attn_k": "Q5_0", "output": "Q8_0", "": "Q5_0"},
    # Types chosen by what a tensor's errors cost, one of q, k and v in plain numbers.
    "dynamic": {"attn_k": None, "attn_v": "Q8_0", "ffn_gate": "IQ4_XS", "ffn_up": "Q5_K", "output": "Q6_K", "": "Q4_K"},
    "Q3_K_M": {"attn_v": "Q5_K", "attn_output": "Q4_K", "ffn_down": "Q4_K", "output": "Q6_K", "": "Q3_K"},
    "Q2_K": {"attn_v": "Q4_K", "ffn_down": "Q3_K", "output": "Q6_K", "": "Q2_K"},
}
"""Types of public files by tensor; of "" of the others."""


@pytest.mark.covers("gguf/types")
@pytest.mark.parametrize("recipe", RECIPES)
def test_files_of_public_recipes_keep_their_numbers(recipe: str, tmp_path: Path) -> None:
    kinds = RECIPES[recipe]
    save_tiny("llama", tmp_path, **WIDE)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=lambda name: kinds.get(name.split(".")[-2], kinds[""]))
    assert_same_models(loaded(path), loaded(tmp_path))


def test_a_fused_tensor_is_read_as_one(tmp_path: Path) -> None:
    save_tiny("phi3", tmp_path, **WIDE, rope_parameters=None)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=mixed, metadata={"attention.sliding_window": 1000})
    assert read_checkpoint_config(path).windows == read_checkpoint_config(tmp_path).windows
    assert_same_models(loaded(path), loaded(tmp_path))


def test_olmo_with_windows_is_olmo_3(tmp_path: Path) -> None:
    save_tiny("olmo3", tmp_path, rope_parameters=None)
    path = tmp_path / "model.gguf"
    (tmp_path / "olmo2").mkdir()
    config = (tmp_path / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(config.replace('"olmo3"', '"olmo2"'), encoding="utf-8")
    pattern = {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False, True]}
    save_gguf(tmp_path, path, metadata=pattern)
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    ours, theirs = read_checkpoint_config(path), read_checkpoint_config(tmp_path)
    assert (ours.model_type, ours.windows) == ("olmo3", theirs.windows)
    assert_same_models(loaded(path), loaded(tmp_path))


LLAMA3 = LLAMA3_SCALING | {"original_max_position_embeddings": 8192}


def add_tensor(path: Path, name: str, numbers: torch.Tensor, made: Callable[..., None]) -> None:
    """Write a file again with one more tensor."""
    add = gguf.GGUFWriter.write_header_to_file

    def with_tensor(writer: Any) -> None:
        writer.add_tensor(name, numbers.float().numpy())
        add(writer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", with_tensor)
        made(path)


def test_what_sees_images_beside_the_text_model_is_passed_over(tmp_path: Path) -> None:
    # ggml-org/llama.cpp#27349: Ollama's files have both
    save_tiny("llama", tmp_path)
    path = tmp_path / "model.gguf"
    add_tensor(path, "v.blk.0.attn_q.weight", torch.ones(8, 8), lambda to: save_gguf(tmp_path, to))
    assert_same_models(loaded(path), loaded(tmp_path))
    add_tensor(path, "blk.0.attn_sinks.weight", torch.ones(4), lambda to: save_gguf(tmp_path, to))
    with pytest.raises(CheckpointError, match=r"`blk\.0\.attn_sinks\.weight` is unexpected"):
        loaded(path)


def test_a_tensor_whose_name_has_no_parts_is_unexpected(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    path = tmp_path / "model.gguf"
    add_tensor(path, "weight", torch.ones(4), lambda to: save_gguf(tmp_path, to))
    with pytest.raises(CheckpointError, match="`weight` is unexpected"):
        loaded(path)


@pytest.mark.parametrize("missing", ["blk.1.ffn_up.weight", "output_norm.weight"])
def test_a_tensor_that_is_missing_is_named(missing: str, tmp_path: Path) -> None:
    # ggml-org/llama.cpp#3917, kvcache-ai/ktransformers#473
    save_tiny("llama", tmp_path)
    path = tmp_path / "model.gguf"
    with pytest.MonkeyPatch.context() as patch:
        add = gguf.GGUFWriter.add_tensor
        patch.setattr(
            gguf.GGUFWriter,
            "add_tensor",
            lambda self, name, *a, **k: None if name == missing else add(self, name, *a, **k),
        )
        save_gguf(tmp_path, path)
    name = "mlp.up_proj.weight" if "ffn" in missing else "model.norm.weight"
    with pytest.raises(CheckpointError, match=rf"{name}` is missing"):
        loaded(path)


def test_frequencies_are_divided_by_the_factors_of_the_file(tmp_path: Path) -> None:
    # vllm-project/vllm#7268: a tensor that was taken for a weight too many
    save_tiny("llama", tmp_path, **WIDE, rope_parameters=LLAMA3, max_position_embeddings=131072)
    theirs = loaded(tmp_path)
    base = 500000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    turns = 8192 * base / (2 * torch.pi)
    share = ((turns - 1.0) / 3.0).clamp(0, 1)
    factors = 1 / ((1 - share) / 8.0 + share)
    path = tmp_path / "model.gguf"
    add_tensor(path, "rope_freqs.weight", factors, lambda to: save_gguf(tmp_path, to))
    for name, table in loaded(path).named_buffers():
        torch.testing.assert_close(table, dict(theirs.named_buffers())[name], rtol=0, atol=1e-4)
    path.unlink()  # of whatever scaling they are
    add_tensor(path, "rope_freqs.weight", factors * 1.01, lambda to: save_gguf(tmp_path, to))
    (rope, *_) = read_checkpoint_config(path).ropes
    assert rope is not None
    divided = rope.scaling.frequencies(1 / base.float(), theta=500000.0, is_long=False)
    torch.testing.assert_close(divided, (base / factors / 1.01).float())
    path.unlink()
    add_tensor(path, "rope_freqs.weight", factors[:-1], lambda to: save_gguf(tmp_path, to))
    with pytest.raises(CheckpointError, match=r"`rope_freqs\.weight` must hold 32 numbers above 0"):
        read_checkpoint_config(path)


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 128,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
        ({"rope.scaling.type": "none"}, None),
    ],
)
def test_scalings_of_the_metadata_are_read(
    metadata: dict[str, Any], scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    rope = {"rope_theta": 10000.0} | (scaling or {"rope_type": "default"})
    save_tiny("qwen3", tmp_path, rope_parameters=rope)
    save_gguf(tmp_path, tmp_path / "model.gguf", metadata=metadata)
    assert read_checkpoint_config(tmp_path / "model.gguf").ropes == read_checkpoint_config(tmp_path).ropes


def test_a_model_in_parts_is_read_from_any_of_them(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, **WIDE)
    whole = tmp_path / "whole.gguf"
    save_gguf(tmp_path, whole, kind_of=mixed)
    reader = gguf.GGUFReader(whole)
    parts = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        if number == 0:
            for key, field in reader.fields.items():
                if key.startswith("llama."):
                    kind, value = field.types[0], field.contents()
                    writer.add_key_value(key, value, kind)
        for tensor in reader.tensors[number::2]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    for part in parts:
        assert_same_models(loaded(part), loaded(whole))
    parts[1].rename(tmp_path / "gone.gguf")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.gguf is missing beside it"):
        loaded(parts[0])
    (tmp_path / "gone.gguf").write_bytes(parts[0].read_bytes())
    (tmp_path / "gone.gguf").rename(parts[1])
    with pytest.raises(CheckpointError, match=r"`split\.no` is 0, but by its name it is part 2"):
        loaded(parts[0])
    parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match="one of 2 parts of a model; they must be called"):
        loaded(tmp_path / "renamed.gguf")


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@needs_cpu_kernels
def test_a_file_can_be_dequantized_or_quantized_anew(quantization: Any, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, **WIDE)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=mixed)
    assert_same_models(loaded(path, quantization=quantization), loaded(tmp_path, quantization=quantization))


def test_two_ranks_hold_their_parts(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, **WIDE)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=mixed)
    for rank in (0, 1):
        shard = Shard(rank=rank, size=2)
        assert_same_models(loaded(path, shard=shard), loaded(tmp_path, shard=shard))


def test_ends_and_sampling_are_in_the_metadata(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    save_tiny_tokenizer(tmp_path, control_tokens=("<|im_end|>", "<|other|>"))
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path)
    assert GenerationConfig.from_folder(path).eos_token_ids == (2, 318)
    assert read_generation_fields(path).taken == {}


MEASURE = """
import resource, sys
from pathlib import Path
import torch
from infer_models import load_model
from infer_models.weight_allocation import weight_bytes

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

device = torch.device("cpu")
load_model(Path(sys.argv[2]), device=device, dtype=torch.float32)
before = peak_bytes()
model = load_model(Path(sys.argv[1]), device=device, dtype=torch.float32)
print(peak_bytes() - before - weight_bytes(model, device=device), weight_bytes(model, device=device))
"""


@pytest.mark.parametrize("kind", ["Q8_0", "IQ3_S"])
def test_loading_takes_little_more_memory_than_the_weights(kind: str, tmp_path: Path) -> None:
    """The embedding's 33 million numbers, of which all at once would be 132 MB in fp32, are read some at a time."""
    small, large = tmp_path / "small", tmp_path / "large"
    save_tiny("llama", small, **WIDE)
    save_tiny("llama", large, **WIDE, vocab_size=1 << 17, num_hidden_layers=1, tie_word_embeddings=True)
    for folder in (small, large):
        save_gguf(folder, folder / "model.gguf", kind_of=lambda name: kind if name == "token_embd.weight" else "Q4_K")
    run = [sys.executable, "-c", MEASURE, str(large / "model.gguf"), str(small / "model.gguf")]
    output = subprocess.run(run, check=True, timeout=120, capture_output=True, text=True).stdout
    extra, weights = map(int, output.split())
    assert weights > 33 << 20
    assert extra < 64 << 20

"""gpt-oss in GGUF files: the checkpoint that a file was made of, number for number, and files that are not whole."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import gguf
from infer_kernels import QuantizedWeight
from infer_models import CausalLM, CausalView, CheckpointError, load_model
from infer_models.checkpoint import read_checkpoint_config
from infer_models.config.generation_config import GenerationConfig
from infer_models.layers import own_weights
from infer_models.quantization.gguf.block_format import BlockScheme
from infer_models.tensor_parallel import Shard
from infer_models.text import Tokenizer
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import YARN_SCALING, save_chat_style, save_tiny
from infer_proofs.models.gguf_files import save_gguf

CPU = torch.device("cpu")
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
"""Sizes of rows that are whole blocks of every type."""


def published(name: str) -> str | None:
    """Return the types of the first files: experts in MXFP4, the rest in Q8_0."""
    within = name.split(".")[-2]
    return "MXFP4" if within.endswith("_exps") else None if within == "ffn_gate_inp" else "Q8_0"


def requantized(name: str) -> str | None:
    """Return types as `llama-quantize` mixes them, experts too."""
    within = name.split(".")[-2]
    kinds = {"token_embd": "Q8_0", "output": "Q8_0", "ffn_gate_inp": None, "ffn_down_exps": "Q8_0", "attn_v": "Q5_1"}
    return kinds.get(within, "Q4_K")


KINDS: dict[str, Callable[[str], str | None]] = {
    "plain": lambda _: None,
    "BF16": lambda name: None if "ffn_gate_inp" in name else "BF16",
    "published": published,
    "requantized": requantized,
}


def save_oss(folder: Path, *, kind_of: Callable[[str], str | None] = published, **how: Any) -> tuple[Any, Path]:
    """Save a tiny checkpoint and the file made of it; return the `transformers` model of the file's numbers, and it."""
    metadata = how.pop("metadata", None)
    save_tiny("gpt_oss", folder, **{**WIDE, **how})
    path = folder / "model.gguf"
    save_gguf(folder, path, kind_of=kind_of, metadata=metadata)
    twin: Any = transformers.GptOssForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return twin.eval(), path


def loaded(path: Path, **how: Any) -> CausalLM:
    return load_model(path, device=CPU, dtype=torch.float32, **how)


def numbers_of(model: CausalLM) -> dict[str, torch.Tensor]:
    return {
        f"{path}.{name}": weight.dequantize() if isinstance(weight, QuantizedWeight) else weight.detach()
        for path, module in model.named_modules()
        for name, weight in own_weights(module)
    }


def assert_same_models(ours: CausalLM, theirs: CausalLM) -> None:
    expected = numbers_of(theirs) | dict(theirs.named_buffers())
    found = numbers_of(ours) | dict(ours.named_buffers())
    assert found.keys() == expected.keys()
    for name, numbers in found.items():
        assert torch.equal(numbers, expected[name]), name


@torch.inference_mode()
def logits_of(model: CausalLM, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(ids, torch.arange(len(ids)), CausalView())
    return logits


@pytest.mark.covers("gguf/families")
@pytest.mark.parametrize("kinds", KINDS)
def test_a_file_is_the_checkpoint_that_it_was_made_of(kinds: str, tmp_path: Path) -> None:
    twin, path = save_oss(tmp_path, kind_of=KINDS[kinds])
    ours, theirs = read_checkpoint_config(path), read_checkpoint_config(tmp_path)
    for field in ours.__slots__:
        if field not in ("dtype", "quantization", "has_parts_apart"):
            assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.dtype == ("float32" if kinds == "plain" else "bfloat16")
    assert_same_models(loaded(path), loaded(tmp_path))
    model = loaded(path, quantization="none")
    ids = torch.arange(40) * 7 % 320
    with torch.inference_mode():
        expected = twin(ids[None]).logits[0]
    torch.testing.assert_close(logits_of(model, ids), expected, rtol=0, atol=1e-4)
    how: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": []}
    answer = twin.generate(ids[None], attention_mask=torch.ones_like(ids)[None], **how)[0]
    for _ in range(8):
        ids = torch.cat([ids, logits_of(model, ids)[-1:].argmax(-1)])
    assert ids.tolist() == answer.tolist()


@needs_cpu_kernels
def test_experts_in_mxfp4_take_four_bits_in_memory_too(tmp_path: Path) -> None:
    twin, path = save_oss(tmp_path, kind_of=lambda name: "MXFP4" if "_exps" in name else None)
    model = loaded(path)
    for layer in range(3):
        experts: Any = model.get_submodule(f"model.layers.{layer}.mlp.experts")
        assert {experts.gate_up_proj.encoding, experts.down_proj.encoding} == {"mxfp4"}
    ids = torch.arange(40) * 7 % 320
    with torch.inference_mode():
        expected = twin(ids[None]).logits[0]
    model.prepack()
    error = (logits_of(model, ids) - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error <= 3.5e-2  # inputs of products have eight bits


@pytest.mark.parametrize(
    ("gates", "ups", "downs"), [("MXFP4", "Q8_0", "MXFP4"), ("MXFP4", "MXFP4", "Q4_K"), ("Q4_0", "Q4_0", "MXFP4")]
)
def test_experts_of_mixed_types_keep_their_numbers(gates: str, ups: str, downs: str, tmp_path: Path) -> None:
    kinds = {"ffn_gate_exps": gates, "ffn_up_exps": ups, "ffn_down_exps": downs}
    _, path = save_oss(tmp_path, kind_of=lambda name: kinds.get(name.split(".")[-2]))
    assert_same_models(loaded(path), loaded(tmp_path))


@pytest.mark.covers("gguf/types")
def test_every_block_but_those_of_no_number_is_what_it_is_worth_to_gguf() -> None:
    blocks = np.random.default_rng(5).integers(0, 256, (2, 255, 17), dtype=np.uint8)
    blocks[..., 0] = np.arange(255)
    rows = torch.from_numpy(blocks.reshape(2, -1))
    with np.errstate(over="ignore"):  # of exponent 254, in both
        expected = torch.from_numpy(gguf.quants.dequantize(rows.numpy(), gguf.GGMLQuantizationType.MXFP4))
    gates, ups = "mlp.experts.0.gate_proj", "mlp.experts.0.up_proj"
    stored = BlockScheme(kinds={gates: "MXFP4", ups: "MXFP4"}).format_of(ups)
    assert stored is not None
    found = stored.decode(ups, (2, 255 * 32), {f"{ups}.weight": rows})
    assert isinstance(found, QuantizedWeight)
    assert found.encoding == "mxfp4"
    assert torch.equal(found.dequantize(), expected)
    rows[1, 17 * 9] = 255
    with pytest.raises(
        CheckpointError, match=r"`mlp\.experts\.0\.up_proj\.weight` has a scale that is NaN or infinite"
    ):
        stored.decode(ups, (2, 255 * 32), {f"{ups}.weight": rows})


def test_two_ranks_hold_their_parts(tmp_path: Path) -> None:
    # 96 inner elements in blocks of 32: the second rank's begin amid one
    _, path = save_oss(tmp_path, intermediate_size=96)
    for rank in (0, 1):
        shard = Shard(rank=rank, size=2)
        assert_same_models(loaded(path, shard=shard), loaded(tmp_path, shard=shard))


@needs_cpu_kernels
def test_experts_of_qwen_in_mxfp4_stay_so(tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path, hidden_size=256, moe_intermediate_size=64)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=lambda name: "MXFP4" if "_exps" in name else None)
    ours = loaded(path)
    kept = [each for each, _ in ours.stored_by_parameter() if isinstance(each, QuantizedWeight)]
    assert {each.encoding for each in kept} == {"mxfp4"}
    assert_same_models(ours, loaded(tmp_path))


@pytest.mark.parametrize(
    ("metadata", "windows"),
    [
        ({}, (8, None, 8)),
        ({"attention.sliding_window_pattern": 3}, (8, 8, None)),
        ({"attention.sliding_window_pattern": 0}, (8, 8, 8)),
        ({"attention.sliding_window_pattern": [False, True, False]}, (None, 8, None)),
    ],
)
def test_layers_slide_as_the_metadata_says(metadata: dict[str, Any], windows: tuple[Any, ...], tmp_path: Path) -> None:
    _, path = save_oss(tmp_path, metadata=metadata)
    assert read_checkpoint_config(path).windows == windows


def test_positions_are_scaled_as_the_metadata_says(tmp_path: Path) -> None:
    betas = {"beta_fast": 16.0, "beta_slow": 2.0}
    _, path = save_oss(
        tmp_path,
        rope_parameters=YARN_SCALING | betas | {"truncate": False},
        metadata={f"rope.scaling.yarn_{name}": value for name, value in betas.items()},
    )
    assert read_checkpoint_config(path).ropes == read_checkpoint_config(tmp_path).ropes
    names = ("type", "factor", "original_context_length")
    save_gguf(tmp_path, path, metadata={f"rope.scaling.{name}": None for name in names})
    (rope, *_) = read_checkpoint_config(path).ropes
    assert rope is not None
    assert type(rope.scaling).__name__ == "NoScaling"


def test_a_file_of_half_precision_is_computed_in_bf16(tmp_path: Path) -> None:
    # microsoft/onnxruntime-genai#2444: activations leave fp16's range in the last layers, and every answer is `!!!`
    _, path = save_oss(tmp_path, kind_of=lambda _: "F16")
    assert read_checkpoint_config(path).dtype == "bfloat16"
    assert_same_models(loaded(path), loaded(tmp_path))


@pytest.mark.covers("gguf/tokenizers")
def test_a_chat_is_written_and_read_as_that_of_the_checkpoint(tmp_path: Path) -> None:
    save_chat_style("gpt_oss", tmp_path)
    save_oss(tmp_path)
    ours, theirs = (Tokenizer.from_folder(each) for each in (tmp_path / "model.gguf", tmp_path))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    prompt = ours.render_chat(messages)
    assert prompt == theirs.render_chat(messages)
    assert ours.encode(prompt, add_special_tokens=False) == theirs.encode(prompt, add_special_tokens=False)
    ends = GenerationConfig.from_folder(tmp_path / "model.gguf").eos_token_ids
    assert [ours.decode([each], skip_special_tokens=False) for each in ends] == ["<eos>", "<|return|>"]


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, torch.Tensor | None], None]:
    """Make the writer leave a tensor out, or put another one in its place."""

    def change(name: str, numbers: torch.Tensor | None) -> None:
        add = gguf.GGUFWriter.add_tensor

        def add_changed(writer: Any, each: str, data: Any, **how: Any) -> None:
            if each != name:
                add(writer, each, data, **how)
            elif numbers is not None:
                add(writer, each, numbers.numpy())

        monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_changed)

    return change


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("blk.1.attn_sinks.weight", None, "`model.layers.1.self_attn.sinks` is missing"),
        ("blk.1.attn_sinks.weight", torch.ones(3), r"`blk.1.attn_sinks.weight` has shape [3] but .* makes it [4]"),
        ("blk.0.attn_k.bias", None, "`model.layers.0.self_attn.k_proj.bias` is missing"),
        ("blk.2.ffn_gate_exps.bias", None, "`model.layers.2.mlp.experts.gate_proj_bias` is missing"),
        ("blk.2.ffn_up_exps.bias", torch.ones(6, 3), r"`blk.2.ffn_up_exps.bias` has shape [6, 3] but"),
        ("blk.0.ffn_gate_inp.bias", None, "`model.layers.0.mlp.router.bias` is missing"),
        ("blk.1.ffn_up_exps.weight", None, "tensors `model.layers.1.mlp.experts.0.up_proj.weight`"),
        (
            "blk.1.ffn_up_exps.weight",
            torch.ones(5, 256, 256),
            "tensor `blk.1.ffn_up_exps.weight` holds 5 experts, but `gpt-oss.expert_count` is 6",
        ),
        ("blk.1.ffn_down_exps.weight", torch.ones(6, 256, 64), r"`blk.1.ffn_down_exps.weight[0]` has shape [256, 64]"),
        ("blk.1.ffn_down_exps.weight", torch.ones(6 * 256, 256), "are missing"),
    ],
)
def test_a_file_that_is_not_whole_is_one_line(
    name: str, numbers: torch.Tensor | None, message: str, changed: Callable[..., None], tmp_path: Path
) -> None:
    changed(name, numbers)
    save_tiny("gpt_oss", tmp_path, **WIDE)
    save_gguf(tmp_path, tmp_path / "model.gguf")
    with pytest.raises(CheckpointError) as caught:
        loaded(tmp_path / "model.gguf")
    pattern = re.escape(message).replace(re.escape(".*"), ".*")
    assert re.search(pattern, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention.sliding_window": None}, "the metadata has no `gpt-oss.attention.sliding_window`"),
        ({"expert_count": None}, "the metadata has no `gpt-oss.expert_count`"),
        ({"expert_used_count": 7}, "`num_experts_per_tok` is 7; it must be at most 6"),
        ({"attention.sliding_window_pattern": [True, False]}, "`layer_types`"),
        ({"rope.scaling.type": "su"}, "`gpt-oss.rope.scaling.type` is 'su'; it must be"),
    ],
)
def test_metadata_that_does_not_fit_is_one_line(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_tiny("gpt_oss", tmp_path)
    save_gguf(tmp_path, tmp_path / "model.gguf", metadata=metadata)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint_config(tmp_path / "model.gguf")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_ollama_wrote_says_which_would_be_read(tmp_path: Path) -> None:
    # ollama/ollama#11816, ggml-org/llama.cpp#15597: other names and an order of its own
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gptoss")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"'gptoss'; it must be another one: .*such as those of ggml-org/gpt-oss"):
        read_checkpoint_config(tmp_path / "model.gguf")

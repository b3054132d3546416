"""Folders of weights as people bring them: files and names that `transformers` reads, tensors that change nothing."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from infer_models import CausalView, CheckpointError, load_model
from infer_proofs.models import save_tiny

IDS = torch.tensor([5, 9, 200, 17, 3, 3, 42, 311, 8, 77, 1, 60])
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@torch.no_grad()
def logits_of(folder: Path, **how: Any) -> Tensor:
    model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32, **how)
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


@torch.no_grad()
def require_equal(folder: Path, twin: Any) -> None:
    torch.testing.assert_close(logits_of(folder), twin(IDS[None]).logits[0], rtol=0, atol=1e-4)


def refusal_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        logits_of(folder)
    return str(caught.value)


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / WEIGHTS
    stored = {name: tensor.contiguous().clone() for name, tensor in edit(load_file(path)).items()}
    save_file(stored, path, metadata={"format": "pt"})


def add_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    edit_tensors(folder, lambda stored: stored | tensors)


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


# Files


@pytest.mark.covers("models/safetensors-and-shards")
def test_shards_are_read_without_their_index(tmp_path: Path) -> None:
    twin = save_tiny("llama", tmp_path, max_shard_size="40KB")
    (tmp_path / INDEX).unlink()
    require_equal(tmp_path, twin)


def test_a_missing_shard_is_named_without_an_index(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, max_shard_size="100KB")
    (tmp_path / INDEX).unlink()
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"{shard.name} is missing in the folder" in refusal_of(tmp_path)


def test_two_sets_of_shards_are_not_guessed_between(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, max_shard_size="100KB")
    (tmp_path / INDEX).unlink()
    save_tiny("llama", tmp_path / "other", max_shard_size="40KB", seed=1)
    for shard in (tmp_path / "other").glob("*.safetensors"):
        shard.rename(tmp_path / shard.name)
    assert "several sets of shards" in refusal_of(tmp_path)


def test_an_index_of_shards_that_were_replaced_is_passed_over(tmp_path: Path, caplog: Any) -> None:
    # Neph0s/CoSER#3: the index speaks of 30 shards, and 15 others are the whole model.
    twin = save_tiny("llama", tmp_path, max_shard_size="100KB")
    text = (tmp_path / INDEX).read_text()
    total = len(list(tmp_path.glob("*.safetensors")))
    (tmp_path / INDEX).write_text(text.replace(f"-of-{total:05}", "-of-00077"))
    require_equal(tmp_path, twin)
    assert "names shards that are not there" in caplog.text


@pytest.mark.parametrize("stray", [WEIGHTS, "consolidated.safetensors", "model-overlay.safetensors"])
def test_an_index_chooses_among_files(tmp_path: Path, stray: str) -> None:
    # Blaizzy/mlx-vlm#1464: another model's `model.safetensors` lies beside the shards.
    twin = save_tiny("llama", tmp_path, max_shard_size="100KB")
    save_tiny("llama", tmp_path / "other", seed=1)
    (tmp_path / "other" / WEIGHTS).rename(tmp_path / stray)
    require_equal(tmp_path, twin)


def test_an_index_chooses_among_copies_of_a_tensor(tmp_path: Path) -> None:
    # JustVugg/colibri#1479, vllm-project/vllm#54230: shards keep tensors that an overlay supersedes.
    twin = save_tiny("llama", tmp_path, max_shard_size="100KB")
    index = json.loads((tmp_path / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    first = load_file(tmp_path / shards[0])
    old = {name: torch.ones_like(tensor) for name, tensor in first.items()}
    unknown = {"model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(3, 3)}
    for shard in shards[1:]:
        stored = load_file(tmp_path / shard)
        save_file(old | stored | unknown, tmp_path / shard)
    require_equal(tmp_path, twin)


def test_an_index_of_other_names_still_names_the_files(tmp_path: Path) -> None:
    twin = save_tiny("llama", tmp_path, max_shard_size="100KB")
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    weight_map = {f"language_model.{name}": shard for name, shard in index.items()}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    require_equal(tmp_path, twin)


def test_equal_copies_need_no_index(tmp_path: Path) -> None:
    twin = save_tiny("llama", tmp_path, max_shard_size="100KB")
    (tmp_path / INDEX).unlink()
    first, second, *_ = sorted(tmp_path.glob("*.safetensors"))
    save_file(load_file(first) | load_file(second), second)
    require_equal(tmp_path, twin)


def test_weights_in_a_makers_own_layout_beside_ours_are_left_unread(tmp_path: Path) -> None:
    twin = save_tiny("mistral", tmp_path)
    save_file({"layers.0.attention.wq.weight": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "consolidated.00.pth").write_bytes(b"\x80\x02")
    (tmp_path / "params.json").write_text("{}")
    require_equal(tmp_path, twin)


@pytest.mark.parametrize("name", ["model.fp16.safetensors", "gptq_model-4bit-128g.safetensors", "weights.safetensors"])
def test_one_file_of_another_name_is_the_checkpoint(tmp_path: Path, name: str) -> None:
    twin = save_tiny("llama", tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / name)
    require_equal(tmp_path, twin)


def test_variants_are_not_guessed_between(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    for variant in ("fp16", "fp32"):
        (tmp_path / f"model.{variant}.safetensors").write_bytes((tmp_path / WEIGHTS).read_bytes())
    (tmp_path / WEIGHTS).unlink()
    assert "several variants" in refusal_of(tmp_path)


# Names


@pytest.mark.parametrize(
    ("decoder", "head"),
    [
        ("", "lm_head."),  # ggml-org/llama.cpp#14459
        ("model.model.", "lm_head."),  # ContextualAI/gritlm#43
        ("base_model.model.model.", "base_model.model.lm_head."),
        ("language_model.model.", "language_model.lm_head."),
        ("model.language_model.", "lm_head."),
        ("transformer.", "lm_head."),
        ("module.model.", "module.lm_head."),
        ("_orig_mod.model.", "_orig_mod.lm_head."),  # huggingface/transformers#28041
        ("_fsdp_wrapped_module.model.", "_fsdp_wrapped_module.lm_head."),
        ("pretrained_model.model.", "pretrained_model.lm_head."),
    ],
)
@pytest.mark.parametrize("is_tied", [True, False])
def test_names_may_have_more_or_less_in_front(tmp_path: Path, decoder: str, head: str, is_tied: bool) -> None:  # noqa: FBT001 - a parameter
    twin = save_tiny("qwen3", tmp_path, tie_word_embeddings=is_tied)

    def renamed(name: str) -> str:
        return name.replace("lm_head.", head) if name.startswith("lm_head.") else decoder + name.removeprefix("model.")

    edit_tensors(tmp_path, lambda stored: {renamed(name): tensor for name, tensor in stored.items()})
    require_equal(tmp_path, twin)


def test_marks_of_training_inside_names_are_passed_over(tmp_path: Path) -> None:
    twin = save_tiny("llama", tmp_path)
    marks = {
        "layers.0.": "layers.0._fsdp_wrapped_module.",
        "layers.1.": "layers.1._checkpoint_wrapped_module.",
        "q_proj.": "q_proj.base_layer.",
    }

    def marked(name: str) -> str:
        for plain, mark in marks.items():
            name = name.replace(plain, mark)
        return name

    edit_tensors(tmp_path, lambda stored: {marked(name): tensor for name, tensor in stored.items()})
    require_equal(tmp_path, twin)


def test_a_text_model_that_was_saved_with_its_encoders_is_read(tmp_path: Path) -> None:
    twin = save_tiny("gemma3", tmp_path)
    encoders = {f"{place}.layers.0.embed_tokens.weight": torch.zeros(2, 2) for place in ("vision_tower", "audio_tower")}
    edit_tensors(tmp_path, lambda stored: {f"language_model.{name}": each for name, each in stored.items()} | encoders)
    require_equal(tmp_path, twin)


# Parts in one tensor


def stacked(stored: dict[str, Tensor], *, end: str = "") -> dict[str, Tensor]:
    """Return the tensors with the experts of each layer in two of them."""
    out: dict[str, Tensor] = {}
    experts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in stored.items():
        if ".experts." in name:
            place, _, rest = name.partition(".experts.")
            experts.setdefault(place, {})[rest] = tensor
        else:
            out[name] = tensor
    for place, parts in experts.items():
        numbers = range(len(parts) // 3)
        both = [torch.cat([parts[f"{i}.gate_proj.weight"], parts[f"{i}.up_proj.weight"]]) for i in numbers]
        out[f"{place}.experts.gate_up_proj{end}"] = torch.stack(both)
        out[f"{place}.experts.down_proj{end}"] = torch.stack([parts[f"{i}.down_proj.weight"] for i in numbers])
    return out


@pytest.mark.parametrize("end", ["", ".weight"])
def test_experts_of_a_layer_may_be_one_tensor(tmp_path: Path, end: str) -> None:
    # vllm-project/vllm#42577: `transformers` 5 holds them so.
    twin = save_tiny("qwen3_moe", tmp_path)
    expected = logits_of(tmp_path)
    edit_tensors(tmp_path, lambda stored: stacked(stored, end=end))
    assert torch.equal(logits_of(tmp_path), expected)
    require_equal(tmp_path, twin)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "gemma3_wrapped", "llava", "mistral3"])
def test_what_transformers_5_saves_as_it_holds_it_is_read(tmp_path: Path, family: str) -> None:
    twin = save_tiny(family, tmp_path / "original")
    twin.save_pretrained(tmp_path / "own", save_original_format=False)
    require_equal(tmp_path / "own", twin)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gemma3_wrapped"])
def test_a_model_that_was_saved_without_its_head_is_read_where_it_is_tied(tmp_path: Path, family: str) -> None:
    twin = save_tiny(family, tmp_path, tie_word_embeddings=True)
    (tmp_path / WEIGHTS).unlink()
    config = (tmp_path / "config.json").read_text()
    twin.model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(config)
    require_equal(tmp_path, twin)


def test_a_stack_of_another_shape_is_named(tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    edit_tensors(tmp_path, lambda stored: {each: t.mT if each == name else t for each, t in stacked(stored).items()})
    assert f"tensor `{name}[0]" in refusal_of(tmp_path)


def test_fused_products_are_taken_apart(tmp_path: Path) -> None:
    twin = save_tiny("qwen2", tmp_path)
    groups = {"self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up_proj": ("gate_proj", "up_proj")}

    def fused(stored: dict[str, Tensor]) -> dict[str, Tensor]:
        layers = {name.split(".")[2] for name in stored if ".layers." in name}
        for layer in layers:
            for whole, parts in groups.items():
                place = f"model.layers.{layer}.{whole.split('.')[0]}"
                for leaf in ("weight", "bias"):
                    tensors = [stored.pop(f"{place}.{part}.{leaf}", None) for part in parts]
                    present = [each for each in tensors if each is not None]
                    if present:
                        stored[f"model.layers.{layer}.{whole}.{leaf}"] = torch.cat(present)
        return stored

    edit_tensors(tmp_path, fused)
    assert "model.layers.0.self_attn.qkv_proj.bias" in load_file(tmp_path / WEIGHTS)
    require_equal(tmp_path, twin)


def test_a_file_may_mix_dtypes(tmp_path: Path) -> None:
    twin = save_tiny("llama", tmp_path)
    halves = [torch.float16, torch.bfloat16, torch.float32]
    mixed = {name: t.to(halves[i % 3]) for i, (name, t) in enumerate(sorted(load_file(tmp_path / WEIGHTS).items()))}
    save_file(mixed, tmp_path / WEIGHTS)
    twin.load_state_dict({name: tensor.float() for name, tensor in mixed.items()})
    require_equal(tmp_path, twin)


# Tensors without a place

ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
SQUARE = torch.ones(4, 4)
HARMLESS = {
    "a rotary table": {f"{ATTENTION}.rotary_emb.inv_freq": torch.ones(8)},
    "a table of all layers": {"model.rotary_emb.inv_freq": torch.ones(8)},
    "tables of cosines": {f"{ATTENTION}.rotary_emb.cos_cached": SQUARE, f"{ATTENTION}.rotary_emb.sin_cached": SQUARE},
    "masks": {f"{ATTENTION}.masked_bias": torch.tensor(-1e4), "model.layers.0.attn.bias": SQUARE.bool()},
    "positions": {"model.position_ids": torch.arange(8)},
    "biases of zeros": {f"{MLP}.up_proj.bias": torch.zeros(96), "lm_head.bias": torch.zeros(320)},
    "scales of a cache": {f"{ATTENTION}.{side}_scale": torch.tensor(1.0) for side in "kv"},
    "a static scale of inputs": {f"{MLP}.up_proj.input_scale": torch.tensor(0.5)},
    "scales of one": {f"{MLP}.up_proj.weight_scale": torch.ones(96, 1)},
    "a state of a library": {f"{MLP}.up_proj._extra_state": torch.zeros(3, dtype=torch.uint8)},
    "layers that predict more": {"mtp.layers.0.mlp.up_proj.weight": SQUARE, "mtp.norm.weight": torch.ones(4)},
    "encoders": {"visual.blocks.0.attn.qkv.weight": SQUARE, "multi_modal_projector.linear_1.weight": SQUARE},
    "a quantized encoder": {"vision_tower.fc.qweight": SQUARE.int(), "vision_tower.fc.scales": SQUARE},
    "a head of a reward model": {"score.weight": torch.ones(1, 64)},
    "a head of training": {"v_head.summary.weight": torch.ones(1, 64), "v_head.summary.bias": torch.ones(1)},
    "an adapter of zeros": {f"{MLP}.up_proj.lora_A.weight": SQUARE, f"{MLP}.up_proj.lora_B.weight": 0 * SQUARE},
}


@pytest.mark.covers("models/spare-tensors")
@pytest.mark.parametrize("what", HARMLESS)
def test_tensors_that_change_nothing_are_passed_over(tmp_path: Path, what: str) -> None:
    twin = save_tiny("llama", tmp_path)
    add_tensors(tmp_path, HARMLESS[what])
    require_equal(tmp_path, twin)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{MLP}.up_proj.bias": torch.full((96,), 1e-6)}, "only biases of zeros are left out"),
        ({f"{MLP}.other.weight": torch.zeros(4)}, "is unexpected: the model has no such weight."),
        ({f"{MLP}.up_proj.lora_B.weight": torch.ones(96, 2)}, "an adapter that was not merged"),
        ({f"{MLP}.up_proj.weight_scale": torch.full((96, 1), 0.5)}, "the weight beside it is plain"),
    ],
)
def test_tensors_that_would_change_answers_are_named(tmp_path: Path, tensors: dict[str, Tensor], message: str) -> None:
    save_tiny("llama", tmp_path)
    add_tensors(tmp_path, tensors)
    (name,) = tensors
    refusal = refusal_of(tmp_path)
    assert f"tensor `{name}` is unexpected" in refusal
    assert message in refusal


def test_layers_beyond_those_of_the_configuration_are_left_unread_with_a_warning(tmp_path: Path, caplog: Any) -> None:
    # vllm-project/vllm#30433
    save_tiny("llama", tmp_path)
    edit_config(tmp_path, num_hidden_layers=2)
    twin: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    require_equal(tmp_path, twin.eval())
    assert "`num_hidden_layers` is 2" in caplog.text


def test_a_layer_that_predicts_several_tokens_needs_no_warning(tmp_path: Path, caplog: Any) -> None:
    twin = save_tiny("llama", tmp_path)
    layer = f"model.layers.{twin.config.num_hidden_layers}"
    add_tensors(tmp_path, {f"{layer}.eh_proj.weight": SQUARE, f"{layer}.mlp.up_proj.weight": SQUARE})
    with caplog.at_level(logging.INFO, "infer_models"):
        require_equal(tmp_path, twin)
    assert [record.levelname for record in caplog.records if record.name == "infer_models"] == ["INFO"]
    assert "2 tensors of layers that predict several tokens at once are left unread" in caplog.text

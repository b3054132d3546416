"""Checkpoints of all families: in shards, saved again, inside multimodal ones, with experts in MXFP4."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from infer_models import CausalLM, CausalView, CheckpointError, GenerationConfig, ModelConfig, load_model, save_model
from infer_models.config.registry import known_families
from infer_models.quantization.mxfp4 import read_mxfp4
from infer_models.tensor_parallel import Shard
from infer_models.weight_allocation import Quantization
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import TINY_FAMILIES, save_tiny
from infer_proofs.models.ranks import run_ranks

CPU = torch.device("cpu")
IDS = torch.tensor([5, 9, 200, 17, 3, 3, 42, 311, 8, 77, 1, 60])
WRAPPED = [family for family, tiny in TINY_FAMILIES.items() if tiny.wrapper is not None]
PLAIN = [family for family in TINY_FAMILIES if family not in WRAPPED]


def load(folder: Path, shard: Shard | None = None, *, quantization: Quantization = "auto") -> CausalLM:
    return load_model(folder, device=CPU, dtype=torch.float32, shard=shard, quantization=quantization)


@torch.no_grad()
def logits_of(model: CausalLM) -> Tensor:
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    edit(fields)
    path.write_text(json.dumps(fields))


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_shards_load_like_one_file(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path / "one")
    save_tiny(family, tmp_path / "shards", max_shard_size="60KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    assert torch.equal(logits_of(load(tmp_path / "one")), logits_of(load(tmp_path / "shards")))


@pytest.mark.parametrize("family", PLAIN)
def test_transformers_reads_what_is_saved(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    save_model(model, tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        rtol = 1e-6 if name.endswith("router.scale") else 0  # parameters are multiples of it
        torch.testing.assert_close(ours[name], tensor, rtol=rtol, atol=0, msg=name)
    shutil.copy(tmp_path / "theirs" / "config.json", tmp_path / "ours")
    twin: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        torch.testing.assert_close(logits_of(model), twin(IDS[None]).logits[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_parameters_are_counted_as_transformers_counts_them(tmp_path: Path, family: str) -> None:
    twin = save_tiny(family, tmp_path)
    text = getattr(twin.model, "language_model", twin.model)
    scalars = sum(name.endswith("layer_scalar") for name, _ in text.named_buffers())  # ours are parameters
    expected = scalars + text.num_parameters() + (0 if twin.config.tie_word_embeddings else twin.lm_head.weight.numel())
    assert load(tmp_path).num_parameters == expected


def in_older_order(name: str) -> str:
    """Return the name that `transformers` 4 gives a tensor of a wrapper; some wrappers are saved with others."""
    if name.startswith("model.language_model."):
        return name.replace("model.language_model.", "language_model.model.", 1)
    return f"language_model.{name}" if name.startswith("lm_head.") else name.removeprefix("model.")


@pytest.mark.parametrize("family", WRAPPED)
def test_both_orders_of_prefixes_are_read(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path, tie_word_embeddings=False)
    expected = logits_of(load(tmp_path))
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    renamed = {in_other_order(name): tensor for name, tensor in stored.items()}
    inner, outer = {"language_model.model.norm.weight"}, {"model.language_model.norm.weight", "lm_head.weight"}
    assert (inner < stored.keys() and outer < renamed.keys()) or (outer < stored.keys() and inner < renamed.keys())
    save_file(renamed, path)
    assert torch.equal(logits_of(load(tmp_path)), expected)


def in_other_order(name: str) -> str:
    """Return the name of a wrapper's tensor with its prefixes in the other order."""
    if name.startswith("language_model."):
        return name.removeprefix("language_model.").replace("model.", "model.language_model.", 1)
    if name.startswith("model.language_model."):
        return "language_model.model." + name.removeprefix("model.language_model.")
    if name == "lm_head.weight":
        return "language_model.lm_head.weight"
    return name.removeprefix("model.") if name.startswith("model.") else f"model.{name}"


@pytest.mark.parametrize("family", WRAPPED)
def test_vision_tensors_are_left_unread_and_others_are_named(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    vision = [name for name in stored if name.startswith(("vision_tower.", "model.vision_tower.", "model.visual."))]
    assert vision
    save_file(stored | {vision[0]: torch.zeros(3, dtype=torch.int8)}, path)
    load(tmp_path)
    save_file(stored | {"other_tower.weight": torch.zeros(3)}, path)
    with pytest.raises(CheckpointError, match=r"tensor `other_tower\.weight` is unexpected"):
        load(tmp_path)
    missing = {"language_model.model.norm.weight", "model.language_model.norm.weight"}
    save_file({name: tensor for name, tensor in stored.items() if name not in missing}, path)
    with pytest.raises(CheckpointError, match=r"tensor `model\.norm\.weight` is missing"):
        load(tmp_path)


def test_a_wrapper_without_a_text_model_is_an_error(tmp_path: Path) -> None:
    save_tiny("mistral3", tmp_path)
    edit_config(tmp_path, lambda fields: fields.pop("text_config"))
    with pytest.raises(CheckpointError, match=r"config\.json: `text_config` is None; it must be the configuration of"):
        load(tmp_path)


def test_a_text_model_that_is_not_supported_is_named(tmp_path: Path) -> None:
    save_tiny("mistral3", tmp_path)
    edit_config(tmp_path, lambda fields: fields["text_config"].update(model_type="mamba"))
    with pytest.raises(CheckpointError, match=r"`text_config\.model_type` is 'mamba'; it must be one of .*`llama`"):
        load(tmp_path)


@pytest.mark.covers("models/multimodal-wrappers", "models/config-json")
@pytest.mark.parametrize("model_type", [name for name, family in known_families().items() if family.defaults])
def test_what_a_file_leaves_out_is_as_transformers_has_it(tmp_path: Path, model_type: str) -> None:
    defaults = AutoConfig.for_model(model_type)
    family = known_families()[model_type]
    for name, value in family.defaults.items():
        assert getattr(defaults, name) == value, name
    wrapper = next(iter(family.wrappers), None)
    whole = {"model_type": model_type, "torch_dtype": "bfloat16"}
    wrapped = {"model_type": wrapper, "text_config": {"model_type": model_type}, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(whole if wrapper is None else wrapped))
    config = ModelConfig.from_folder(tmp_path)
    assert (config.model_type, config.wrapper, config.dtype) == (model_type, wrapper, "bfloat16")
    assert (config.q_heads, config.kv_heads) == (defaults.num_attention_heads, defaults.num_key_value_heads)
    assert config.vocab_size == defaults.vocab_size
    if model_type == "gemma4_text":  # whose layers differ
        assert config.head_dim == defaults.per_layer_config[0].head_dim
        assert [each.head_dim for each in config.layer_heads] == [each.head_dim for each in defaults.per_layer_config]
    else:
        assert config.head_dim == (getattr(defaults, "head_dim", None) or defaults.hidden_size // config.q_heads)
    if config.moe is not None and model_type not in ("gpt_oss", "granitemoehybrid"):
        assert (config.moe.num_experts, config.moe.experts_per_token) == (
            getattr(defaults, "num_experts", 128),
            defaults.num_experts_per_tok,
        )
        inner = "intermediate_size" if model_type == "mixtral" else "moe_intermediate_size"
        assert config.moe.intermediate_size == getattr(defaults, inner)
        assert config.moe.shared_intermediate_size == getattr(defaults, "shared_expert_intermediate_size", None)
    assert config.norm_eps == (defaults.norm_eps if model_type == "lfm2" else defaults.rms_norm_eps)
    assert config.tie_word_embeddings == defaults.tie_word_embeddings


@pytest.mark.covers("models/multimodal-wrappers")
def test_gemma_as_the_hub_has_it_is_read(tmp_path: Path) -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    fields = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "eos_token_id": [1, 106]}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"torch_dtype": "bfloat16"}))
    config = ModelConfig.from_folder(tmp_path)
    assert (config.vocab_size, config.hidden_size, config.q_heads, config.kv_heads) == (262208, 2560, 8, 4)
    assert (config.head_dim, config.max_position_embeddings, config.tie_word_embeddings) == (256, 131072, True)
    assert config.windows[:7] == (1024, 1024, 1024, 1024, 1024, None, 1024)


def test_fields_beside_the_text_model_are_those_of_the_whole(tmp_path: Path) -> None:
    save_tiny("mistral3", tmp_path, dtype=torch.bfloat16)
    assert ModelConfig.from_folder(tmp_path).dtype == "bfloat16"
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert GenerationConfig.from_folder(tmp_path).eos_token_ids == (2,)
    edit_config(tmp_path, lambda fields: fields.update(quantization_config={"quant_method": "hqq"}))
    quantization = ModelConfig.from_folder(tmp_path).quantization
    assert quantization is not None
    assert quantization.method == "hqq"


def test_long_and_short_sequences_have_their_own_frequencies_of_longrope(tmp_path: Path) -> None:
    twin = save_tiny("phi3", tmp_path, original_max_position_embeddings=32)  # where the first training ended
    ids = torch.randint(3, 320, (40,), generator=torch.Generator().manual_seed(0))
    for max_seq_len, length in ((32, 32), (33, 33), (33, 20), (None, 40), (None, 32)):
        model = load_model(tmp_path, device=CPU, dtype=torch.float32, max_seq_len=max_seq_len)
        assert model.short_length == (None if max_seq_len == 32 else 32)
        with torch.no_grad():
            logits = model(ids[:length], model.first_position(length) + torch.arange(length), CausalView())
            torch.testing.assert_close(logits, twin(ids[None, :length]).logits[0], rtol=0, atol=1e-4)


def test_queries_do_not_grow_where_no_position_is_reached_that_makes_them(tmp_path: Path) -> None:
    save_tiny("ministral3", tmp_path)  # they grow every 32 positions
    short, long = (
        load_model(tmp_path, device=CPU, dtype=torch.float32, max_seq_len=max_seq_len) for max_seq_len in (32, 33)
    )
    assert torch.equal(logits_of(short), logits_of(long))
    assert [name for name, _ in short.named_buffers() if "query_scales" in name] == []
    scales = [each for name, each in long.named_buffers(remove_duplicate=False) if "query_scales" in name]
    assert len(scales) == 3
    assert len({each.data_ptr() for each in scales}) == 1


@pytest.mark.covers("models/mxfp4-experts")
def test_mxfp4_is_what_transformers_makes_of_it() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, (3, 6, 2, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 150, (3, 6, 2), dtype=torch.uint8, generator=generator)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    actual = torch.stack([read_mxfp4(*item).dequantize() for item in zip(blocks, scales, strict=True)])
    assert torch.equal(actual, expected)
    every = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    zero_exponents = torch.full((1, 16), 127, dtype=torch.uint8)
    numbers = read_mxfp4(every, zero_exponents).dequantize()
    assert set(numbers.flatten().tolist()) == {s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)}


def save_mxfp4(folder: Path) -> Any:
    """Save a tiny gpt-oss whose experts are quantized; return the twin of what they are worth."""
    twin = save_tiny("gpt_oss", folder)
    path = folder / "model.safetensors"
    stored = load_file(path)
    generator = torch.Generator().manual_seed(3)
    for layer, module in enumerate(twin.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            place = f"model.layers.{layer}.mlp.experts.{name}"
            experts, inputs, outputs = stored.pop(place).shape
            blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
            scales = torch.randint(121, 125, blocks.shape[:-1], dtype=torch.uint8, generator=generator)
            stored |= {f"{place}_blocks": blocks, f"{place}_scales": scales}
            worth = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            getattr(module.mlp.experts, name).data.copy_(worth)
    save_file(stored, path)
    edit_config(folder, lambda fields: fields.update(quantization_config={"quant_method": "mxfp4"}))
    return twin


@torch.inference_mode()
def logits_of_twin(twin: Any) -> Tensor:
    logits: Tensor = twin(IDS[None]).logits[0]
    return logits


def packed(model: CausalLM) -> CausalLM:
    model.prepack()
    return model


def test_experts_in_mxfp4_say_themselves_how_they_are_stored(tmp_path: Path) -> None:
    twin = save_mxfp4(tmp_path)
    edit_config(tmp_path, lambda fields: fields.pop("quantization_config"))
    logits = logits_of(load(tmp_path, quantization="none"))
    torch.testing.assert_close(logits, logits_of_twin(twin), rtol=0, atol=1e-4)


def test_mxfp4_is_read_of_one_family_alone(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"model.layers.0.mlp.experts.up_proj_blocks": torch.zeros(2, dtype=torch.uint8)}, path)
    edit_config(tmp_path, lambda fields: fields.update(quantization_config={"quant_method": "mxfp4"}))
    with pytest.raises(CheckpointError, match="is 'mxfp4'; it must be another one: `mxfp4` is read of `gpt_oss` alone"):
        load(tmp_path)


@pytest.mark.covers("models/mxfp4-experts")
def test_experts_in_mxfp4_are_dequantized_on_every_rank(tmp_path: Path) -> None:
    twin = save_mxfp4(tmp_path)
    model = load(tmp_path, quantization="none")
    torch.testing.assert_close(logits_of(model), logits_of_twin(twin), rtol=0, atol=1e-4)
    assert model.num_parameters == twin.num_parameters()
    experts: Any = model.get_submodule("model.layers.1.mlp.experts")
    for rank in range(2):
        shard = Shard(rank=rank, size=2)
        part: Any = load(tmp_path, shard, quantization="none").get_submodule("model.layers.1.mlp.experts")
        own = slice(48 * rank, 48 * rank + 48)
        gates, ups = experts.gate_up_proj.chunk(2, dim=1)
        assert torch.equal(part.gate_up_proj, torch.cat([gates[:, own], ups[:, own]], dim=1))
        assert torch.equal(part.down_proj, experts.down_proj[:, :, own])
    logits = run_ranks(2, lambda shard: logits_of(load(tmp_path, shard, quantization="none")))[0]
    torch.testing.assert_close(logits, logits_of_twin(twin), rtol=0, atol=1e-4)


@needs_cpu_kernels
def test_experts_in_mxfp4_stay_so_on_every_rank_where_kernels_multiply_by_them(tmp_path: Path) -> None:
    expected = logits_of_twin(save_mxfp4(tmp_path))
    dense: Any = load(tmp_path, quantization="none").get_submodule("model.layers.1.mlp.experts")
    gates, ups = dense.gate_up_proj.chunk(2, dim=1)
    for size, groups in ((1, (32, 32)), (2, (32, 16))):  # the second rank's inner elements start amid a block, at 48
        for rank in range(size):
            part: Any = load(tmp_path, Shard(rank=rank, size=size)).get_submodule("model.layers.1.mlp.experts")
            own = slice(96 // size * rank, 96 // size * (rank + 1))
            assert (part.gate_up_proj.encoding, part.down_proj.encoding) == ("mxfp4", "mxfp4")
            if rank == size - 1:
                assert (part.gate_up_proj.group_size, part.down_proj.group_size) == groups
            assert torch.equal(part.gate_up_proj.dequantize(), torch.cat([gates[:, own], ups[:, own]], dim=1))
            assert torch.equal(part.down_proj.dequantize(), dense.down_proj[:, :, own])
    for logits in (
        logits_of(packed(load(tmp_path))),
        run_ranks(2, lambda shard: logits_of(packed(load(tmp_path, shard))))[0],
    ):
        error = (logits - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        assert error <= 3.5e-2  # inputs of products have eight bits


@pytest.mark.parametrize("quantization", ["auto", "none"])
@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_a_scale_in_mxfp4_that_is_no_number_is_named(tmp_path: Path, name: str, quantization: Quantization) -> None:
    save_mxfp4(tmp_path)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    tensor = f"model.layers.2.mlp.experts.{name}_scales"
    stored[tensor][4, 7, 1] = 255
    save_file(stored, path)
    with pytest.raises(CheckpointError, match=rf"Tensor `{tensor}` has a scale that is no number, in item 4"):
        load(tmp_path, quantization=quantization)


def test_a_model_of_quantized_experts_cannot_be_saved(tmp_path: Path) -> None:
    save_mxfp4(tmp_path)
    with pytest.raises(ValueError, match="A model of a quantized checkpoint cannot be saved"):
        save_model(load(tmp_path), tmp_path / "again")


def test_dummy_weights_of_a_quantized_checkpoint_are_not_quantized(tmp_path: Path) -> None:
    save_mxfp4(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model = load_model(tmp_path, device=CPU, dtype=torch.float32, load_format="dummy")
    assert logits_of(model).isfinite().all()


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("_scales", None, "experts.gate_up_proj_scales` is missing"),
        ("_scales", torch.zeros(6, 192, 3, dtype=torch.uint8), r"has shape \[6, 192, 3\] but .* \[6, 192, 2\]"),
        ("_blocks", torch.zeros(6, 192, 2, 16), "is F32; it must be one of U8"),
        ("", torch.zeros(6, 64, 192), "experts.gate_up_proj` is unexpected"),
    ],
)
def test_damaged_mxfp4_is_named(tmp_path: Path, name: str, tensor: Tensor | None, message: str) -> None:
    save_mxfp4(tmp_path)
    path = tmp_path / "model.safetensors"
    place = f"model.layers.0.mlp.experts.gate_up_proj{name}"
    stored = load_file(path)
    stored.pop(place, None)
    save_file(stored if tensor is None else stored | {place: tensor}, path)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)

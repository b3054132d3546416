"""GGUF files of models whose layers have states: the checkpoints that they were made of, and files that do not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import gguf
from infer_kernels import QuantizedWeight
from infer_models import CausalLM, CausalView, CheckpointError, load_model
from infer_models.checkpoint import read_checkpoint_config
from infer_models.layers import own_weights
from infer_models.tensor_parallel import Shard
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import TINY_FAMILIES, save_tiny
from infer_proofs.models.gguf_files import save_gguf

CPU = torch.device("cpu")
FAMILIES = ("lfm2", "qwen3_5", "qwen3_next", "qwen3_5_moe", "granitemoehybrid")
WIDE: dict[str, Any] = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 768}
DELTA_NET: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
"""Sizes of rows that are whole blocks of every type; a block of 256 columns has eight value heads."""
OWN: dict[str, dict[str, Any]] = {"lfm2": {}, "granitemoehybrid": {"shared_intermediate_size": 256}}
PLAIN = ("shortconv.conv", "ssm_conv1d", "ssm_norm", "ffn_gate_inp", "ffn_gate_inp_shexp")
"""Tensors that converters leave in fp32."""


def of_one_type(kind: str) -> Callable[[str], str | None]:
    return lambda name: None if within(name) in PLAIN else kind


def mixed(name: str) -> str | None:
    """Return types as common files mix them."""
    kinds = {"token_embd": "Q6_K", "output": "Q6_K", "ssm_out": "Q5_K", "ffn_down": "Q6_K", "attn_gate": "Q8_0"}
    small = {"ssm_alpha": "Q8_0", "ssm_beta": "Q8_0", "ssm_ba": "Q8_0", "ffn_down_exps": "Q8_0"}
    return None if within(name) in PLAIN else (kinds | small).get(within(name), "Q4_K")


def within(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[2:-1]) or parts[0]


def save(family: str, folder: Path, **how: Any) -> Path:
    """Save a tiny checkpoint and the file made of it; return the file."""
    file = {each: how.pop(each) for each in ("kind_of", "metadata") if each in how}
    save_tiny(family, folder, **{**WIDE, **OWN.get(family, DELTA_NET), **how})
    save_gguf(folder, folder / "model.gguf", **file)
    return folder / "model.gguf"


def loaded(path: Path, **how: Any) -> CausalLM:
    return load_model(path, device=CPU, dtype=torch.float32, **how)


def assert_same_models(ours: CausalLM, theirs: CausalLM) -> None:
    found, expected = numbers_of(ours), numbers_of(theirs)
    assert found.keys() == expected.keys()
    for name, numbers in found.items():
        if numbers.dim() > 1:
            assert torch.equal(numbers, expected[name]), name
        else:  # files have one more than weights of norms, and the exponential of `A_log`
            torch.testing.assert_close(numbers, expected[name], rtol=0, atol=5e-7)


def numbers_of(model: CausalLM) -> dict[str, torch.Tensor]:
    return {
        f"{path}.{name}": weight.dequantize() if isinstance(weight, QuantizedWeight) else weight.detach()
        for path, module in model.named_modules()
        for name, weight in own_weights(module)
    }


@pytest.mark.covers("gguf/families")
@pytest.mark.parametrize(
    ("kind_of", "dtype"), [(lambda _: None, "float32"), (mixed, "bfloat16")], ids=["plain", "mixed"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_the_checkpoint_that_it_was_made_of(
    family: str, kind_of: Callable[[str], str | None], dtype: str, tmp_path: Path
) -> None:
    path = save(family, tmp_path, kind_of=kind_of)
    ours, theirs = read_checkpoint_config(path), read_checkpoint_config(tmp_path)
    for field in ours.__slots__:
        if field not in ("dtype", "quantization", "model_type", "has_parts_apart", "max_position_embeddings"):
            assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.dtype == dtype
    assert_same_models(loaded(path), loaded(tmp_path))
    twin: Any = getattr(transformers, TINY_FAMILIES[family].model).from_pretrained(tmp_path)
    ids = torch.arange(40) * 7 % 320
    with torch.inference_mode():
        found = loaded(path, quantization="none")(ids, torch.arange(40), CausalView())
        torch.testing.assert_close(found, twin.eval()(ids[None]).logits[0], rtol=0, atol=2e-4)


@pytest.mark.covers("replicas/ranks-states")
@pytest.mark.parametrize(
    "family", ["qwen3_5", "lfm2", *(pytest.param(each, marks=pytest.mark.full) for each in FAMILIES[2:])]
)
def test_ranks_hold_their_heads(family: str, tmp_path: Path) -> None:
    path = save(family, tmp_path, kind_of=mixed)
    for size, rank in ((2, 1), (4, 2)):
        shard = Shard(rank=rank, size=size)
        assert_same_models(loaded(path, shard=shard), loaded(tmp_path, shard=shard))


@pytest.mark.covers("gguf/families")
@pytest.mark.parametrize(
    "fields",
    [
        {"num_local_experts": 0, "num_experts_per_tok": 0, "tie_word_embeddings": True},
        {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_n_groups": 1},
        {"attention_bias": True, "mamba_expand": 1},
    ],
)
def test_granite_4_is_read_with_experts_or_without_and_with_any_biases(fields: dict[str, Any], tmp_path: Path) -> None:
    path = save("granitemoehybrid", tmp_path, kind_of=mixed, **fields)
    ours, theirs = read_checkpoint_config(path), read_checkpoint_config(tmp_path)
    assert (ours.moe, ours.mamba, ours.states) == (theirs.moe, theirs.mamba, theirs.states)
    assert_same_models(loaded(path), loaded(tmp_path))


def test_granite_4_rotates_heads_where_the_file_says_so(tmp_path: Path) -> None:
    # ggml-org/llama.cpp#13550: `rope.scaling.finetuned` is the switch, and a file without it rotates
    path = save("granitemoehybrid", tmp_path, metadata={"rope.scaling.finetuned": None})
    assert read_checkpoint_config(path).ropes[0] is not None
    assert read_checkpoint_config(tmp_path).ropes[0] is None


@needs_cpu_kernels
@pytest.mark.covers("gguf/types")
@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"])
def test_value_heads_that_take_turns_keep_their_numbers(kind: str, tmp_path: Path) -> None:
    path = save("qwen3_5", tmp_path, kind_of=of_one_type(kind))
    ours = loaded(path)
    out: Any = ours.get_submodule("model.layers.0.linear_attn.out_proj")
    assert isinstance(out.weight, QuantizedWeight)
    assert_same_models(ours, loaded(tmp_path))


def test_rows_of_each_key_head_together_are_read_too(tmp_path: Path) -> None:
    # Files of the first weeks have `in_proj_qkvz` as it is
    path = save("qwen3_next", tmp_path)
    expected = loaded(path)
    stored = numbers_in(tmp_path / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        add = gguf.GGUFWriter.add_tensor

        def add_changed(writer: Any, name: str, data: Any, **how: Any) -> None:
            layer, kind = name.split(".")[1], within(name)
            if kind == "attn_qkv":
                name, data = (
                    f"blk.{layer}.ssm_in.weight",
                    stored[f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight"],
                )
            if kind != "attn_gate":
                add(writer, name, data, **how)

        patch.setattr(gguf.GGUFWriter, "add_tensor", add_changed)
        save_gguf(tmp_path, path)
    assert_same_models(loaded(path), expected)


def numbers_in(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file  # noqa: PLC0415 - of this test alone

    return load_file(path)


@pytest.mark.parametrize(
    ("metadata", "attending"),
    [
        ({"attention.recurrent_layers": None}, [3]),
        ({"attention.recurrent_layers": None, "full_attention_interval": 2}, [1, 3]),
        ({"attention.recurrent_layers": None, "full_attention_interval": None}, [3]),
        ({"attention.recurrent_layers": [True, False, True, False]}, [1, 3]),
        ({"attention.recurrent_layers": None, "attention.head_count_kv": [0, 2, 0, 2]}, [1, 3]),
    ],
)
def test_layers_attend_as_the_metadata_says(metadata: dict[str, Any], attending: list[int], tmp_path: Path) -> None:
    config = read_checkpoint_config(save("qwen3_5", tmp_path, metadata=metadata))
    assert [layer for layer in range(4) if config.attends(layer)] == attending


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_files_that_ollama_wrote_are_read(family: str, tmp_path: Path) -> None:
    # ollama/ollama#17903, ggml-org/llama.cpp#25334, #22954: heads of each layer, three sections, a name without `.bias`
    made = save(family, tmp_path)
    heads = [2 if read_checkpoint_config(made).attends(layer) else 0 for layer in range(4)]
    sections = {
        "attention.head_count_kv": heads,
        "attention.recurrent_layers": None,
        "rope.dimension_sections": [1, 1, 0],
    }
    with pytest.MonkeyPatch.context() as patch:
        add, write = gguf.GGUFWriter.add_tensor, gguf.GGUFWriter.write_header_to_file

        def with_more(writer: Any) -> None:
            for name in ("v.blk.0.attn_q.weight", "mtp.layers.0.input_layernorm.weight"):
                add(writer, name, torch.ones(4).numpy())
            write(writer)

        def renamed(writer: Any, name: str, data: Any, **how: Any) -> None:
            add(writer, name.replace("ssm_dt.bias", "ssm_dt"), data, **how)

        patch.setattr(gguf.GGUFWriter, "add_tensor", renamed)
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", with_more)
        save_gguf(tmp_path, tmp_path / "ollama.gguf", metadata=sections)
    assert_same_models(loaded(tmp_path / "ollama.gguf"), loaded(made))


def test_layers_that_predict_several_tokens_are_left_unread(tmp_path: Path) -> None:
    # Such a layer is one more of `block_count`; it attends
    states = [True, True, False, True, False]
    metadata = {"block_count": 5, "nextn_predict_layers": 1, "attention.recurrent_layers": states}
    with pytest.MonkeyPatch.context() as patch:
        write = gguf.GGUFWriter.write_header_to_file

        def with_more(writer: Any) -> None:
            for name in ("attn_q", "post_attention_norm", "nextn.eh_proj", "nextn.enorm", "nextn.shared_head_norm"):
                writer.add_tensor(f"blk.4.{name}.weight", torch.ones(4).numpy())
            write(writer)

        patch.setattr(gguf.GGUFWriter, "write_header_to_file", with_more)
        path = save("qwen3_5", tmp_path, metadata=metadata)
    assert_same_models(loaded(path), loaded(tmp_path))


@pytest.mark.parametrize(
    ("family", "metadata", "message"),
    [
        ("granitemoehybrid", {"ssm.inner_size": 384}, "is 384; it must be a multiple of the hidden size, 256"),
        ("granitemoehybrid", {"ssm.conv_kernel": 1 << 31}, "has shape [576, 4] but the metadata makes it [576, 2147"),
        ("granitemoehybrid", {"ssm.time_step_rank": 7}, "`mamba_n_heads` is 7; it must be a divisor"),
        ("granitemoehybrid", {"ssm.group_count": None}, "the metadata has no `granitehybrid.ssm.group_count`"),
        ("granitemoehybrid", {"attention.head_count_kv": [0, 2]}, "an array of 2; it must be 4 numbers, one for each"),
        ("granitemoehybrid", {"expert_used_count": None}, "the metadata has no `granitehybrid.expert_used_count`"),
        ("granitemoehybrid", {"expert_count": 5}, "holds 6 experts, but `granitehybrid.expert_count` is 5"),
        (
            "granitemoehybrid",
            {"expert_shared_feed_forward_length": 0},
            "is 0; it must be a whole number above 0: layers without a shared MLP are not read",
        ),
        ("lfm2", {"shortconv.l_cache": None}, "the metadata has no `lfm2.shortconv.l_cache`"),
        (
            "lfm2",
            {"shortconv.l_cache": 1},
            "`blk.0.shortconv.conv.weight` has shape [256, 3] but the metadata makes it [256, 1]",
        ),
        ("lfm2", {"attention.head_count_kv": [0, 2]}, "an array of 2; it must be 3 numbers, one for each layer"),
        ("lfm2", {"attention.head_count_kv": [0, 0, 0]}, "an array of 3; it must be one number for all layers"),
        ("lfm2", {"attention.head_count_kv": [0, 2, 4]}, "an array of 3; it must be one number for all layers"),
        ("lfm2", {"attention.head_count_kv": ["a"]}, "an array of 1; it must be a whole number"),
        ("lfm2", {"attention.sliding_window": 8}, "`lfm2.attention.sliding_window` is 8; it must be 0"),
        ("lfm2", {"attention.causal": False}, "`lfm2.attention.causal` is False; it must be true"),
        ("qwen3_5", {"ssm.conv_kernel": None}, "the metadata has no `qwen35.ssm.conv_kernel`"),
        ("qwen3_5", {"ssm.state_size": None}, "the metadata has no `qwen35.ssm.state_size`"),
        ("qwen3_5", {"ssm.state_size": 0}, "`qwen35.ssm.state_size` is 0; it must be a multiple of 16"),
        ("qwen3_5", {"ssm.group_count": 0}, "`qwen35.ssm.group_count` is 0; it must be a whole number above 0"),
        ("qwen3_5", {"ssm.time_step_rank": 0}, "`qwen35.ssm.time_step_rank` is 0; it must be a multiple of"),
        ("qwen3_5", {"ssm.time_step_rank": 7}, "`qwen35.ssm.time_step_rank` is 7; it must be a multiple of"),
        ("qwen3_5", {"ssm.inner_size": 255}, "`qwen35.ssm.inner_size` is 255; it must be 8 value heads of 32"),
        ("qwen3_5", {"ssm.group_count": 1 << 20}, "`qwen35.ssm.time_step_rank` is 8; it must be a multiple of"),
        ("qwen3_5", {"ssm.time_step_rank": 1 << 26, "ssm.inner_size": 1 << 31}, "has shape [384, 4] but"),
        ("qwen3_5", {"ssm.conv_kernel": 1 << 31}, "has shape [384, 4] but the metadata makes it [384, 2147483648]"),
        ("qwen3_5", {"attention.recurrent_layers": [True]}, "an array of 1; it must be 4 flags, one for each layer"),
        (
            "qwen3_5",
            {"attention.recurrent_layers": None, "full_attention_interval": 0},
            "`qwen35.full_attention_interval` is 0; it must be a whole number above 0",
        ),
        (
            "qwen3_5",
            {"nextn_predict_layers": 4},
            "`qwen35.nextn_predict_layers` is 4; it must be fewer than the layers",
        ),
        (
            "qwen3_next",
            {"expert_shared_feed_forward_length": None},
            "has no `qwen3next.expert_shared_feed_forward_length`",
        ),
        ("qwen3_5_moe", {"expert_used_count": 7}, "`num_experts_per_tok` is 7; it must be at most 6"),
    ],
)
def test_metadata_that_does_not_fit_is_one_line(
    family: str, metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        loaded(save(family, tmp_path, metadata=metadata))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blk.0.ssm_a", "`model.layers.0.linear_attn.A_log` is missing"),
        ("blk.1.attn_gate.weight", "`model.layers.1.linear_attn.in_proj_z.weight` is missing"),
        ("blk.2.attn_q.weight", "`model.layers.2.self_attn.q_proj.weight` is missing"),
    ],
)
def test_a_tensor_that_is_missing_is_named(name: str, message: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        add = gguf.GGUFWriter.add_tensor
        patch.setattr(
            gguf.GGUFWriter,
            "add_tensor",
            lambda self, each, *a, **k: None if each == name else add(self, each, *a, **k),
        )
        path = save("qwen3_5", tmp_path)
    with pytest.raises(CheckpointError, match=message):
        loaded(path)


def test_a_decay_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        add = gguf.GGUFWriter.add_tensor
        patch.setattr(
            gguf.GGUFWriter,
            "add_tensor",
            lambda self, each, data, **k: add(self, each, abs(data) if each == "blk.1.ssm_a" else data, **k),
        )
        path = save("qwen3_5", tmp_path)
    with pytest.raises(CheckpointError, match=r"`blk\.1\.ssm_a` holds numbers that are not below 0"):
        loaded(path)

"""A model divided among ranks computes what the whole one does."""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_models import CausalLM, CausalView, ModelConfig, load_model
from infer_models.checkpoint.files import tensor_file
from infer_models.layer_states import StateSpec
from infer_models.tensor_parallel import Shard, check_tensor_parallel_size
from infer_proofs.models import TINY_FAMILIES, save_tiny, save_tiny_llama, save_tiny_nanogpt
from infer_proofs.models.ranks import run_ranks

CPU = torch.device("cpu")
IDS = torch.randint(3, 60, (24,), generator=torch.Generator().manual_seed(1))

CASES: dict[str, Callable[[Path], Any]] = {
    **{family: partial(save_tiny, family) for family in TINY_FAMILIES},
    "llama_tied": partial(save_tiny, "llama", tie_word_embeddings=True),
    "llama_one_kv_head": partial(save_tiny, "llama", num_key_value_heads=1),
    "llama_odd_vocabulary": partial(save_tiny, "llama", vocab_size=319),
    "qwen3_odd_tied_vocabulary": partial(save_tiny, "qwen3", vocab_size=65, tie_word_embeddings=True),
    "gemma3_capped_logits": partial(save_tiny, "gemma3", final_logit_softcapping=2.0),
    "phi3_one_kv_head": partial(save_tiny, "phi3", num_key_value_heads=1),
    "olmo2_one_kv_head": partial(save_tiny, "olmo2", num_key_value_heads=1),
    "gpt_oss_one_kv_head": partial(save_tiny, "gpt_oss", num_key_value_heads=1),
    "qwen3_5_one_key_head": partial(save_tiny, "qwen3_5", linear_num_key_heads=1, attention_bias=True),
    "qwen3_next_one_key_head": partial(save_tiny, "qwen3_next", linear_num_key_heads=1),
    "qwen3_next_many_heads": partial(save_tiny, "qwen3_next", linear_num_key_heads=4, linear_num_value_heads=12),
    "granite_one_group": partial(save_tiny, "granitemoehybrid", mamba_n_groups=1, mamba_proj_bias=True),
    "granite_four_groups": partial(save_tiny, "granitemoehybrid", mamba_n_groups=4, num_local_experts=0),
    "lfm2_with_biases": partial(save_tiny, "lfm2", conv_bias=True),
    "nanogpt": save_tiny_nanogpt,
}


def load(folder: Path, shard: Shard | None = None, **how: Any) -> CausalLM:
    return load_model(folder, device=CPU, shard=shard, **({"dtype": torch.float32} | how))


@torch.inference_mode()
def logits_of(model: CausalLM) -> Tensor:
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


def plain(weight: Tensor | QuantizedWeight) -> Tensor:
    assert isinstance(weight, Tensor)
    return weight


@pytest.mark.covers("replicas/ranks-every-family")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("save", CASES.values(), ids=CASES.keys())
def test_logits_in_fp32_differ_by_at_most_one_ten_thousandth(tmp_path: Path, save: Any, size: int) -> None:
    save(tmp_path)
    whole = load(tmp_path)
    models = run_ranks(size, lambda shard: load(tmp_path, shard))
    logits, *of_others = run_ranks(size, lambda shard: logits_of(load(tmp_path, shard)))
    assert (logits - logits_of(whole)).abs().max() <= 1e-4
    assert [tuple(each.shape) for each in of_others] == [(0, whole.config.vocab_size)] * (size - 1)
    assert {model.num_parameters for model in models} == {whole.num_parameters}
    held = sum(parameter.numel() for model in models for parameter in model.parameters())
    assert held < 1.35 * whole.num_parameters  # norms, and KV heads that there are too few of, are there twice


@pytest.mark.covers("replicas/ranks-packed-weights")
@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3", "olmo3", "qwen3_moe", "gpt_oss"])
def test_a_prepacked_rank_computes_the_same(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    # In bf16 rounding may choose other experts.
    dtype = torch.float32 if family in ("qwen3_moe", "gpt_oss") else torch.bfloat16

    def packed_logits(shard: Shard) -> Tensor:
        model = load(tmp_path, shard, dtype=dtype)
        model.prepack()
        return logits_of(model).float()

    expected = logits_of(load(tmp_path, dtype=dtype)).float()
    error = run_ranks(2, packed_logits)[0] - expected
    assert (error.square().mean().sqrt() / expected.std()).item() <= (3e-2 if dtype == torch.bfloat16 else 1e-4)


def test_every_rank_attends_with_its_own_heads(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    for size, q_heads, kv_heads in ((1, 4, 2), (2, 2, 1), (4, 1, 1)):
        specs = run_ranks(size, lambda shard: load(tmp_path, shard).attention_specs)
        assert {(spec.q_heads, spec.kv_heads) for of_rank in specs for spec in of_rank} == {(q_heads, kv_heads)}


@pytest.mark.covers("replicas/ranks-read-their-part")
@pytest.mark.parametrize(
    "family", ["llama", "phi3", "mixtral", "qwen3_moe", "gpt_oss", "qwen3_next", "granitemoehybrid", "lfm2"]
)
def test_parts_of_a_checkpoint_are_read_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    save_tiny(family, tmp_path, max_shard_size="100KB", dtype=torch.bfloat16)
    expected = load(tmp_path).stored_weights()
    for staging_bytes in (100, 1000, 10**6):
        monkeypatch.setattr(tensor_file, "_STAGING_BYTES", staging_bytes)
        for rank in range(2):
            for name, part in load(tmp_path, Shard(rank=rank, size=2)).stored_weights().items():
                assert torch.equal(plain(part.target), part.of(expected[name].stored())), name


@pytest.mark.covers("replicas/ranks-dummy-weights")
@pytest.mark.parametrize(
    "family", ["qwen3", "phi3", "olmo2", "qwen3_moe", "gpt_oss", "qwen3_5", "qwen3_next", "granitemoehybrid", "lfm2"]
)
def test_ranks_draw_the_random_weights_of_the_whole_model(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path, num_key_value_heads=1)
    whole = load(tmp_path, load_format="dummy").stored_weights()
    for rank in range(2):
        for name, part in load(tmp_path, Shard(rank=rank, size=2), load_format="dummy").stored_weights().items():
            assert torch.equal(plain(part.target), part.of(whole[name].stored())), name


@pytest.mark.covers("replicas/ranks-sizes")
def test_sizes_that_do_not_divide_the_model_are_refused_with_those_that_do(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    for size in (1, 2, 4):
        check_tensor_parallel_size(config, size)
    for size in (3, 8):
        with pytest.raises(ValueError, match=rf"`tensor_parallel_size` is {size}, .* 4 query heads.* one of 1, 2, 4\."):
            load(tmp_path, Shard(rank=0, size=size))


def test_an_mlp_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, intermediate_size=94)
    with pytest.raises(ValueError, match="MLP of 94; use one of 1, 2"):
        load(tmp_path, Shard(rank=0, size=4))


# NVIDIA/Megatron-LM#1989, vllm-project/vllm#36242: packed rows cut in the middle gave a rank the heads of others
@pytest.mark.covers("replicas/ranks-states")
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_every_rank_has_the_key_head_of_its_value_heads(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path, linear_num_key_heads=2, linear_num_value_heads=8)
    whole: Any = load(tmp_path).get_submodule("model.layers.0.linear_attn")
    q, k, v, z = whole.in_proj.weight.split([32, 32, 128, 128])
    b, a = whole.in_proj_ba.weight.chunk(2)
    channels = whole.conv1d.weight.split([32, 32, 128])
    for rank in range(4):
        net: Any = load(tmp_path, Shard(rank=rank, size=4)).get_submodule("model.layers.0.linear_attn")
        key, values, heads = (
            slice(at * size, at * size + size) for at, size in ((rank // 2, 16), (rank, 32), (rank, 2))
        )
        assert torch.equal(net.in_proj.weight, torch.cat([q[key], k[key], v[values], z[values]]))
        assert torch.equal(net.in_proj_ba.weight, torch.cat([b[heads], a[heads]]))
        own = zip(channels, (key, key, values), strict=True)
        assert torch.equal(net.conv1d.weight, torch.cat([rows[each] for rows, each in own]))
        assert torch.equal(net.A_log, whole.A_log[heads])
        assert torch.equal(net.out_proj.weight, whole.out_proj.weight[:, values])


# vllm-project/vllm#13660: where groups do not divide, heads of a rank would be of several; state-spaces/mamba#916
@pytest.mark.covers("replicas/ranks-sizes")
@pytest.mark.parametrize(
    ("family", "fields", "heads", "possible"),
    [
        ("qwen3_5", {"linear_num_key_heads": 3, "linear_num_value_heads": 6}, "3 and 6", "1"),
        ("qwen3_next", {"linear_num_key_heads": 1, "linear_num_value_heads": 2}, "1 and 2", "1, 2"),
        (
            "granitemoehybrid",
            {"mamba_n_heads": 16, "mamba_n_groups": 8, "num_attention_heads": 8},
            "8 and 16",
            "1, 2, 4, 8",
        ),
        ("granitemoehybrid", {"mamba_n_heads": 2, "mamba_n_groups": 1}, "1 and 2", "1, 2"),
        ("lfm2", {}, "64", "1, 2, 4"),
    ],
)
def test_sizes_that_do_not_divide_heads_of_states_are_refused(
    tmp_path: Path, family: str, fields: dict[str, Any], heads: str, possible: str
) -> None:
    save_tiny(family, tmp_path, **fields)
    config = ModelConfig.from_folder(tmp_path)
    with pytest.raises(ValueError, match=rf"is 16, .* {heads} heads of states, .* use one of {possible}\."):
        check_tensor_parallel_size(config, 16)


PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published_configs.json").read_text(encoding="utf-8"))
DELTA_NET = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "head_dim": 256}
PUBLISHED["Qwen3.5-397B-A17B"] = DELTA_NET | {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "num_experts": 512,
    "linear_num_value_heads": 64,
}
PUBLISHED["Qwen3.5-27B"] = DELTA_NET | {
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 48,
}
SIZES = {
    "Qwen3-Next": (1, 2, 4, 8, 16),
    "Qwen3.5-397B-A17B": (1, 2, 4, 8, 16),
    "Qwen3.5-27B": (1, 2, 4, 8),
    "Qwen 3.5": (1, 2, 4, 8),
    "Granite 4": (1, 2, 4),
    "LFM2": (1, 2, 4, 8, 16),
}
"""Sizes by which published models with states can be divided, of those up to 16 that are powers of 2."""


def num_elements(states: Sequence[StateSpec | None]) -> int:
    return sum(math.prod(each.convolution) + math.prod(each.matrices or (0,)) for each in states if each is not None)


@pytest.mark.covers("replicas/ranks-states")
@pytest.mark.parametrize("name", SIZES)
def test_published_models_with_states_can_be_divided(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    config = ModelConfig.from_folder(tmp_path)
    whole = num_elements(config.states)
    for size in (1, 2, 4, 8, 16):
        if size not in SIZES[name]:
            with pytest.raises(ValueError, match=f"`tensor_parallel_size` is {size}, which does not divide"):
                check_tensor_parallel_size(config, size)
            continue
        check_tensor_parallel_size(config, size)
        for rank in range(size):
            of_rank = num_elements(Shard(rank=rank, size=size).state_specs(config))
            assert whole / size <= of_rank <= 1.1 * whole / size  # groups of Mamba 2 may be there several times


@pytest.mark.parametrize(("total", "size", "widths"), [(5, 2, [2, 3]), (320, 3, [106, 107, 107]), (1, 4, [1] * 4)])
def test_shares_cover_a_dimension_and_differ_by_at_most_one_unit(total: int, size: int, widths: list[int]) -> None:
    shares = [Shard(rank=rank, size=size).divide(total, unit=8) for rank in range(size)]
    assert [share.size for share in shares] == [8 * width for width in widths]
    assert {share.total for share in shares} == {8 * total}
    ends = [share.start + share.size for share in shares]
    assert max(ends) == 8 * total
    assert all(share.start in (0, *ends) for share in shares)

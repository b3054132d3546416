"""Our logits are those of `transformers` on the same random checkpoint."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infer_models import CausalLM, CausalView, load_model
from infer_models.layers.embedding import MAX_FUSED_ROWS
from infer_models.layers.rotary import ROWS_AT_ONCE
from infer_proofs.models import LLAMA3_SCALING, TINY_FAMILIES, YARN_SCALING, save_tiny, save_tiny_llama

CPU = torch.device("cpu")
FULL, LINEAR = "full_attention", "linear_attention"
NUM_TOKENS = 90  # past Llama 3's original context of 32 tokens and many times Gemma's window of 8

Save = Callable[..., Any]


def case(family: str, **fields: Any) -> Save:
    return partial(save_tiny, family, **fields)


CASES: dict[str, Save] = {
    **{family: case(family) for family in TINY_FAMILIES},
    "llama_tied": case("llama", tie_word_embeddings=True),
    "llama_llama3_scaling": case("llama", rope_parameters=LLAMA3_SCALING),
    "llama_linear_scaling": case(
        "llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "llama_yarn_scaling": case("llama", rope_parameters=YARN_SCALING),
    "llama_yarn_untruncated": case(
        "llama", rope_parameters=YARN_SCALING | {"truncate": False, "beta_fast": 4.0, "attention_factor": 1.3}
    ),
    "llama_yarn_mscales": case("llama", rope_parameters=YARN_SCALING | {"mscale": 1.2, "mscale_all_dim": 0.7}),
    "llama_longrope_scaling": case(
        "llama",
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.05 * i for i in range(16)],
            "long_factor": [1.0 + 0.5 * i for i in range(16)],
            "original_max_position_embeddings": 64,
        },
    ),
    "llama_head_dim_is_hidden_over_heads": case("llama", head_dim=None),
    "llama_one_kv_head": case("llama", num_key_value_heads=1),
    "llama_no_groups": case("llama", num_key_value_heads=4),
    "mistral_without_window": case("mistral", sliding_window=None, tie_word_embeddings=True),
    "mistral_yarn_scaling": case("mistral", rope_parameters=YARN_SCALING),
    "ministral_sliding_only": case("ministral", layer_types=None, tie_word_embeddings=True),
    "ministral3_tied": case(
        "ministral3",
        tie_word_embeddings=True,
        rope_parameters=YARN_SCALING | {"llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 16},
    ),
    "mixtral_sliding": case("mixtral", sliding_window=8, tie_word_embeddings=True, num_experts_per_tok=1),
    "qwen2_tied": case("qwen2", tie_word_embeddings=True),
    "qwen2_sliding": case("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3_tied": case("qwen3", tie_word_embeddings=True, rope_parameters=LLAMA3_SCALING),
    "smollm3_untied": case("smollm3", tie_word_embeddings=False, no_rope_layers=None, no_rope_layer_interval=3),
    "smollm3_listed": case("smollm3", layer_types=["sliding_attention", FULL, "sliding_attention"], sliding_window=8),
    "smollm3_sliding": case("smollm3", use_sliding_window=True, sliding_window=8),
    "granite_tied": case(
        "granite", tie_word_embeddings=True, residual_multiplier=0.5, logits_scaling=3.0, rms_norm_eps=0.1
    ),
    "phi3_tied": case("phi3", tie_word_embeddings=True, rope_parameters=None, sliding_window=8),
    "olmo2_tied": case("olmo2", tie_word_embeddings=True, num_key_value_heads=4, rms_norm_eps=1e-3),
    "olmo3_sliding": case("olmo3", tie_word_embeddings=True, num_key_value_heads=1, layer_types=None),
    "qwen3_moe_tied": case("qwen3_moe", tie_word_embeddings=True, norm_topk_prob=False, num_experts_per_tok=6),
    "qwen3_moe_some_dense": case("qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[2]),
    "gpt_oss_tied": case(
        "gpt_oss", tie_word_embeddings=True, swiglu_limit=0.5, swiglu_alpha=1.2, num_experts_per_tok=1
    ),
    "gpt_oss_without_windows": case("gpt_oss", layer_types=["full_attention"] * 3, num_key_value_heads=4),
    "lfm2_biases_untied": case("lfm2", conv_bias=True, tie_word_embeddings=False, layer_types=["conv", "conv", FULL]),
    "lfm2_sizes_as_stored": case("lfm2", block_auto_adjust_ff_dim=False, conv_L_cache=2, num_key_value_heads=4),
    "lfm2_sizes_multiplied": case("lfm2", block_ffn_dim_multiplier=1.3, block_multiple_of=48, conv_L_cache=5),
    "lfm2_attention_only": case("lfm2", layer_types=None),
    "qwen3_5_tied": case("qwen3_5", tie_word_embeddings=True, attention_bias=True, num_key_value_heads=4),
    "qwen3_5_by_interval": case("qwen3_5", layer_types=None, full_attention_interval=2, num_key_value_heads=1),
    "qwen3_5_one_key_head": case("qwen3_5", linear_num_key_heads=1, linear_num_value_heads=3, linear_conv_kernel_dim=2),
    "qwen3_5_no_groups": case("qwen3_5", linear_num_key_heads=4, rope_parameters=YARN_SCALING),
    "qwen3_5_all_rotated": case("qwen3_5", partial_rotary_factor=1.0, layer_types=[FULL, LINEAR, LINEAR, FULL]),
    "qwen3_5_moe_tied": case("qwen3_5_moe", tie_word_embeddings=True, num_experts_per_tok=6),
    "qwen3_5_moe_by_interval": case("qwen3_5_moe", layer_types=None, linear_num_value_heads=2, attention_bias=True),
    "qwen3_next_tied": case("qwen3_next", tie_word_embeddings=True, norm_topk_prob=False, attention_bias=True),
    "qwen3_next_some_dense": case("qwen3_next", decoder_sparse_step=2, mlp_only_layers=[3], linear_num_key_heads=4),
    "qwen3_next_by_interval": case("qwen3_next", layer_types=None, linear_num_key_heads=1, linear_num_value_heads=3),
    "qwen3_5_wrapped_tied": case("qwen3_5_wrapped", tie_word_embeddings=True),
    "granitemoehybrid_dense": case(
        "granitemoehybrid",
        num_local_experts=0,
        position_embedding_type="rope",
        tie_word_embeddings=True,
        attention_bias=True,
        rms_norm_eps=0.1,
        mamba_n_heads=16,
        mamba_n_groups=1,
        mamba_d_conv=2,
        mamba_conv_bias=False,
        mamba_proj_bias=True,
        time_step_limit=(0.4, 0.9),
    ),
    "granitemoehybrid_attention_only": case(
        "granitemoehybrid",
        num_local_experts=0,
        position_embedding_type="rope",
        rope_parameters=YARN_SCALING,
        layer_types=["full_attention"] * 4,
    ),
    "granitemoehybrid_every_expert": case(
        "granitemoehybrid", num_hidden_layers=2, layer_types=["full_attention", "mamba"], num_experts_per_tok=6
    ),
    "gemma3_untied": case("gemma3", tie_word_embeddings=False),
    "gemma3_capped_logits": case("gemma3", final_logit_softcapping=2.0),
    "gemma3_unscaled": case("gemma3", rope_parameters=None, sliding_window=30),
    "gemma3_wrapped_untied": case("gemma3_wrapped", tie_word_embeddings=False),
    "gemma4_keys_are_values": case("gemma4", attention_k_eq_v=True, num_global_key_value_heads=1, attention_bias=True),
    "gemma4_own_keys": case(
        "gemma4", num_kv_shared_layers=0, hidden_size_per_layer_input=0, tie_word_embeddings=False, rope_parameters=None
    ),
    "gemma4_last_of_a_kind": case(
        "gemma4",
        num_hidden_layers=5,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] + ["sliding_attention"] * 2,
        use_double_wide_mlp=False,
        final_logit_softcapping=2.0,
        sliding_window=30,
    ),
    "gemma4_moe_with_all": case(
        "gemma4_moe",
        top_k_experts=6,
        hidden_size_per_layer_input=16,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        rms_norm_eps=0.1,
    ),
    "gemma4_wrapped_experts": case(
        "gemma4_wrapped", enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=48
    ),
    "mistral3_untied": case("mistral3", tie_word_embeddings=False),
    "llava_untied": case("llava", tie_word_embeddings=False),
}
every_case = pytest.mark.parametrize("save", CASES.values(), ids=CASES.keys())


def token_ids() -> Tensor:
    return torch.randint(3, 320, (NUM_TOKENS,), generator=torch.Generator().manual_seed(1))


def our_logits(model: CausalLM, ids: Tensor) -> Tensor:
    positions = model.first_position(len(ids)) + torch.arange(len(ids))
    logits: Tensor = model(ids, positions, CausalView())
    return logits


@pytest.mark.covers(
    "models/llama",
    "models/llama3-frequencies",
    "models/tied-heads",
    "models/qwen3",
    "models/gemma3",
    "models/gemma4",
    "models/gemma3-rope-tables",
    "models/mistral",
    "models/ministral3",
    "models/mixtral",
    "models/qwen2",
    "models/qwen3-moe",
    "models/lfm2",
    "models/qwen3-5",
    "models/smollm3",
    "models/granite",
    "models/granite-hybrid",
    "models/phi3",
    "models/olmo",
    "models/gpt-oss",
    "models/frequency-scaling",
    "models/multimodal-wrappers",
    "models/parity-fp32",
    "models/parity-window-boundary",
    "models/parity-scaling-and-heads",
)
@torch.no_grad()
@every_case
def test_logits_in_fp32_differ_by_at_most_one_ten_thousandth(tmp_path: Path, save: Save) -> None:
    twin = save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    expected = twin(token_ids()[None]).logits[0]
    assert (our_logits(model, token_ids()) - expected).abs().max() <= 1e-4


@torch.no_grad()
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("num_rows", [3, MAX_FUSED_ROWS + 1])
@every_case
def test_the_most_probable_token_has_the_largest_logit_of_the_vocabulary(
    tmp_path: Path, save: Save, num_rows: int, *, batch_invariant: bool
) -> None:
    save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32, batch_invariant=batch_invariant)
    hidden = torch.randn(num_rows, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for vocab_size in (5, model.config.vocab_size):
        largest, token_ids = model.logits(hidden)[:, :vocab_size].max(dim=-1)
        chosen = model.most_probable(hidden, vocab_size=vocab_size)
        assert torch.equal(chosen.token_ids, token_ids)
        assert torch.allclose(chosen.largest, largest)


@torch.no_grad()
@every_case
def test_logits_of_some_rows_of_the_hidden_states_are_those_of_the_whole(tmp_path: Path, save: Save) -> None:
    save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    positions = model.first_position(NUM_TOKENS) + torch.arange(NUM_TOKENS)
    hidden = model.hidden_states(token_ids(), positions, CausalView())
    parts = [model.logits(hidden, torch.arange(start, start + 30)) for start in range(0, NUM_TOKENS, 30)]
    torch.testing.assert_close(torch.cat(parts), our_logits(model, token_ids()))
    torch.testing.assert_close(model.logits(hidden), our_logits(model, token_ids()))


@pytest.mark.covers(
    "models/llama",
    "models/qwen3",
    "models/mistral",
    "models/ministral3",
    "models/mixtral",
    "models/qwen2",
    "models/qwen3-moe",
    "models/lfm2",
    "models/qwen3-5",
    "models/smollm3",
    "models/granite",
    "models/granite-hybrid",
    "models/phi3",
    "models/olmo",
    "models/gpt-oss",
    "models/multimodal-wrappers",
    "models/parity-by-layer",
    "models/parity-window-boundary",
)
@torch.no_grad()
@every_case
def test_hidden_states_in_fp32_agree_layer_by_layer(tmp_path: Path, save: Save) -> None:
    twin = save(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    ours = residuals_of(model, token_ids())
    expected = residuals_of_twin(twin, token_ids())
    assert len(ours) == len(expected) == model.config.num_layers
    scale = getattr(twin.config, "residual_multiplier", 1.0)  # Granite's stream is kept divided by it
    for layer in range(len(ours)):
        bound = 1e-4 * max(1.0, float(expected[layer].std()))
        assert (ours[layer] * scale - expected[layer]).abs().max() <= bound, f"layer {layer}"


@pytest.mark.covers("models/parity-bf16")
@torch.no_grad()
@pytest.mark.parametrize("name", [*TINY_FAMILIES, "llama_llama3_scaling", "gemma3_untied"])
def test_logits_in_bf16_differ_by_rounding_only(tmp_path: Path, name: str) -> None:
    has_states = name in TINY_FAMILIES and TINY_FAMILIES[name].has_states
    saved_as = torch.bfloat16 if has_states else torch.float32  # some of their vectors are held in fp32, as stored
    twin = CASES[name](tmp_path, dtype=saved_as).to(torch.bfloat16)
    model = load_model(tmp_path, device=CPU, dtype=torch.bfloat16)
    ours = our_logits(model, token_ids())
    assert ours.dtype == torch.bfloat16
    rounded = twin(token_ids()[None]).logits[0].float()
    exact = twin.float()(token_ids()[None]).logits[0]  # of the same rounded weights
    error, twins_error = ((logits.float() - exact) / exact.std() for logits in (ours, rounded))
    if model.config.moe is not None:  # rounding may choose other experts for a token
        rows = error.square().mean(1).argsort()[: NUM_TOKENS * 9 // 10]
        error, ours, exact, rounded = error[rows], ours[rows], exact[rows], rounded[rows]
    assert error.square().mean().sqrt() <= 1.25 * twins_error.square().mean().sqrt() + 1e-3
    assert error.abs().max() <= 1.5 * twins_error.abs().max() + 1e-2
    best = exact.topk(2).values
    clear = best[:, 0] - best[:, 1] > 3e-1 * exact.std()
    if model.config.moe is not None and has_states:  # which carry another expert's values on to later tokens
        clear &= rounded.argmax(-1) == exact.argmax(-1)
    assert clear.sum() >= NUM_TOKENS // 4
    assert torch.equal(ours.argmax(-1)[clear], exact.argmax(-1)[clear])


@torch.no_grad()
def test_only_the_rows_asked_for_get_logits(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    rows = torch.tensor([0, 40, NUM_TOKENS - 1], dtype=torch.int32)
    ids, positions = token_ids().int(), model.first_position(NUM_TOKENS) + torch.arange(NUM_TOKENS, dtype=torch.int32)
    some = model(ids, positions, CausalView(), rows)
    torch.testing.assert_close(some, our_logits(model, token_ids())[rows])


def residuals_of(model: CausalLM, ids: Tensor) -> list[Tensor]:
    """The residual stream after each of our layers."""
    residuals: list[Tensor] = []
    for layer in layers_of(model):
        layer.register_forward_hook(
            lambda _layer, _args, outputs: residuals.append(outputs if isinstance(outputs, Tensor) else outputs[1])
        )
    our_logits(model, ids)
    return residuals


def residuals_of_twin(twin: Any, ids: Tensor) -> list[Tensor]:
    """The residual stream after each layer of the `transformers` model."""
    residuals: list[Tensor] = []
    for layer in layers_of(twin):
        layer.register_forward_hook(lambda _layer, _args, output: residuals.append(output[0]))
    twin(ids[None])
    return residuals


def layers_of(model: Any) -> list[nn.Module]:
    return list(getattr(model.model, "language_model", model.model).layers)


def test_rotations_are_the_nearest_to_those_of_their_angles(tmp_path: Path) -> None:
    """Those of PyTorch in fp32 are not: on x86 and on ARM they are off by the last bit in other places."""
    config = save_tiny_llama(tmp_path, max_position_embeddings=ROWS_AT_ONCE + 9).config
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    (table,) = (buffer for name, buffer in model.named_buffers() if name.endswith("cos_sin"))
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
    positions = [0, 1, 77, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 8]
    for position in positions:
        angles = (position * inv_freq).tolist()
        nearest = torch.tensor([turn(angle) for turn in (math.cos, math.sin) for angle in angles])
        torch.testing.assert_close(table[position], nearest, rtol=0, atol=0)

"""The checks of a model's ops find nothing wrong with right ones, and each kind of wrong ones. Both paths of a CPU."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

import infer_kernels
from infer_kernels import KVScales, SeparateProducts, linear
from infer_kernels.checks import CheckImpossibleError, HeadOps, ModelOps, MoeOps, QuantizedOps, SelfCheck, model_checks
from infer_kernels.checks.cases.attention.long import large_pool_check, long_sequence_check
from infer_kernels.checks.cases.embedding import EMBEDDING
from infer_kernels.checks.cases.gated_activations import ACTIVATIONS
from infer_kernels.checks.cases.linear import LINEAR
from infer_kernels.checks.cases.norm import NORMS
from infer_kernels.checks.cases.qkv.codes import kv_code_checks

CPU = torch.device("cpu")
LLAMA = ModelOps(
    dtype=torch.float32,
    vocab_size=500,
    hidden_size=96,
    intermediate_size=80,
    q_heads=4,
    kv_heads=2,
    head_dim=32,
    block_size=16,
    scale=32**-0.5,
)
GEMMA = replace(
    LLAMA,
    norm="gemma",
    qk_norm="gemma",
    has_sandwich_norms=True,
    activation="gelu_tanh_and_mul",
    windows=(100, None),
    soft_cap=20.0,
    embedding_scale=96**0.5,
)
WIDE_HEADS = HeadOps(kv_heads=1, head_dim=512, windows=(None,), scale=1.0, rotary_dim=16)
NANO = replace(LLAMA, norm=None, has_rotary=False, activation=None, vocab_size=65)
SINKS = replace(LLAMA, windows=(100, None), has_sinks=True)
EXPERTS = MoeOps(
    experts=24, experts_per_token=3, intermediate_size=40, scoring="softmax", normalize=True, activation="silu_and_mul"
)
BIASED_EXPERTS = replace(
    EXPERTS, experts=8, experts_per_token=4, scoring="softmax_of_top_k", activation="clamped_swiglu", has_biases=True
)
QWEN3_MOE = replace(LLAMA, qk_norm="llama", activation=None, moe=EXPERTS)
GPT_OSS = replace(LLAMA, activation=None, moe=replace(BIASED_EXPERTS, intermediate_size=33))
QUANTIZED = replace(QWEN3_MOE, quantized=(QuantizedOps(encoding="int8"), QuantizedOps(encoding="e2m1", group_size=32)))
FP8 = replace(LLAMA, quantized=(QuantizedOps(encoding="fp8_e4m3", group_size=32),))
MODELS = {
    "llama": LLAMA,
    "qwen3": replace(LLAMA, qk_norm="llama"),
    "gemma3": GEMMA,
    "gemma4": replace(GEMMA, windows=(100,), soft_cap=None, other_heads=(WIDE_HEADS,)),
    "nanogpt": NANO,
    "with sinks": SINKS,
    "phi3": replace(LLAMA, rotary_dim=20),
    "olmo2": replace(LLAMA, has_post_norms=True, norms_all_heads=True),
    "qwen3_moe": QWEN3_MOE,
    "gpt_oss": GPT_OSS,
    "quantized": QUANTIZED,
    "fp8": FP8,
}


DTYPES = [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)]


def failing(ops: ModelOps) -> set[str]:
    """Return the ops of the checks that fail."""
    return {check.op for check in model_checks(ops, num_joins=3) if fails(check)}


def fails(check: SelfCheck) -> bool:
    try:
        check.run(CPU)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("cpu_path")
def test_ops_of_every_family_agree_with_their_references(name: str, dtype: torch.dtype) -> None:
    assert failing(replace(MODELS[name], dtype=dtype)) == set()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("cpu_path")
def test_sums_of_a_large_models_length_are_no_false_alarm(dtype: torch.dtype) -> None:
    ops = replace(LLAMA, dtype=dtype, hidden_size=8192, intermediate_size=28672)
    for cases in (EMBEDDING, NORMS, ACTIVATIONS, LINEAR):
        for check in cases.checks(ops):
            check.run(CPU)


def test_every_op_of_a_model_is_checked_and_no_other() -> None:
    checked = {name: {check.op for check in model_checks(ops, num_joins=1)} for name, ops in MODELS.items()}
    always = {"embedding", "qk_norm_rope_store", "paged_attention", "linear", "sample", "apply_penalties"}
    always |= {"count_tokens", "apply_bitmask", "topk_logprobs", "resolve_token_ids", "linear_argmax", "fused_products"}
    assert checked["nanogpt"] == always
    pre_norm = always | {"rms_norm", "add_rms_norm", "silu_and_mul"}
    assert checked["llama"] == checked["qwen3"] == checked["phi3"] == pre_norm
    assert checked["olmo2"] == always | {"rms_norm", "norm_add", "silu_and_mul"}
    experts = always | {"rms_norm", "add_rms_norm", "moe_router", "fused_moe", "fused_router", "fused_moe_add_norm"}
    assert checked["qwen3_moe"] == checked["gpt_oss"] == experts
    quantized = {"linear_quantized", "embedding_quantized"}
    assert checked["quantized"] == experts | quantized | {"fused_moe_quantized"}
    assert checked["fp8"] == pre_norm | quantized | {"linear_fp8"}
    assert checked["gemma3"] == checked["gemma4"] == always | {"rms_norm", "norm_add_norm", "gelu_tanh_and_mul"}


def spoil(monkeypatch: pytest.MonkeyPatch, name: str, spoiled: Callable[..., Any]) -> None:
    """Let the op called `name` return what `spoiled` makes of it: it gets the op, then the op's arguments."""
    right = getattr(infer_kernels, name)
    monkeypatch.setattr(infer_kernels, name, lambda *args, **options: spoiled(right, *args, **options))


def a_hundredth_more(op: Callable[..., Any], *args: Any, **options: Any) -> Any:
    result = op(*args, **options)
    return result.mul_(1.01) if isinstance(result, Tensor) else tuple(each.mul_(1.01) for each in result)


@pytest.mark.covers("command-line-and-library/doctor-finds-faults")
@pytest.mark.parametrize(
    "name", ["embedding", "rms_norm", "add_rms_norm", "silu_and_mul", "linear", "paged_attention", "apply_penalties"]
)
def test_an_op_with_wrong_values_fails_and_the_others_do_not(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    spoil(monkeypatch, name, a_hundredth_more)
    assert failing(LLAMA) == {name}


def test_products_with_wrong_values_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("linear", "gated_linear", "linear_add_norm"):
        with monkeypatch.context() as patch:
            patch.setattr(SeparateProducts, name, partial(a_hundredth_more, getattr(SeparateProducts(linear), name)))
            assert failing(LLAMA) == {"fused_products"}, name


def test_a_norm_added_with_wrong_values_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "norm_add", a_hundredth_more)
    assert failing(MODELS["olmo2"]) == {"norm_add"}
    assert failing(LLAMA) == set()


def test_a_norm_over_heads_that_changes_others_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def norm_next_ones_too(op: Callable[..., Any], x: Tensor, *rest: Any, out: Tensor | None = None, **how: Any) -> Any:
        if out is not None:
            out.as_strided((len(out), 1), out.stride(), out.storage_offset() + out.shape[1]).zero_()
        return op(x, *rest, out=out, **how)

    spoil(monkeypatch, "rms_norm", norm_next_ones_too)
    assert failing(LLAMA) == set()
    assert failing(MODELS["olmo2"]) == {"rms_norm"}


def test_heads_that_are_rotated_to_their_end_fail_where_only_their_start_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rotate_all(op: Callable[..., Any], *args: Any, rotary: infer_kernels.Rotary | None = None, **how: Any) -> Any:
        if rotary is not None:
            cos_sin = torch.zeros(len(rotary.cos_sin), LLAMA.head_dim)
            cos_sin[:, : rotary.cos_sin.shape[1]] = rotary.cos_sin
            rotary = infer_kernels.Rotary(position_ids=rotary.position_ids, cos_sin=cos_sin)
        return op(*args, rotary=rotary, **how)

    spoil(monkeypatch, "qk_norm_rope_store", rotate_all)
    assert failing(LLAMA) == set()
    assert failing(MODELS["phi3"]) == {"qk_norm_rope_store"}


def test_a_token_that_is_not_the_most_probable_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "sample", lambda op, logits, **rest: (op(logits, **rest) + 1) % logits.shape[1])
    assert failing(LLAMA) == {"sample"}


@pytest.mark.parametrize("num_later", [1, 3])
def test_a_token_beside_the_largest_logit_fails(monkeypatch: pytest.MonkeyPatch, num_later: int) -> None:
    def later(op: Callable[..., Any], *args: Any, **options: Any) -> Any:
        found = op(*args, **options)
        return found._replace(token_ids=found.token_ids + num_later)

    spoil(monkeypatch, "linear_argmax", later)
    assert failing(LLAMA) == {"linear_argmax"}


def test_padding_of_the_vocabulary_that_is_chosen_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "linear_argmax", lambda op, hidden, weight, **_: op(hidden, weight, vocab_size=weight.shape[0]))
    assert failing(LLAMA) == {"linear_argmax"}


def test_experts_with_wrong_values_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "fused_moe", a_hundredth_more)
    assert failing(QWEN3_MOE) == failing(GPT_OSS) == {"fused_moe"}


def test_biases_that_are_left_out_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def left_out(op: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return op(*args, **options | {"down_bias": None})

    spoil(monkeypatch, "fused_moe", left_out)
    assert failing(QWEN3_MOE) == set()
    assert failing(GPT_OSS) == {"fused_moe"}


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("linear_quantized", "linear.quantized.linear_quantized.linear_quantized_torch"),
        ("embedding_quantized", "checks.cases.quantized.checks.embedding_quantized_torch"),
        ("fused_moe_quantized", "moe.fused_moe_quantized.fused_moe_quantized_torch"),
    ],
)
def test_quantized_weights_with_wrong_values_fail(monkeypatch: pytest.MonkeyPatch, op: str, function: str) -> None:
    path, _, name = f"infer_kernels.{function}".rpartition(".")
    module = importlib.import_module(path)
    monkeypatch.setattr(module, name, partial(a_hundredth_more, getattr(module, name)))
    assert failing(QUANTIZED) == {op}


def test_a_router_that_chooses_the_last_of_equals_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(op: Callable[..., Any], logits: Tensor, **options: Any) -> Any:
        choice = op(logits.flip(1), **options)
        return choice._replace(expert_ids=logits.shape[1] - 1 - choice.expert_ids)

    spoil(monkeypatch, "moe_router", last)
    assert failing(QWEN3_MOE) == {"moe_router"}


def test_ids_that_are_not_filled_in_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "resolve_token_ids", lambda *_: None)
    assert failing(LLAMA) == {"resolve_token_ids"}


def test_a_slot_too_many_written_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def store_once_more(
        op: Callable[..., Any], qkv: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any, **how: Any
    ) -> Any:
        q = op(qkv, k_cache, v_cache, *rest, **how)
        v_cache[0, 0, v_cache[0, 0, :, 0].isnan().nonzero()[:1]] = 0.0
        return q

    spoil(monkeypatch, "qk_norm_rope_store", store_once_more)
    assert "qk_norm_rope_store" in failing(LLAMA)


def test_memory_of_no_sequence_that_is_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_it(op: Callable[..., Any], q: Tensor, k_cache: Tensor, *rest: Any, **options: Any) -> Any:
        return op(q, k_cache, *rest, **options) + 0 * k_cache[0, 0, 0, 0]

    spoil(monkeypatch, "paged_attention", read_it)
    assert failing(LLAMA) == {"paged_attention"}


def test_a_cache_that_attention_writes_to_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(op: Callable[..., Any], q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any, **options: Any) -> Any:
        out = op(q, k_cache, v_cache, *rest, **options)
        k_cache[0] = 0.0
        return out

    spoil(monkeypatch, "paged_attention", write)
    assert failing(LLAMA) == {"paged_attention"}


def test_a_window_that_is_ignored_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "paged_attention", lambda op, *args, **rest: op(*args, **{**rest, "window": None}))
    assert failing(LLAMA) == set()
    assert failing(GEMMA) == {"paged_attention"}


@pytest.mark.parametrize("name", ["paged_attention", "qk_norm_rope_store"])
def test_an_op_that_is_wrong_for_some_heads_fails_for_these(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def wrong(op: Callable[..., Any], x: Tensor, *args: Any, **options: Any) -> Any:
        if x.shape[2] == WIDE_HEADS.head_dim:
            x = x.roll(1, dims=0)
        return op(x, *args, **options)

    spoil(monkeypatch, name, wrong)
    failed = [check for check in model_checks(MODELS["gemma4"], num_joins=1) if fails(check)]
    assert {check.op for check in failed} == {name}
    assert all(check.label.endswith(", heads 4/1 x 512") for check in failed)


def test_sinks_that_are_ignored_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "paged_attention", lambda op, *args, **rest: op(*args, **{**rest, "sinks": None}))
    assert failing(LLAMA) == set()
    assert {str(check) for check in model_checks(SINKS, num_joins=1) if fails(check)} == {
        str(check)
        for check in model_checks(SINKS, num_joins=1)
        if check.op == "paged_attention" and "131072 tokens" not in check.label  # beside which a sink weighs nothing
    }


def test_sinks_of_other_heads_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def rolled(op: Callable[..., Any], *args: Any, sinks: Tensor | None, **rest: Any) -> Any:
        return op(*args, sinks=None if sinks is None else sinks.roll(1), **rest)

    spoil(monkeypatch, "paged_attention", rolled)
    assert failing(SINKS) == {"paged_attention"}


def test_a_join_whose_bits_change_once_in_a_while_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()

    def sometimes(op: Callable[..., Any], *args: Any, **options: Any) -> Any:
        out = op(*args, **options)
        return torch.nextafter(out, out + 1) if next(calls) % 7 == 6 else out

    spoil(monkeypatch, "paged_attention", sometimes)
    checks = [check for check in model_checks(LLAMA, num_joins=9) if "joined" in check.label]
    assert [fails(check) for check in checks] == [True]


def test_a_split_of_a_long_sequence_that_is_left_out_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def shorter(op: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, plan: Any, **how: Any) -> Any:
        out = op(q, k, v, plan, **how)
        out[..., 3] *= 1 - 1 / 8  # as without one of eight splits
        return out

    long_sequence_check(LLAMA, num_tokens=65_536).run(CPU)
    long_sequence_check(replace(SINKS, soft_cap=5.0), num_tokens=65_519).run(CPU)
    spoil(monkeypatch, "paged_attention", shorter)
    with pytest.raises(AssertionError, match="splits of 65536 tokens are weighted wrongly"):
        long_sequence_check(LLAMA, num_tokens=65_536).run(CPU)


def test_rows_that_are_read_as_if_they_were_aligned_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def aligned(op: Callable[..., Any], x: Tensor, *rest: Any, **options: Any) -> Any:
        return op(x.as_strided(x.shape, x.stride(), storage_offset=0), *rest, **options)

    spoil(monkeypatch, "silu_and_mul", aligned)
    assert {str(check) for check in model_checks(LLAMA, num_joins=1) if fails(check)} == {
        "silu_and_mul, misaligned rows"
    }


def test_a_last_slot_that_32_bits_cannot_reach_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap_around(
        op: Callable[..., Any], qkv: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Any, **how: Any
    ) -> Any:
        return op(qkv, k_cache, v_cache, slots % 64, **how) if isinstance(slots, Tensor) else None

    spoil(monkeypatch, "qk_norm_rope_store", wrap_around)
    with pytest.raises(AssertionError, match="keys of the last slot"):
        large_pool_check(LLAMA, num_elements=2**20).run(CPU)


def test_a_pool_for_which_there_is_no_memory_is_no_failure() -> None:
    with pytest.raises(CheckImpossibleError, match="bytes"):
        large_pool_check(LLAMA, num_elements=2**55).run(CPU)


@pytest.mark.usefixtures("cpu_path")
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_wrong_with_a_cache_of_eight_bits(kv_dtype: torch.dtype, dtype: torch.dtype) -> None:
    checks = [*kv_code_checks(replace(GEMMA, kv_dtype=kv_dtype, dtype=dtype))]
    assert [check.op for check in checks] == ["qk_norm_rope_store"] * 2 + ["paged_attention"] * 2
    for check in checks:
        check.run(CPU)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_wrong_codes_are_found(kv_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    store, attend = infer_kernels.qk_norm_rope_store, infer_kernels.paged_attention
    monkeypatch.setattr(infer_kernels, "qk_norm_rope_store", lambda qkv, *rest, **more: store(qkv * 1.3, *rest, **more))
    monkeypatch.setattr(infer_kernels, "paged_attention", lambda q, *rest, **more: attend(q * 1.3, *rest, **more))
    for check in kv_code_checks(replace(LLAMA, kv_dtype=kv_dtype)):
        with pytest.raises(AssertionError):
            check.run(CPU)


def test_scales_that_are_not_used_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("qk_norm_rope_store", "paged_attention"):
        op = getattr(infer_kernels, name)
        monkeypatch.setattr(
            infer_kernels, name, lambda *rest, op=op, **more: op(*rest, **{**more, "scales": KVScales()})
        )
    for check in kv_code_checks(replace(LLAMA, kv_dtype=torch.float8_e4m3fn)):
        with pytest.raises(AssertionError):
            check.run(CPU)


def test_a_cache_of_the_models_dtype_has_no_codes_to_check() -> None:
    assert not [*kv_code_checks(LLAMA)]

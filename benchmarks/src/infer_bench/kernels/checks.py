"""Each op against its reference: inputs and references on the CPU, the op wherever it is asked to run.

Adding an op is adding a check.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from infer_bench.kernels.attention_checks import attention_checks, equal_bits_checks
from infer_bench.kernels.check import EQUAL, Check, Tensors, To
from infer_kernels import (
    NormVariant,
    QKNorm,
    Rotary,
    add_rms_norm,
    advance_decode,
    apply_penalties,
    apply_rope,
    apply_rope_batched,
    count_tokens,
    gelu_tanh_and_mul,
    linear_invariant,
    norm_add_norm,
    qk_norm_rope_store,
    rms_norm,
    sample,
    silu_and_mul,
    store_kv,
    topk_logprobs,
)
from infer_kernels.reference import (
    add_rms_norm_reference,
    advance_decode_reference,
    apply_penalties_reference,
    apply_rope_batched_reference,
    apply_rope_reference,
    count_tokens_reference,
    gelu_tanh_and_mul_reference,
    linear_invariant_reference,
    norm_add_norm_reference,
    qk_norm_rope_store_reference,
    rms_norm_reference,
    silu_and_mul_reference,
    store_kv_reference,
    topk_logprobs_reference,
)
from infer_kernels.testing.closeness import assert_within_roundings
from infer_kernels.testing.draws import Draws, assert_drawn, random_draws

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = (BF16, FP16, FP32)
CLOSE = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)


def all_checks() -> Iterator[Check]:
    """Every check, in the order of a layer."""
    torch.manual_seed(0)
    for dtype in DTYPES:
        yield from _norms(dtype)
        yield from _gated(dtype)
        yield from _ropes(dtype)
        yield from _stores(dtype)
        yield from attention_checks(dtype)
        yield from _linears(dtype)
        yield from _sampling(dtype)
    yield from _advances()
    yield from equal_bits_checks()


def _check(
    op: Callable[..., Any],
    reference: Callable[..., Any],
    tensors: Tensors,
    label: str,
    *,
    close: Callable[[Tensor, Tensor], None] = assert_within_roundings,
    name: str | None = None,
    **options: Any,
) -> Check:
    """A function of tensors and options that returns a tensor or several, against a reference that does too."""

    def results(function: Callable[..., Any], to: To) -> Tensors:
        returned = function(*map(to, tensors), **options)
        return returned if isinstance(returned, tuple) else (returned,)

    return Check(
        op=op.__name__ if name is None else name,
        label=f"{str(tensors[0].dtype).removeprefix('torch.')}, {label}",
        run=lambda to: results(op, to),
        expected=lambda _: results(reference, lambda tensor: tensor),
        close=close,
    )


def _norms(dtype: torch.dtype) -> Iterator[Check]:
    variants: tuple[NormVariant, ...] = ("llama", "gemma")
    for hidden in (64, 1000, 5376):
        x, residual = torch.randn(2, 7, hidden).to(dtype)
        weight = torch.randn(hidden).to(dtype)
        for variant in variants:
            options: dict[str, Any] = {"eps": 1e-6, "variant": variant}
            label = f"hidden {hidden}, {variant}"
            yield _check(rms_norm, rms_norm_reference, (x, weight), label, **options)
            yield _check(add_rms_norm, add_rms_norm_reference, (x, residual, weight), label, **options)
            yield _check(norm_add_norm, norm_add_norm_reference, (x, residual, weight, weight), label, **options)


def _gated(dtype: torch.dtype) -> Iterator[Check]:
    gate_up = torch.randn(5, 2 * 1500).to(dtype)
    yield _check(silu_and_mul, silu_and_mul_reference, (gate_up,), "intermediate 1500")
    yield _check(gelu_tanh_and_mul, gelu_tanh_and_mul_reference, (gate_up,), "intermediate 1500")


def _ropes(dtype: torch.dtype) -> Iterator[Check]:
    for q_heads, kv_heads, head_dim in ((9, 3, 64), (4, 4, 96), (32, 8, 128), (4, 1, 256)):
        q, k = (torch.randn(5, heads, head_dim).to(dtype) for heads in (q_heads, kv_heads))
        angles = torch.randn(11, head_dim // 2)
        cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
        label = f"heads {q_heads}/{kv_heads} x {head_dim}"
        yield _check(apply_rope, apply_rope_reference, (q, k, torch.randint(0, 11, (5,)), cos_sin), label)
        batched = [heads.transpose(0, 1).expand(2, -1, -1, -1).contiguous() for heads in (q, k)]
        for shape in ((5,), (2, 5)):
            whole = torch.randn(*shape, head_dim // 2).repeat(*(1 for _ in shape), 2)
            operands = (*batched, whole.cos(), whole.sin())
            rank = f"{len(shape) + 1}-D angles"
            yield _check(apply_rope_batched, apply_rope_batched_reference, operands, f"{label}, {rank}")


def _stores(dtype: torch.dtype) -> Iterator[Check]:
    for q_heads, kv_heads, head_dim, block_size in ((9, 3, 64, 16), (16, 8, 128, 64), (4, 1, 256, 5)):
        qkv = torch.randn(7, q_heads + 2 * kv_heads, head_dim).to(dtype)
        caches = torch.randn(2, 3, kv_heads, block_size, head_dim).to(dtype).unbind()
        slots = torch.randperm(3 * block_size)[:7].int()
        slots[2] = -1
        label = f"heads {q_heads}/{kv_heads} x {head_dim}, blocks of {block_size}"
        k, v = qkv[:, -2 * kv_heads : -kv_heads], qkv[:, -kv_heads:]
        yield _check(_stored, store_kv_reference, (k, v, *caches, slots), label, close=EQUAL, name="store_kv")
        angles = torch.randn(9, head_dim // 2)
        extras = (torch.randint(0, 9, (7,)), torch.cat((angles.cos(), angles.sin()), dim=1))
        weights = tuple(torch.randn(2, head_dim).to(dtype))
        for variant in (None, "llama", "gemma"):
            operands = (qkv, *caches, slots, *extras, *weights)
            yield _check(
                _prepared,
                _prepared_reference,
                operands,
                f"{label}, {variant} norm",
                name="qk_norm_rope_store",
                variant=variant,
            )


def _stored(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> Tensors:
    store_kv(k, v, k_cache, v_cache, slots)
    return k_cache, v_cache


def _prepared(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    position_ids: Tensor,
    cos_sin: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    *,
    variant: NormVariant | None,
    op: Callable[..., Any] = qk_norm_rope_store,
) -> Tensors:
    norm = None if variant is None else QKNorm(q_weight=q_weight, k_weight=k_weight, eps=1e-6, variant=variant)
    rotary = Rotary(position_ids=position_ids, cos_sin=cos_sin)
    returned = op(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    return returned if isinstance(returned, tuple) else (returned, k_cache, v_cache)


_prepared_reference = partial(_prepared, op=qk_norm_rope_store_reference)


def _advances() -> Iterator[Check]:
    rows = torch.tensor([[5, 7, 9, 1], [3, 0, 16, 31], [4, 0, 17, 32], [2, 1, 3, 4]], dtype=torch.int32)
    operands = (torch.tensor([11, 12, 13, 14]), torch.arange(8, dtype=torch.int32).view(4, 2), *rows.unbind())
    yield _check(_advanced, _advanced_reference, operands, "4 sequences", close=EQUAL, name="advance_decode")


def _advanced(next_ids: Tensor, table: Tensor, *rows: Tensor) -> Tensors:
    input_ids, position_ids, seq_lens, slots = rows
    advance_decode(
        next_ids,
        table,
        block_size=16,
        input_ids=input_ids,
        position_ids=position_ids,
        seq_lens=seq_lens,
        slots=slots,
    )
    return rows


def _advanced_reference(next_ids: Tensor, table: Tensor, *rows: Tensor) -> Tensors:
    input_ids, position_ids, seq_lens, _ = rows
    return advance_decode_reference(
        next_ids, table, block_size=16, input_ids=input_ids, position_ids=position_ids, seq_lens=seq_lens
    )


def _linears(dtype: torch.dtype) -> Iterator[Check]:
    for rows, in_features, out_features in ((1, 576, 200), (65, 4096, 130), (130, 1000, 64)):
        x = torch.randn(rows, in_features).to(dtype)
        weight = (torch.randn(out_features, in_features) * in_features**-0.5).to(dtype)
        operands = (x, weight, torch.randn(out_features).to(dtype))
        label = f"{rows} rows, {in_features} to {out_features}"
        close = partial(assert_within_roundings, roundings=8.0)
        yield _check(linear_invariant, linear_invariant_reference, operands, label, close=close)


def _sampling(dtype: torch.dtype) -> Iterator[Check]:
    for rows, vocab in ((36, 5000), (9, 128_256)):
        logits = (3 * torch.randn(rows, vocab)).to(dtype)
        draws = random_draws(rows, vocab=vocab)

        def drawn(to: To, logits: Tensor = logits, draws: Draws = draws) -> Tensors:
            return (sample(to(logits), **{name: to(column) for name, column in draws.arguments.items()}),)

        yield Check(
            op="sample",
            label=f"{dtype}, {rows} x {vocab}, all filters",
            run=drawn,
            expected=lambda _, logits=logits: (logits,),  # type: ignore[misc]  # mypy infers no lambda with defaults
            close=lambda token_ids, logits, draws=draws: assert_drawn(token_ids, logits, draws),  # type: ignore[misc]  # as above
        )
        yield _check(
            sample, lambda logits: logits.float().argmax(dim=-1), (logits,), f"{rows} x {vocab}, greedy", close=EQUAL
        )
        token_ids = torch.randint(0, vocab, (rows,))
        yield _check(
            _logprobs, _logprobs_reference, (logits, token_ids), f"{rows} x {vocab}", close=CLOSE, name="topk_logprobs"
        )
        state = (torch.arange(rows).int(), torch.rand(rows, vocab) < 0.1, torch.randint(0, 3, (rows, vocab)).int())
        penalties = (torch.full((rows,), 1.3), torch.full((rows,), 0.5), torch.full((rows,), 0.2))
        yield _check(
            _penalised,
            _penalised_reference,
            (logits, *state, *penalties),
            f"{rows} x {vocab}",
            name="apply_penalties",
        )
        if dtype == FP32:
            yield _check(
                _counted,
                count_tokens_reference,
                (state[2], torch.zeros(rows).int(), token_ids),
                f"{rows} tokens",
                close=EQUAL,
                name="count_tokens",
            )


def _logprobs(logits: Tensor, token_ids: Tensor, *, op: Callable[..., Any] = topk_logprobs) -> Tensors:
    top = op(logits, token_ids, k=5)
    # Which of equal logits comes last is open: ids are not compared.
    return top.token_logprobs, top.token_ranks, top.top_logprobs


_logprobs_reference = partial(_logprobs, op=topk_logprobs_reference)


def _penalised(logits: Tensor, *rest: Tensor, op: Callable[..., Tensor] = apply_penalties) -> Tensor:
    names = ("slots", "in_prompt", "generated_counts", "repetition", "presence", "frequency")
    return op(logits, **dict(zip(names, rest, strict=True)))


_penalised_reference = partial(_penalised, op=apply_penalties_reference)


def _counted(counts: Tensor, slots: Tensor, token_ids: Tensor) -> Tensor:
    count_tokens(counts, slots, token_ids)
    return counts

"""Each op against its reference: inputs and references on the CPU, the op wherever it is asked to run."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import infer_kernels
from infer_bench.kernels.attention_checks import attention_checks, equal_bits_checks
from infer_bench.kernels.check import EQUAL, Check, Tensors, To
from infer_kernels import NormVariant, QKNorm, Rotary, reference, sample
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.draws import Draws, assert_drawn, random_draws
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.moe.activation import ActivationName

CLOSE = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
NORMS: tuple[NormVariant, ...] = ("llama", "gemma")


def all_checks() -> Iterator[Check]:
    """Yield every check, in the order of a layer."""
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        yield from _norms(dtype)
        yield from _ropes(dtype)
        yield from _stores(dtype)
        yield from attention_checks(dtype)
        yield from _linears(dtype)
        yield from _experts(dtype)
        yield from _sampling(dtype)
    yield from _step_state()
    yield from equal_bits_checks()


def _call(op: Callable[..., Any], *tensors: Tensor, **options: Any) -> Any:
    return op(*tensors, **options)


def _check(
    name: str,
    tensors: Tensors,
    label: str,
    *,
    close: Callable[[Tensor, Tensor], None] = assert_within_roundings,
    call: Callable[..., Any] = _call,
    written: slice = slice(0),
    **options: Any,
) -> Check:
    """Return the check of the op called `name`.

    Args:
        name: of the op; its reference is called `name_reference`.
        tensors: its inputs.
        label: shape and mode.
        close: raises unless two results agree.
        call: calls its first argument, the op or the reference, with the tensors and the options.
        written: inputs that the op writes; the reference returns them after its other results.
        **options: of the call.
    """
    op, expected = getattr(infer_kernels, name), getattr(reference, f"{name}_reference")

    def run(to: To) -> Tensors:
        moved = tuple(map(to, tensors))
        return (*_listed(call(op, *moved, **options)), *moved[written])

    return Check(
        op=name,
        label=f"{str(tensors[0].dtype).removeprefix('torch.')}, {label}",
        run=run,
        expected=lambda _: _listed(call(expected, *tensors, **options)),
        close=close,
    )


def _listed(returned: Tensor | Tensors | None) -> Tensors:
    if returned is None:
        return ()
    return (returned,) if isinstance(returned, Tensor) else tuple(returned)


def _norms(dtype: torch.dtype) -> Iterator[Check]:
    for hidden in (64, 1000, 5376):
        x, residual = torch.randn(2, 7, hidden).to(dtype)
        weight = torch.randn(hidden).to(dtype)
        for variant in NORMS:
            options: dict[str, Any] = {"eps": 1e-6, "variant": variant}
            label = f"hidden {hidden}, {variant}"
            yield _check("rms_norm", (x, weight), label, **options)
            yield _check("add_rms_norm", (x, residual, weight), label, **options)
            yield _check("norm_add", (x, residual, weight), label, **options)
            yield _check("norm_add_norm", (x, residual, weight, weight), label, **options)
    gate_up = torch.randn(5, 2 * 1500).to(dtype)
    for name in ("silu_and_mul", "gelu_tanh_and_mul"):
        yield _check(name, (gate_up,), "intermediate 1500")


def _ropes(dtype: torch.dtype) -> Iterator[Check]:
    for q_heads, kv_heads, head_dim, rotary_dim in ((24, 8, 128, 96), (32, 32, 64, 16), (3, 1, 80, 20)):
        q, k = (torch.randn(5, heads, head_dim).to(dtype) for heads in (q_heads, kv_heads))
        label = f"heads {q_heads}/{kv_heads} x {head_dim}, {rotary_dim} rotated"
        yield _check("apply_rope", (q, k, torch.randint(0, 11, (5,)), _cos_sin(11, rotary_dim)), label)
    for q_heads, kv_heads, head_dim in ((9, 3, 64), (4, 4, 96), (32, 8, 128), (4, 1, 256)):
        q, k = (torch.randn(5, heads, head_dim).to(dtype) for heads in (q_heads, kv_heads))
        label = f"heads {q_heads}/{kv_heads} x {head_dim}"
        yield _check("apply_rope", (q, k, torch.randint(0, 11, (5,)), _cos_sin(11, head_dim)), label)
        batched = [heads.transpose(0, 1).expand(2, -1, -1, -1).contiguous() for heads in (q, k)]
        for shape in ((5,), (2, 5)):
            angles = torch.randn(*shape, head_dim // 2).repeat(*(1 for _ in shape), 2)
            operands = (*batched, angles.cos(), angles.sin())
            yield _check("apply_rope_batched", operands, f"{label}, {len(shape) + 1}-D angles")


def _cos_sin(positions: int, rotary_dim: int) -> Tensor:
    angles = torch.randn(positions, rotary_dim // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def _stores(dtype: torch.dtype) -> Iterator[Check]:
    for q_heads, kv_heads, head_dim, block_size in ((9, 3, 64, 16), (16, 8, 128, 64), (4, 1, 256, 5)):
        qkv = torch.randn(7, q_heads + 2 * kv_heads, head_dim).to(dtype)
        caches = torch.randn(2, 3, kv_heads, block_size, head_dim).to(dtype).unbind()
        slots = torch.randperm(3 * block_size)[:7].int()
        slots[2] = -1
        label = f"heads {q_heads}/{kv_heads} x {head_dim}, blocks of {block_size}"
        k, v = qkv[:, -2 * kv_heads : -kv_heads], qkv[:, -kv_heads:]
        yield _check("store_kv", (k, v, *caches, slots), label, close=EQUAL, written=slice(2, 4))
        weights = tuple(torch.randn(2, head_dim).to(dtype))
        for rotary_dim in (head_dim, head_dim // 4 + 4):
            operands = (qkv, *caches, slots, torch.randint(0, 9, (7,)), _cos_sin(9, rotary_dim), *weights)
            for variant in (None, *NORMS):
                named = f"{label}, {rotary_dim} rotated, {variant} norm"
                yield _check("qk_norm_rope_store", operands, named, call=_prepare, written=slice(1, 3), variant=variant)


def _prepare(op: Callable[..., Any], *tensors: Tensor, variant: NormVariant | None) -> Any:
    *packed, position_ids, cos_sin, q_weight, k_weight = tensors
    norm = None if variant is None else QKNorm(q_weight=q_weight, k_weight=k_weight, eps=1e-6, variant=variant)
    return op(*packed, rotary=Rotary(position_ids=position_ids, cos_sin=cos_sin), norm=norm)


def _linears(dtype: torch.dtype) -> Iterator[Check]:
    for rows, in_features, out_features in ((1, 576, 200), (65, 4096, 130), (130, 1000, 64)):
        x = torch.randn(rows, in_features).to(dtype)
        weight = (torch.randn(out_features, in_features) * in_features**-0.5).to(dtype)
        operands = (x, weight, torch.randn(out_features).to(dtype))
        close = partial(assert_within_roundings, roundings=8.0)
        yield _check("linear_invariant", operands, f"{rows} rows, {in_features} to {out_features}", close=close)
    for rows, in_features, vocab in (
        (1, 576, 1000),
        (17, 4096, 1030),
        (65, 1024, 500),
        (256, 1000, 333),
        (300, 64, 90),
    ):
        # Whole numbers: sums are exact in any order, so that ids are equal.
        whole = (
            torch.randint(-2, 3, shape).to(dtype) for shape in ((rows, in_features), (vocab, in_features), (vocab,))
        )
        label = f"{rows} rows, {in_features} to {vocab}"
        yield _check("linear_argmax", tuple(whole), label, close=EQUAL, vocab_size=vocab - 3)


def _experts(dtype: torch.dtype) -> Iterator[Check]:
    for experts, experts_per_token in ((32, 4), (128, 8), (512, 10)):
        logits = torch.randn(65, experts).to(dtype)
        for normalize in (True, False):
            options: dict[str, Any] = {"experts_per_token": experts_per_token, "normalize": normalize}
            label = f"{experts_per_token} of {experts} experts{', normalized' if normalize else ''}"
            yield _check("moe_router", (logits,), label, close=CLOSE, scoring="softmax", **options)
    activations: tuple[ActivationName, ...] = ("silu_and_mul", "clamped_swiglu")
    for tokens, hidden, intermediate in ((1, 576, 200), (150, 1024, 96), (65, 1000, 33)):
        layer = random_experts(
            tokens=tokens, experts=6, experts_per_token=3, hidden=hidden, intermediate=intermediate, dtype=dtype
        )
        close = partial(assert_within_roundings, roundings=8.0)
        for activation in activations:
            label = f"{tokens} rows, {hidden} and {intermediate}, {activation}"
            operands = (*layer.arguments, layer.gate_up_bias, layer.down_bias)
            yield _check("fused_moe", operands, label, close=close, call=_mix, activation=activation)


def _mix(op: Callable[..., Any], *tensors: Tensor, activation: ActivationName) -> Any:
    *operands, gate_up_bias, down_bias = tensors
    return op(*operands, activation=activation, gate_up_bias=gate_up_bias, down_bias=down_bias)


def _sampling(dtype: torch.dtype) -> Iterator[Check]:
    for rows, vocab in ((36, 5000), (9, 128_256)):
        logits = (3 * torch.randn(rows, vocab)).to(dtype)
        label = f"{rows} x {vocab}"
        yield _drawn(logits, random_draws(rows, vocab=vocab), f"{dtype}, {label}, all filters")
        yield _check("greedy", (logits,), label, close=EQUAL)
        yield _same_alone(logits, random_draws(rows, vocab=vocab), f"{dtype}, {label}, rows alone")
        yield _check("topk_logprobs", (logits, torch.randint(0, vocab, (rows,))), label, close=CLOSE, call=_logprobs)
        state = (torch.arange(rows).int(), torch.rand(rows, vocab) < 0.1, torch.randint(0, 3, (rows, vocab)).int())
        columns = (torch.full((rows,), 1.3), torch.full((rows,), 0.5), torch.full((rows,), 0.2))
        yield _check("apply_penalties", (logits, *state, *columns), label, call=_penalize)
        bits = torch.randint(-(2**31), 2**31, (rows // 2, vocab // 32)).int()
        yield _check("apply_bitmask", (logits, bits, torch.randperm(rows)[: rows // 2]), label, close=EQUAL)


def _drawn(logits: Tensor, draws: Draws, label: str) -> Check:
    return Check(
        op="sample",
        label=label,
        run=lambda to: (sample(to(logits), **{name: to(column) for name, column in draws.arguments.items()}),),
        expected=lambda _: (logits,),
        close=lambda token_ids, logits: assert_drawn(token_ids, logits, draws),
    )


def _same_alone(logits: Tensor, draws: Draws, label: str) -> Check:
    """Return the check that a row draws the same token alone as among others."""

    def run(to: To) -> Tensors:
        moved, columns = to(logits), {name: to(column) for name, column in draws.arguments.items()}
        together = sample(moved, **columns)
        alone = [
            sample(moved[row : row + 1], **{name: column[row : row + 1] for name, column in columns.items()})
            for row in range(len(moved))
        ]
        return (together - torch.cat(alone),)

    expected = (torch.zeros(len(logits), dtype=torch.int64),)
    return Check(op="sample", label=label, run=run, expected=lambda _: expected, close=EQUAL)


def _logprobs(op: Callable[..., Any], logits: Tensor, token_ids: Tensor) -> Tensors:
    top = op(logits, token_ids, k=5)
    # Which of equal logits comes last is open: ids are not compared.
    return top.token_logprobs, top.token_ranks, top.top_logprobs


def _penalize(op: Callable[..., Any], logits: Tensor, *rest: Tensor) -> Any:
    names = ("slots", "in_prompt", "generated_counts", "repetition", "presence", "frequency")
    return op(logits, **dict(zip(names, rest, strict=True)))


def _step_state() -> Iterator[Check]:
    counts = (torch.randint(0, 3, (9, 5000)).int(), torch.zeros(9).int(), torch.randint(0, 5000, (9,)))
    yield _check("count_tokens", counts, "9 tokens", close=EQUAL, written=slice(1))
    operands = (torch.tensor([5, -1, 0, -3], dtype=torch.int32), torch.tensor([11, 12, 13]))
    yield _check("resolve_token_ids", operands, "4 tokens", close=EQUAL, written=slice(1))

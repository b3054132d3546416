"""Cases that are timed on a GPU: each op at real models' shapes, with the bytes or operations that it must do.

A case is made when its turn comes, so that its memory is free again before the next.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.quantized_cases import quantized_cases
from infer_bench.kernels.state_cases import state_cases
from infer_bench.kernels.work import Aim, Case, Work
from infer_kernels import (
    NormVariant,
    QKNorm,
    Rotary,
    add_rms_norm,
    apply_penalties,
    apply_rope,
    fused_moe,
    gelu_tanh_and_mul,
    greedy,
    linear_argmax,
    linear_invariant,
    moe_router,
    norm_add,
    norm_add_norm,
    paged_attention,
    plan_attention,
    qk_norm_rope_store,
    rms_norm,
    sample,
    silu_and_mul,
    topk_logprobs,
)

BLOCK_SIZE = 64
VOCAB = 128_256
STREAMED_TOKENS = 4096


class Model(NamedTuple):
    """The shape of a model's layer."""

    name: str
    hidden: int
    intermediate: int
    q_heads: int
    kv_heads: int
    head_dim: int
    variant: NormVariant


LLAMA = Model("Llama 8B", hidden=4096, intermediate=14336, q_heads=32, kv_heads=8, head_dim=128, variant="llama")
GEMMA = Model("Gemma 3 4B", hidden=2560, intermediate=10240, q_heads=8, kv_heads=4, head_dim=256, variant="gemma")
WIDE = Model("Gemma 4 31B", hidden=5376, intermediate=21504, q_heads=32, kv_heads=4, head_dim=512, variant="gemma")
"""Its layers without a window."""
SINKS = Model("gpt-oss-20b", hidden=2880, intermediate=2880, q_heads=64, kv_heads=8, head_dim=64, variant="llama")
SINKS_WINDOW = 128


def all_cases() -> Iterator[Case]:
    """Yield every case, in the order of a layer."""
    for model in (LLAMA, GEMMA):
        for op in STREAMED:
            make = partial(streamed, op=op, model=model)
            yield Case(op, f"{model.name}, {STREAMED_TOKENS} tokens", make, Aim(0.85, "share"))
    for seqs, length in (*((seqs, length) for length in (1024, 8192) for seqs in (1, 8, 32, 64, 256)), (1, 32768)):
        share = 0.85 if seqs >= 32 else 0.75 if length == 32768 else None
        for model in (LLAMA, GEMMA) if length == 8192 else (LLAMA,):
            make = partial(decode, model=model, seqs=seqs, length=length)
            aim = Aim(share, "share") if share else None
            yield Case("paged_decode", f"{model.name}, {seqs} x {length} tokens", make, aim)
    for head_dim in (64, 128, 256):
        for tokens in (1024, 4096, 16384):
            make = partial(prefill, head_dim=head_dim, tokens=tokens)
            aim = Aim(350, "TFLOP/s") if head_dim == 128 and tokens >= 4096 else None
            yield Case("paged_prefill", f"32/8 heads x {head_dim}, {tokens} tokens", make, aim)
    make = partial(prefill, head_dim=256, tokens=8192, window=1024)
    yield Case("paged_prefill", "32/8 heads x 256, 8192 tokens, a window of 1024", make)
    yield from _other_attention()
    for rows, most_us in ((1, 25), (8, 30), (64, 75), (256, 150)):
        label = f"{rows} x {VOCAB}"
        yield Case("greedy", label, partial(greedily, rows=rows), Aim(most_us, "us"))
        for filtered, filters in (("no filter", ()), ("top-k 50, top-p 0.9", ("top_k", "top_p"))):
            make = partial(draw, rows=rows, filters=filters)
            yield Case("sample", f"{label}, {filtered}", make, Aim(most_us, "us"))
    for rows in (1, 16, 64, 256):
        for op in ("linear_argmax", "F.linear and max"):
            make = partial(head, rows=rows, is_fused=op == "linear_argmax")
            aim = Aim(0.85, "share") if op == "linear_argmax" and rows <= 64 else None
            yield Case(op, f"{rows} rows, 4096 to {VOCAB}", make, aim)
    for k in (0, 20):
        yield Case("topk_logprobs", f"256 x {VOCAB}, k {k}", partial(logprobs, k=k))
    yield Case("apply_penalties", f"256 x {VOCAB}", penalties)
    for rows in (1, 16, 256, 4096):
        for op in ("linear_invariant", "F.linear"):
            make = partial(gate_up, rows=rows, is_invariant=op == "linear_invariant")
            yield Case(op, f"{rows} rows, 4096 to 28672", make)
    for rows in (1, 16, 64, 256, 4096):
        yield Case("fused_moe", f"Qwen3 30B-A3B, {rows} tokens", partial(mix, rows=rows))
        yield Case("moe_router", f"Qwen3 30B-A3B, {rows} tokens", partial(route, rows=rows))
    yield from quantized_cases()
    yield from state_cases()


def _other_attention() -> Iterator[Case]:
    """Yield heads of 512, keys in fp8, and sinks, in layers with and without a window."""
    kinds: tuple[tuple[str, Model, dict[str, Any]], ...] = (
        ("heads of 512", WIDE, {}),
        ("keys in fp8", LLAMA, {"cache_dtype": torch.float8_e4m3fn}),
        ("sinks", SINKS, {"has_sinks": True}),
        (f"sinks, a window of {SINKS_WINDOW}", SINKS, {"has_sinks": True, "window": SINKS_WINDOW}),
    )
    for label, model, how in kinds:
        for seqs in (1, 64, 256):
            make = partial(decode, model=model, seqs=seqs, length=4096, **how)
            aim = Aim(0.85, "share") if seqs > 1 and "window" not in how else None
            yield Case("paged_decode", f"{model.name}, {label}, {seqs} x 4096 tokens", make, aim)
        make = partial(prefill, head_dim=model.head_dim, heads=(model.q_heads, model.kv_heads), tokens=8192, **how)
        yield Case("paged_prefill", f"{model.name}, {label}, 8192 tokens", make)


STREAMED = (
    "rms_norm",
    "add_rms_norm",
    "norm_add",
    "norm_add_norm",
    "silu_and_mul, gelu_tanh_and_mul",
    "apply_rope",
    "qk_norm_rope_store",
)
"""Ops that read and write a step's tokens once."""


def streamed(bench: Bench, *, op: str, model: Model) -> Work:
    """Return the work of one of `STREAMED` on `STREAMED_TOKENS` tokens."""
    tokens = bench.size(STREAMED_TOKENS, 3)
    if op.endswith("_mul"):
        gate_up = bench.random(tokens, 2 * model.intermediate)
        out = torch.empty_like(gate_up[:, : model.intermediate])
        activation = silu_and_mul if model.variant == "llama" else gelu_tanh_and_mul
        return Work(launch=partial(activation, gate_up, out=out), moves=gate_up.nbytes + out.nbytes)
    return _norm(bench, op, model, tokens) if op.endswith(("norm", "norm_add")) else _qkv(bench, op, model, tokens)


def _norm(bench: Bench, op: str, model: Model, tokens: int) -> Work:
    x, residual = bench.random(tokens, model.hidden), bench.random(tokens, model.hidden)
    weight, out, residual_out = bench.random(model.hidden), torch.empty_like(x), torch.empty_like(x)
    norm = partial(rms_norm, x, weight, 1e-6, variant=model.variant, out=out)
    add = partial(add_rms_norm, x, residual, weight, 1e-6, variant=model.variant, out=out, residual_out=residual_out)
    both = partial(
        norm_add_norm, x, residual, weight, weight, 1e-6, variant=model.variant, out=out, residual_out=residual_out
    )
    after = partial(norm_add, x, residual, weight, 1e-6, variant=model.variant, out=residual_out)
    launches: dict[str, tuple[Callable[[], object], int]] = {
        "rms_norm": (norm, 2),
        "add_rms_norm": (add, 4),
        "norm_add": (after, 3),
        "norm_add_norm": (both, 4),
    }
    launch, num_tensors = launches[op]
    return Work(launch=launch, moves=num_tensors * x.nbytes)


def _qkv(bench: Bench, op: str, model: Model, tokens: int) -> Work:
    qkv = bench.random(tokens, model.q_heads + 2 * model.kv_heads, model.head_dim)
    q, k, _ = torch.split(qkv, [model.q_heads, model.kv_heads, model.kv_heads], dim=1)
    position_ids = torch.arange(tokens, device=bench.device).int()
    cos_sin = bench.random(tokens, model.head_dim, dtype=torch.float32)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    if op == "apply_rope":
        launch = partial(apply_rope, q, k, position_ids, cos_sin, q_out=q_out, k_out=k_out)
        return Work(launch=launch, moves=2 * (q_out.nbytes + k_out.nbytes) + cos_sin.nbytes)
    k_cache, v_cache = _caches(bench, model, -(-tokens // BLOCK_SIZE))
    slots = torch.randperm(tokens, device=bench.device).int()
    weight = bench.random(model.head_dim)
    return Work(
        launch=partial(
            qk_norm_rope_store,
            qkv,
            k_cache,
            v_cache,
            slots,
            rotary=Rotary(position_ids=position_ids, cos_sin=cos_sin),
            norm=QKNorm(q_weight=weight, k_weight=weight, eps=1e-6, variant=model.variant),
            out=q_out,
        ),
        moves=2 * qkv.nbytes + cos_sin.nbytes,
    )


def decode(
    bench: Bench,
    *,
    model: Model,
    seqs: int,
    length: int,
    window: int | None = None,
    cache_dtype: torch.dtype = torch.bfloat16,
    has_sinks: bool = False,
) -> Work:
    """Return the work of one token of each sequence."""
    seqs, length = bench.size(seqs, 2), bench.size(length, 600)
    lengths = torch.full((seqs,), length, dtype=torch.int32)
    how: dict[str, Any] = {"window": window, "cache_dtype": cache_dtype, "has_sinks": has_sinks}
    launch = _attention(bench, model, torch.arange(seqs + 1, dtype=torch.int32), lengths, **how)
    own_bytes = 2 * seqs * model.q_heads * model.head_dim * 2
    num_keys = seqs * min(length, window or length)
    return Work(launch=launch, moves=2 * num_keys * model.kv_heads * model.head_dim * cache_dtype.itemsize + own_bytes)


def prefill(
    bench: Bench,
    *,
    head_dim: int,
    tokens: int,
    heads: tuple[int, int] = (LLAMA.q_heads, LLAMA.kv_heads),
    window: int | None = None,
    **how: Any,
) -> Work:
    """Return the work of a prompt at once, in a layer whose tokens attend to the last `window`, or to all."""
    tokens = bench.size(tokens, 70)
    model = LLAMA._replace(head_dim=head_dim, q_heads=heads[0], kv_heads=heads[1])
    query_start = torch.tensor([0, tokens], dtype=torch.int32)
    lengths = torch.tensor([tokens], dtype=torch.int32)
    launch = _attention(bench, model, query_start, lengths, window=window, **how)
    seen = min(tokens, window or tokens)
    pairs = seen * (seen + 1) // 2 + (tokens - seen) * seen
    return Work(launch=launch, computes=4 * head_dim * model.q_heads * pairs)


def _attention(
    bench: Bench,
    model: Model,
    query_start: Tensor,
    seq_lens: Tensor,
    *,
    window: int | None,
    cache_dtype: torch.dtype = torch.bfloat16,
    has_sinks: bool = False,
) -> Callable[[], object]:
    """Return the launch of attention over sequences of one length, in shuffled blocks, in bf16."""
    seqs, columns = len(seq_lens), -(-int(seq_lens[0]) // BLOCK_SIZE)
    plan = plan_attention(
        query_start=query_start,
        seq_lens=seq_lens,
        block_table=functional.pad(torch.randperm(seqs * columns).int().view(seqs, columns), (0, 1)),
        block_size=BLOCK_SIZE,
        device=bench.device,
    )
    q = bench.random(int(query_start[-1]), model.q_heads, model.head_dim)
    k_cache, v_cache = (cache.to(cache_dtype) for cache in _caches(bench, model, seqs * columns))
    attend = partial(paged_attention, q, k_cache, v_cache, plan, window=window, out=torch.empty_like(q))
    sinks = bench.random(model.q_heads) if has_sinks else None
    return partial(attend, scale=model.head_dim**-0.5, sinks=sinks)


def _caches(bench: Bench, model: Model, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Return keys and values: [blocks, kv_heads, block_size, head_dim]."""
    shape = (num_blocks, model.kv_heads, BLOCK_SIZE, model.head_dim)
    return bench.random(*shape), bench.random(*shape)


def greedily(bench: Bench, *, rows: int) -> Work:
    """Return the work of the most probable token of each row."""
    logits = _logits(bench, rows)
    return Work(launch=partial(greedy, logits), moves=logits.nbytes)


def head(bench: Bench, *, rows: int, is_fused: bool) -> Work:
    """Return the work of Llama's LM head and the most probable tokens: by `linear_argmax`, or by the library."""
    hidden = bench.random(bench.size(rows, 3), LLAMA.hidden)
    weight = bench.random(bench.size(VOCAB, 256), LLAMA.hidden, scale=LLAMA.hidden**-0.5)
    if is_fused:
        launch = partial(linear_argmax, hidden, weight, vocab_size=len(weight))
        return Work(launch=launch, moves=weight.nbytes)
    return Work(launch=lambda: functional.linear(hidden, weight).max(dim=-1), moves=weight.nbytes)


def draw(bench: Bench, *, rows: int, filters: tuple[str, ...]) -> Work:
    """Return the work of one token for each row."""
    logits = _logits(bench, rows)
    rows = len(logits)
    launch = partial(sample, logits, out=bench.zeros(rows, dtype=torch.int64))
    settings = {
        "top_k": torch.full((rows,), 50, dtype=torch.int32, device=bench.device),
        "top_p": torch.full((rows,), 0.9, device=bench.device),
    }
    launch = partial(
        launch,
        temperatures=torch.ones(rows, device=bench.device),
        **{name: settings[name] for name in filters},
        seeds=torch.arange(rows, device=bench.device),
        positions=bench.zeros(rows),
    )
    return Work(launch=launch, moves=logits.nbytes)


def logprobs(bench: Bench, *, k: int) -> Work:
    """Return the work of a token's log-probability and rank in each row, and of the `k` most probable."""
    logits = _logits(bench)
    token_ids = bench.zeros(len(logits), dtype=torch.int64)
    return Work(launch=partial(topk_logprobs, logits, token_ids, k=k), moves=logits.nbytes)


def penalties(bench: Bench) -> Work:
    """Return the work of penalties in all rows."""
    logits = _logits(bench)
    rows = len(logits)
    column = torch.full((rows,), 1.1, device=bench.device)
    counts = bench.zeros(rows, VOCAB)
    in_prompt = counts.bool()
    launch = partial(
        apply_penalties,
        logits,
        slots=torch.arange(rows, device=bench.device).int(),
        in_prompt=in_prompt,
        generated_counts=counts,
        repetition=column,
        presence=column,
        frequency=column,
    )
    return Work(launch=launch, moves=2 * logits.nbytes + counts.nbytes + in_prompt.nbytes)


def gate_up(bench: Bench, *, rows: int, is_invariant: bool) -> Work:
    """Return the work of Llama's gate-up: by `linear_invariant`, or by the library."""
    x = bench.random(bench.size(rows, 3), 4096)
    weight = bench.random(bench.size(28672, 256), 4096, scale=4096**-0.5)
    computes = 2 * len(x) * weight.numel() if rows >= 256 else 0
    launch = partial(functional.linear, x, weight)
    if is_invariant:
        launch = partial(linear_invariant, x, weight, out=x.new_empty(len(x), len(weight)))
    return Work(launch=launch, moves=0 if computes else weight.nbytes, computes=computes)


EXPERTS, EXPERTS_PER_TOKEN, MOE_HIDDEN, MOE_INTERMEDIATE = 128, 8, 2048, 768


def mix(bench: Bench, *, rows: int) -> Work:
    """Return the work of the experts of Qwen3 30B-A3B; tokens take experts in turn, so that loads are equal."""
    rows, experts = bench.size(rows, 3), bench.size(EXPERTS, 16)
    x = bench.random(rows, MOE_HIDDEN)
    gate_up = bench.random(experts, 2 * MOE_INTERMEDIATE, MOE_HIDDEN, scale=MOE_HIDDEN**-0.5)
    down = bench.random(experts, MOE_HIDDEN, MOE_INTERMEDIATE, scale=MOE_INTERMEDIATE**-0.5)
    pairs = rows * EXPERTS_PER_TOKEN
    ids = (torch.arange(pairs, device=bench.device) % experts).int().view(rows, EXPERTS_PER_TOKEN)
    launch = partial(fused_moe, x, gate_up, down, ids, torch.full_like(ids, 0.125, dtype=torch.float32))
    launch = partial(launch, activation="silu_and_mul", out=torch.empty_like(x))
    computes = 2 * pairs * 3 * MOE_HIDDEN * MOE_INTERMEDIATE if rows >= 1024 else 0
    moves = 0 if computes else (gate_up.nbytes + down.nbytes) // experts * min(experts, pairs)
    return Work(launch=launch, moves=moves, computes=computes)


def route(bench: Bench, *, rows: int) -> Work:
    """Return the work of the router of Qwen3 30B-A3B."""
    logits = bench.random(bench.size(rows, 3), EXPERTS)
    launch = partial(moe_router, logits, experts_per_token=EXPERTS_PER_TOKEN, scoring="softmax", normalize=True)
    return Work(launch=launch, moves=logits.nbytes + 8 * EXPERTS_PER_TOKEN * len(logits))


def _logits(bench: Bench, rows: int = 256) -> Tensor:
    return bench.random(bench.size(rows, 3), VOCAB, scale=3.0)

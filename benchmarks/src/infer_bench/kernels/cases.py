"""What is timed on a GPU: each op at real models' shapes, with what it must move or compute.

A case is made when its turn comes, so that its memory is free again before the next. Adding an op is adding a case.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from infer_bench.kernels.bench import Bench
from infer_kernels.attention import AttentionBuffers, AttentionPlan, paged_attention, plan_attention
from infer_kernels.dense.linear_invariant import linear_invariant
from infer_kernels.gated_activations import gelu_tanh_and_mul, silu_and_mul
from infer_kernels.norm.add_rms_norm import add_rms_norm
from infer_kernels.norm.norm_add_norm import norm_add_norm
from infer_kernels.norm.rms_norm import NormVariant, rms_norm
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store
from infer_kernels.qkv.rope import apply_rope
from infer_kernels.qkv.store_kv import store_kv
from infer_kernels.qkv.transforms import QKNorm, Rotary
from infer_kernels.sampling import apply_penalties, sample, topk_logprobs

BLOCK_SIZE = 64
VOCAB = 128_256


class Model(NamedTuple):
    """The shape of a model's layer."""

    name: str
    hidden: int
    intermediate: int
    q_heads: int
    kv_heads: int
    head_dim: int
    variant: NormVariant


LLAMA = Model(name="Llama 8B", hidden=4096, intermediate=14336, q_heads=32, kv_heads=8, head_dim=128, variant="llama")
GEMMA = Model(name="Gemma 3 4B", hidden=2560, intermediate=10240, q_heads=8, kv_heads=4, head_dim=256, variant="gemma")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A launch, ready to run.

    Attributes:
        launch: queues it.
        moves: bytes that must be read and written.
        computes: operations, where these are the limit.
    """

    launch: Callable[[], object]
    moves: int = 0
    computes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something to time.

    Attributes:
        op: the public function.
        label: shape and mode.
        make: allocates its tensors.
        least_share: of the machine's own bandwidth or rate that is aimed at.
        least_teraflops: operations per second that are aimed at, in 10^12.
        most_microseconds: time that is aimed at.
    """

    op: str
    label: str
    make: Callable[[Bench], Work]
    least_share: float | None = None
    least_teraflops: float | None = None
    most_microseconds: float | None = None

    def __str__(self) -> str:
        """The op and its label."""
        return f"{self.op}: {self.label}"


def all_cases() -> Iterator[Case]:
    """Every case, in the order of a layer."""
    for model in (LLAMA, GEMMA):
        for op, make in STREAMS.items():
            yield Case(
                op=op,
                label=f"{model.name}, 4096 tokens",
                make=partial(make, model=model, tokens=4096),
                least_share=0.85,
            )
    for seqs, length in (*((seqs, length) for length in (1024, 8192) for seqs in (1, 8, 32, 64, 256)), (1, 32768)):
        for model in (LLAMA, GEMMA) if length == 8192 else (LLAMA,):
            aim = 0.85 if seqs >= 32 else (0.75 if length == 32768 else None)
            yield Case(
                op="paged_decode",
                label=f"{model.name}, {seqs} x {length} tokens",
                make=partial(decode, model=model, seqs=seqs, length=length),
                least_share=aim,
            )
    for head_dim in (64, 128, 256):
        for tokens in (1024, 4096, 16384):
            yield Case(
                op="paged_prefill",
                label=f"32/8 heads x {head_dim}, {tokens} tokens",
                make=partial(prefill, head_dim=head_dim, tokens=tokens),
                least_teraflops=350 if head_dim == 128 and tokens >= 4096 else None,
            )
    for label, filters in (("greedy", None), ("no filter", ()), ("top-k 50, top-p 0.9", ("top_k", "top_p"))):
        yield Case(
            op="sample", label=f"256 x {VOCAB}, {label}", make=partial(draw, filters=filters), most_microseconds=150
        )
    yield Case(op="topk_logprobs", label=f"256 x {VOCAB}, k 0", make=partial(logprobs, k=0))
    yield Case(op="topk_logprobs", label=f"256 x {VOCAB}, k 20", make=partial(logprobs, k=20))
    yield Case(op="apply_penalties", label=f"256 x {VOCAB}", make=penalise)
    for rows in (1, 16, 256, 4096):
        for op in ("linear_invariant", "F.linear"):
            make = partial(gate_up, rows=rows, is_invariant=op == "linear_invariant")
            yield Case(op=op, label=f"{rows} rows, 4096 to 28672", make=make)


def _norm_operands(bench: Bench, model: Model, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (x, residual, weight, out)."""
    x = bench.random(bench.size(tokens, 3), model.hidden)
    return x, bench.random(*x.shape), bench.random(model.hidden), torch.empty_like(x)


def _norm(bench: Bench, *, model: Model, tokens: int) -> Work:
    x, _, weight, out = _norm_operands(bench, model, tokens)
    return Work(launch=partial(rms_norm, x, weight, 1e-6, variant=model.variant, out=out), moves=2 * x.nbytes)


def _add_norm(bench: Bench, *, model: Model, tokens: int) -> Work:
    x, residual, weight, out = _norm_operands(bench, model, tokens)
    outs = {"out": out, "residual_out": torch.empty_like(x)}
    launch = partial(add_rms_norm, x, residual, weight, 1e-6, variant=model.variant, **outs)
    return Work(launch=launch, moves=4 * x.nbytes)


def _norm_add_norm(bench: Bench, *, model: Model, tokens: int) -> Work:
    x, residual, weight, out = _norm_operands(bench, model, tokens)
    outs = {"out": out, "residual_out": torch.empty_like(x)}
    launch = partial(norm_add_norm, x, residual, weight, weight, 1e-6, variant=model.variant, **outs)
    return Work(launch=launch, moves=4 * x.nbytes)


def _gated(bench: Bench, *, model: Model, tokens: int) -> Work:
    gate_up = bench.random(bench.size(tokens, 3), 2 * model.intermediate)
    out = torch.empty_like(gate_up[:, : model.intermediate])
    op = silu_and_mul if model.variant == "llama" else gelu_tanh_and_mul
    return Work(launch=partial(op, gate_up, out=out), moves=gate_up.nbytes + out.nbytes)


def _packed_qkv(bench: Bench, model: Model, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """(qkv [tokens, heads, head_dim], positions [tokens], cos_sin [tokens, head_dim])."""
    tokens = bench.size(tokens, 3)
    qkv = bench.random(tokens, model.q_heads + 2 * model.kv_heads, model.head_dim)
    return (
        qkv,
        torch.arange(tokens, device=bench.device).int(),
        bench.random(tokens, model.head_dim, dtype=torch.float32),
    )


def _rope(bench: Bench, *, model: Model, tokens: int) -> Work:
    qkv, position_ids, cos_sin = _packed_qkv(bench, model, tokens)
    q, k, _ = torch.split(qkv, [model.q_heads, model.kv_heads, model.kv_heads], dim=1)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    launch = partial(apply_rope, q, k, position_ids, cos_sin, q_out=q_out, k_out=k_out)
    return Work(launch=launch, moves=2 * (q_out.nbytes + k_out.nbytes) + cos_sin.nbytes)


def make_caches(bench: Bench, model: Model, num_blocks: int, *, token_major: bool = False) -> tuple[Tensor, Tensor]:
    """Keys and values [blocks, kv_heads, BLOCK_SIZE, head_dim]."""
    shape = (num_blocks, model.kv_heads, BLOCK_SIZE, model.head_dim)
    if token_major:
        shape = (num_blocks, BLOCK_SIZE, model.kv_heads, model.head_dim)
    k_cache, v_cache = bench.random(*shape), bench.random(*shape)
    return (k_cache.transpose(1, 2), v_cache.transpose(1, 2)) if token_major else (k_cache, v_cache)


def _store(bench: Bench, *, model: Model, tokens: int) -> Work:
    qkv, _, _ = _packed_qkv(bench, model, tokens)
    _, k, v = torch.split(qkv, [model.q_heads, model.kv_heads, model.kv_heads], dim=1)
    caches = make_caches(bench, model, -(-tokens // BLOCK_SIZE))
    slots = bench.permutation(tokens)[: len(k)]
    return Work(launch=partial(store_kv, k, v, *caches, slots), moves=4 * k.numel() * k.element_size())


def _norm_rope_store(bench: Bench, *, model: Model, tokens: int) -> Work:
    qkv, position_ids, cos_sin = _packed_qkv(bench, model, tokens)
    k_cache, v_cache = make_caches(bench, model, -(-tokens // BLOCK_SIZE))
    weight = bench.random(model.head_dim)
    launch = partial(
        qk_norm_rope_store,
        qkv,
        k_cache,
        v_cache,
        bench.permutation(tokens)[: len(qkv)],
        rotary=Rotary(position_ids=position_ids, cos_sin=cos_sin),
        norm=QKNorm(q_weight=weight, k_weight=weight, eps=1e-6, variant=model.variant),
        out=torch.empty_like(qkv[:, : model.q_heads]),
    )
    return Work(launch=launch, moves=2 * qkv.nbytes + cos_sin.nbytes)


STREAMS: dict[str, Callable[..., Work]] = {
    "rms_norm": _norm,
    "add_rms_norm": _add_norm,
    "norm_add_norm": _norm_add_norm,
    "silu_and_mul, gelu_tanh_and_mul": _gated,
    "apply_rope": _rope,
    "store_kv": _store,
    "qk_norm_rope_store": _norm_rope_store,
}
"""Ops that stream a step's tokens."""


def decode_plan(
    bench: Bench, *, seqs: int, length: int, buffers: AttentionBuffers | None = None
) -> tuple[AttentionPlan, int]:
    """A plan of decodes in shuffled blocks, and how many blocks there are."""
    columns = -(-length // BLOCK_SIZE)
    blocks = torch.randperm(seqs * columns).int().view(seqs, columns)
    plan = plan_attention(
        query_start=torch.arange(seqs + 1, dtype=torch.int32),
        seq_lens=torch.full((seqs,), length, dtype=torch.int32),
        block_table=functional.pad(blocks, (0, 1)),
        block_size=BLOCK_SIZE,
        device=bench.device,
        buffers=buffers,
    )
    return plan, seqs * columns


def decode(
    bench: Bench, *, model: Model, seqs: int, length: int, token_major: bool = False, buffered: bool = False
) -> Work:
    """One token of each sequence; `buffered` launches the grid that a captured graph has."""
    seqs, length = bench.size(seqs, 2), bench.size(length, 600)
    buffers = None
    if buffered:
        buffers = AttentionBuffers(
            max_seqs=seqs, max_tokens=seqs, max_seq_len=length, block_size=BLOCK_SIZE, device=bench.device
        )
    plan, num_blocks = decode_plan(bench, seqs=seqs, length=length, buffers=buffers)
    caches = make_caches(bench, model, num_blocks, token_major=token_major)
    q = bench.random(seqs, model.q_heads, model.head_dim)
    out = torch.empty_like(q)
    return Work(
        launch=partial(paged_attention, q, *caches, plan, scale=model.head_dim**-0.5, out=out),
        moves=2 * seqs * length * model.kv_heads * model.head_dim * q.element_size() + 2 * q.nbytes,
    )


def prefill(bench: Bench, *, head_dim: int, tokens: int) -> Work:
    """A prompt at once."""
    tokens = bench.size(tokens, 70)
    model = Model(name="", hidden=0, intermediate=0, q_heads=32, kv_heads=8, head_dim=head_dim, variant="llama")
    columns = -(-tokens // BLOCK_SIZE)
    plan = plan_attention(
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
        seq_lens=torch.tensor([tokens], dtype=torch.int32),
        block_table=functional.pad(torch.randperm(columns).int()[None], (0, 1)),
        block_size=BLOCK_SIZE,
        device=bench.device,
    )
    q = bench.random(tokens, model.q_heads, head_dim)
    launch = partial(
        paged_attention,
        q,
        *make_caches(bench, model, columns),
        plan,
        scale=head_dim**-0.5,
        out=torch.empty_like(q),
    )
    return Work(launch=launch, computes=4 * head_dim * model.q_heads * tokens * (tokens + 1) // 2)


def _logits(bench: Bench) -> Tensor:
    return bench.random(bench.size(256, 3), VOCAB, scale=3.0)


def draw(bench: Bench, *, filters: tuple[str, ...] | None) -> Work:
    """One token for each row; no `filters` is greedy."""
    logits = _logits(bench)
    rows = len(logits)
    out = bench.zeros(rows, dtype=torch.int64)
    if filters is None:
        return Work(launch=partial(sample, logits, out=out), moves=logits.nbytes)
    settings = {
        "top_k": torch.full((rows,), 50, dtype=torch.int32, device=bench.device),
        "top_p": torch.full((rows,), 0.9, device=bench.device),
    }
    launch = partial(
        sample,
        logits,
        temperatures=torch.ones(rows, device=bench.device),
        **{name: settings[name] for name in filters},
        seeds=torch.arange(rows, device=bench.device),
        positions=bench.zeros(rows),
        out=out,
    )
    return Work(launch=launch, moves=logits.nbytes)


def logprobs(bench: Bench, *, k: int) -> Work:
    """Log-probability and rank of a token of each row, and the `k` most probable."""
    logits = _logits(bench)
    token_ids = bench.zeros(len(logits), dtype=torch.int64)
    return Work(launch=partial(topk_logprobs, logits, token_ids, k=k), moves=logits.nbytes)


def penalise(bench: Bench) -> Work:
    """All rows have penalties."""
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
    """Llama's gate-up: by `linear_invariant`, or by the library."""
    x = bench.random(bench.size(rows, 3), 4096)
    weight = bench.random(bench.size(28672, 256), 4096, scale=4096**-0.5)
    computes = 2 * len(x) * weight.numel() if rows >= 256 else 0
    launch = partial(functional.linear, x, weight)
    if is_invariant:
        launch = partial(linear_invariant, x, weight, out=x.new_empty(len(x), len(weight)))
    return Work(launch=launch, moves=0 if computes else weight.nbytes, computes=computes)

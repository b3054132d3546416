"""An op is compiled once for a model: not again for another batch, other lengths or another place in a buffer."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels.attention import (
    AttentionBuffers,
    AttentionHeads,
    DeviceMetadata,
    paged_attention,
    plan_attention,
    plan_attention_on_device,
)
from infer_kernels.embedding import embedding_quantized_triton
from infer_kernels.gated_activations import gelu_tanh_and_mul, silu_and_mul
from infer_kernels.linear.fused_products import FusedProducts
from infer_kernels.linear.linear import linear
from infer_kernels.linear.linear_argmax import linear_argmax
from infer_kernels.linear.linear_invariant import linear_invariant
from infer_kernels.linear.quantized.linear_fp8 import linear_fp8_triton
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_triton
from infer_kernels.moe import FusedRouter, fused_moe, fused_moe_add_norm, moe_router
from infer_kernels.moe.activation import ExpertActivation
from infer_kernels.moe.fused_moe_quantized import fused_moe_quantized_triton
from infer_kernels.norm.add_rms_norm import add_rms_norm
from infer_kernels.norm.norm_add import norm_add
from infer_kernels.norm.norm_add_norm import norm_add_norm
from infer_kernels.norm.rms_norm import rms_norm
from infer_kernels.qkv.kv_codes import NO_SCALES, KVScales
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store
from infer_kernels.qkv.rope import apply_rope
from infer_kernels.qkv.transforms import QKNorm, Rotary
from infer_kernels.quantization import QuantizedWeight
from infer_kernels.resolve_token_ids import resolve_token_ids
from infer_kernels.sampling import apply_bitmask, apply_penalties, count_tokens, greedy, sample, topk_logprobs
from infer_proofs.kernels.compiled.ahead_of_time import launch_only

HIDDEN, Q_HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, VOCAB = 576, 9, 3, 64, 16, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What differs from step to step.

    Attributes:
        rows: tokens, or sequences.
        length: tokens of a sequence in the cache.
        columns: of the block table.
        offset: where index vectors start in a staging buffer.
    """

    rows: int
    length: int
    columns: int
    offset: int

    def slice_of(self, dtype: torch.dtype) -> Tensor:
        """[rows], a slice of a larger vector."""
        return torch.zeros(self.offset + self.rows, dtype=dtype)[self.offset :]

    def tensor(self, *shape: int) -> Tensor:
        """[rows, *shape] in bf16."""
        return torch.zeros(self.rows, *shape, dtype=torch.bfloat16)


BATCHES = [
    Batch(rows=7, length=40, columns=4, offset=0),
    Batch(rows=8, length=600, columns=48, offset=1),
    Batch(rows=16, length=16, columns=64, offset=3),
    Batch(rows=1, length=1, columns=2, offset=5),
    Batch(rows=5, length=300, columns=21, offset=2),
]
WEIGHT = torch.zeros(HIDDEN, dtype=torch.bfloat16)
HEAD_WEIGHT = torch.zeros(HEAD_DIM, dtype=torch.bfloat16)
K_CACHE, V_CACHE = (torch.zeros(4, KV_HEADS, BLOCK_SIZE, HEAD_DIM, dtype=torch.bfloat16) for _ in range(2))
COS_SIN = torch.zeros(9, HEAD_DIM)
GATE_UP, DOWN = torch.zeros(6, 32, HIDDEN).bfloat16(), torch.zeros(6, HIDDEN, 16).bfloat16()
CPU = torch.device("cpu")
INT4 = QuantizedWeight.empty(64, HIDDEN, encoding="int4", group_size=64, has_zeros=True, device=CPU)
WIDE = QuantizedWeight.empty(64, 4 * HIDDEN, encoding="int4", group_size=64, device=CPU)
FP8 = QuantizedWeight.empty(64, 4 * HIDDEN, encoding="fp8_e4m3", group_size=128, device=CPU)
INT4_GATE_UP = QuantizedWeight.empty(6, 32, HIDDEN, encoding="int4", group_size=32, device=CPU)
INT4_DOWN = QuantizedWeight.empty(6, HIDDEN, 16, encoding="int4", device=CPU)
COUNTS = torch.zeros(2, VOCAB, dtype=torch.int32)
PRODUCTS = FusedProducts("cpu")
DENSE = torch.zeros(HIDDEN, HIDDEN, dtype=torch.bfloat16)


def launch_rope(batch: Batch) -> object:
    position_ids = batch.slice_of(torch.int32)
    return apply_rope(batch.tensor(Q_HEADS, HEAD_DIM), batch.tensor(KV_HEADS, HEAD_DIM), position_ids, COS_SIN)


def launch_qk_norm_rope_store(batch: Batch) -> object:
    return qk_norm_rope_store(
        batch.tensor(Q_HEADS + 2 * KV_HEADS, HEAD_DIM),
        K_CACHE,
        V_CACHE,
        batch.slice_of(torch.int32),
        rotary=Rotary(position_ids=batch.slice_of(torch.int32), cos_sin=COS_SIN),
        norm=QKNorm(q_weight=HEAD_WEIGHT, k_weight=HEAD_WEIGHT, eps=1e-6, variant="llama"),
    )


def launch_attention(
    batch: Batch,
    *,
    prefill: bool,
    has_sinks: bool = False,
    caches: tuple[Tensor, Tensor] = (K_CACHE, V_CACHE),
    scales: KVScales = NO_SCALES,
) -> object:
    rows = batch.length if prefill else 1
    plan = plan_attention(
        query_start=torch.arange(batch.rows + 1, dtype=torch.int32) * rows,
        seq_lens=torch.full((batch.rows,), batch.length, dtype=torch.int32),
        block_table=torch.zeros(batch.rows, batch.columns, dtype=torch.int32),
        block_size=BLOCK_SIZE,
        device="cpu",
        is_prefill=torch.full((batch.rows,), prefill),
    )
    q = batch.tensor(Q_HEADS, HEAD_DIM).repeat(rows, 1, 1)
    # Wherever they lie in a checkpoint's memory.
    sinks = torch.zeros(batch.offset + Q_HEADS, dtype=q.dtype)[batch.offset :] if has_sinks else None
    return paged_attention(q, *caches, plan, scale=0.1, sinks=sinks, scales=scales)


def launch_attention_on_device(batch: Batch, *, prefill: bool) -> object:
    rows = batch.length if prefill else 1
    plan = plan_attention_on_device(
        DeviceMetadata(
            query_start=torch.zeros(batch.offset + batch.rows + 1, dtype=torch.int32)[batch.offset :],
            seq_lens=batch.slice_of(torch.int32),
            is_prefill=batch.slice_of(torch.int32),
            block_rows=batch.slice_of(torch.int32),
            block_table=torch.zeros(16, batch.columns, dtype=torch.int32),
        ),
        num_tokens=batch.rows * rows,
        has_decodes=not prefill,
        has_prefills=prefill,
        block_size=BLOCK_SIZE,
        memory=AttentionBuffers(
            max_seqs=16,
            max_tokens=8000,
            max_seq_len=2000,
            heads=[AttentionHeads(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)],
            dtype=torch.bfloat16,
            windows=[None],
            device="cpu",
        ),
    )
    return paged_attention(batch.tensor(Q_HEADS, HEAD_DIM).repeat(rows, 1, 1), K_CACHE, V_CACHE, plan, scale=0.1)


def launch_resolve_token_ids(batch: Batch) -> None:
    resolve_token_ids(batch.slice_of(torch.int32), batch.slice_of(torch.int64))


def launch_sample(batch: Batch) -> object:
    return sample(
        batch.tensor(VOCAB),
        temperatures=batch.slice_of(torch.float32),
        top_k=batch.slice_of(torch.int32),
        top_p=batch.slice_of(torch.float32),
        min_p=batch.slice_of(torch.float32),
        seeds=batch.slice_of(torch.int64),
        positions=batch.slice_of(torch.int32),
    )


def launch_fused_moe(batch: Batch) -> object:
    ids = torch.zeros(batch.offset + batch.rows, 2, dtype=torch.int32)[batch.offset :]
    return fused_moe(batch.tensor(HIDDEN), GATE_UP, DOWN, ids, ids.float(), activation="silu_and_mul")


def launch_quantized_layer(batch: Batch, weight: QuantizedWeight, *, is_invariant: bool) -> object:
    out, x = batch.tensor(64), batch.tensor(weight.in_features)
    return linear_quantized_triton(x, weight, WEIGHT[:64], out=out, is_invariant=is_invariant)


def launch_fp8_layer(batch: Batch) -> object:
    x = batch.tensor(FP8.in_features)
    return linear_fp8_triton(x, FP8, WEIGHT[:64], out=batch.tensor(64), is_invariant=False)


def launch_quantized_embedding(batch: Batch) -> object:
    ids = batch.slice_of(torch.int32)
    return embedding_quantized_triton(ids, INT4, dtype=torch.bfloat16, scale=batch.length / 7)


def launch_quantized_moe(batch: Batch) -> object:
    ids = torch.zeros(batch.offset + batch.rows, 2, dtype=torch.int32)[batch.offset :]
    return fused_moe_quantized_triton(
        batch.tensor(HIDDEN),
        INT4_GATE_UP,
        INT4_DOWN,
        ids,
        ids.float(),
        activation=ExpertActivation(),
        gate_up_bias=None,
        down_bias=None,
        out=batch.tensor(HIDDEN),
    )


def launch_fused_products(batch: Batch) -> object:
    """Launch the two last products of a layer and the first one of the next."""
    rows = batch.tensor(HIDDEN)
    gated = PRODUCTS.gated_linear(rows, torch.cat([DENSE, DENSE]), activation_and_mul=silu_and_mul)
    pending, _ = PRODUCTS.linear_add_norm(gated, DENSE, WEIGHT, residual=rows, norm_weight=WEIGHT, eps=1e-6)
    return PRODUCTS.linear(pending, DENSE)


def launch_mixture(batch: Batch) -> object:
    """Launch a router and its experts behind a product that leaves its norm, and the next product."""
    rows = batch.tensor(HIDDEN)
    pending, residual = PRODUCTS.linear_add_norm(rows, DENSE, WEIGHT, residual=rows, norm_weight=WEIGHT, eps=1e-6)
    router = FusedRouter(PRODUCTS, linear)
    routed = router.route(pending, DENSE[:6], experts_per_token=2, scoring="softmax", normalize=True)
    normalized, _ = fused_moe_add_norm(
        routed.rows,
        GATE_UP,
        DOWN,
        *routed.choice,
        activation="silu_and_mul",
        residual=residual,
        norm_weight=WEIGHT,
        eps=1e-6,
        grouping=routed.grouping,
    )
    return PRODUCTS.linear(normalized, DENSE)


def launch_penalties(batch: Batch) -> object:
    return apply_penalties(
        batch.tensor(VOCAB),
        slots=batch.slice_of(torch.int32),
        in_prompt=COUNTS.bool(),
        generated_counts=COUNTS,
        repetition=batch.slice_of(torch.float32),
        presence=batch.slice_of(torch.float32),
        frequency=batch.slice_of(torch.float32),
    )


OPS: dict[str, Callable[[Batch], Any]] = {
    "rms_norm": lambda batch: rms_norm(batch.tensor(HIDDEN), WEIGHT, 1e-6),
    "rms_norm of heads": lambda batch: rms_norm(batch.tensor(Q_HEADS, HEAD_DIM), HEAD_WEIGHT, 1e-6),
    "add_rms_norm": lambda batch: add_rms_norm(batch.tensor(HIDDEN), batch.tensor(HIDDEN), WEIGHT, 1e-6),
    "norm_add": lambda batch: norm_add(batch.tensor(HIDDEN), batch.tensor(HIDDEN), WEIGHT, 1e-6),
    "norm_add_norm": lambda batch: norm_add_norm(batch.tensor(HIDDEN), batch.tensor(HIDDEN), WEIGHT, WEIGHT, 1e-6),
    "silu_and_mul": lambda batch: silu_and_mul(batch.tensor(2 * HIDDEN)),
    "gelu_tanh_and_mul": lambda batch: gelu_tanh_and_mul(batch.tensor(2 * HIDDEN)),
    "apply_rope": launch_rope,
    "qk_norm_rope_store": launch_qk_norm_rope_store,
    "paged_decode": partial(launch_attention, prefill=False),
    "paged_decode with sinks": partial(launch_attention, prefill=False, has_sinks=True),
    "paged_prefill with sinks": partial(launch_attention, prefill=True, has_sinks=True),
    "paged_decode in fixed buffers": partial(launch_attention_on_device, prefill=False),
    "paged_prefill": partial(launch_attention, prefill=True),
    "paged_prefill in fixed buffers": partial(launch_attention_on_device, prefill=True),
    "resolve_token_ids": launch_resolve_token_ids,
    "linear_invariant": lambda batch: linear_invariant(batch.tensor(HIDDEN), WEIGHT.expand(64, -1).contiguous()),
    "moe_router": lambda batch: moe_router(batch.tensor(6), experts_per_token=2, scoring="softmax", normalize=True),
    "linear_argmax": lambda batch: linear_argmax(
        batch.tensor(HIDDEN), WEIGHT.expand(64, -1).contiguous(), vocab_size=64
    ),
    "linear_quantized": partial(launch_quantized_layer, weight=INT4, is_invariant=False),
    "linear_quantized, inputs divided": partial(launch_quantized_layer, weight=WIDE, is_invariant=False),
    "linear_quantized, batch-invariant": partial(launch_quantized_layer, weight=WIDE, is_invariant=True),
    "linear_fp8": launch_fp8_layer,
    "embedding_quantized": launch_quantized_embedding,
    "sample": launch_sample,
    "greedy": lambda batch: greedy(batch.tensor(VOCAB)),
    "apply_penalties": launch_penalties,
    "apply_bitmask": lambda batch: apply_bitmask(
        batch.tensor(VOCAB), batch.tensor(VOCAB // 32).int(), batch.slice_of(torch.int64)
    ),
    "count_tokens": lambda batch: count_tokens(COUNTS, batch.slice_of(torch.int32), batch.slice_of(torch.int64)),
    "topk_logprobs": lambda batch: topk_logprobs(batch.tensor(VOCAB), batch.slice_of(torch.int64), k=2),
}


@pytest.mark.parametrize("op", OPS)
def test_op_compiles_once_for_all_batches(op: str) -> None:
    with launch_only(90) as log:
        for batch in BATCHES:
            OPS[op](batch)
    variants = Counter(name for name, _ in log.variants)
    assert variants
    assert set(variants.values()) == {1}, f"variants: {dict(variants)}"


def test_fused_products_compile_one_variant_for_each_kind_of_product() -> None:
    with launch_only(90) as log:
        for batch in BATCHES:
            launch_fused_products(batch)
    assert [name for name, _ in log.variants] == ["_fused_product_kernel"] * 3
    assert len(log.launches) == 3 * len(BATCHES)


def test_mixtures_of_few_rows_compile_one_variant_of_each_of_their_kernels() -> None:
    with launch_only(90) as log:
        for batch in BATCHES:
            launch_mixture(batch)
    names = ["_fused_product_kernel", "_fused_router_kernel", *["_expert_products_kernel"] * 2, "_sum_pairs_kernel"]
    assert [name for name, _ in log.variants] == [*names, "_fused_product_kernel"]
    assert len(log.launches) == 6 * len(BATCHES)


@pytest.mark.parametrize(
    ("launch", "products"),
    [(launch_fused_moe, "_expert_products_kernel"), (launch_quantized_moe, "_quantized_expert_products_kernel")],
)
def test_experts_compile_their_two_products_and_all_else_once_for_all_batches(
    launch: Callable[[Batch], object], products: str
) -> None:
    with launch_only(90) as log:
        for batch in BATCHES:
            launch(batch)
    variants = Counter(name for name, _ in log.variants)
    assert variants.pop(products) == 2
    assert len(variants) == 2
    assert set(variants.values()) == {1}, f"variants: {dict(variants)}"


def test_experts_compile_few_tiles_where_bits_may_depend_on_the_batch() -> None:
    def count(tokens: list[int], *, is_invariant: bool) -> int:
        with launch_only(90) as log:
            for number in tokens:
                x, ids = torch.zeros(number, HIDDEN, dtype=torch.bfloat16), torch.zeros(number, 2, dtype=torch.int32)
                fused_moe_quantized_triton(
                    x,
                    INT4_GATE_UP,
                    INT4_DOWN,
                    ids,
                    ids.float(),
                    activation=ExpertActivation(),
                    gate_up_bias=None,
                    down_bias=None,
                    out=torch.empty_like(x),
                    is_invariant=is_invariant,
                )
        return sum("products" in name for name, _ in log.variants)

    # Gates and ups, and the second product, in tiles of 16, 32 and 64 rows.
    assert count([1, 3, 17, 40, 70, 120, 600], is_invariant=False) <= 6
    assert count([1, 17, 600], is_invariant=True) == 2


@pytest.mark.parametrize("weight", [WIDE, FP8], ids=["int4", "fp8"])
def test_layers_compile_a_tile_for_each_power_of_two_of_rows_and_one_where_bits_must_not_depend_on_them(
    weight: QuantizedWeight,
) -> None:
    multiply = linear_fp8_triton if weight is FP8 else linear_quantized_triton

    def count(rows: list[int], *, is_invariant: bool) -> int:
        with launch_only(90) as log:
            for number in rows:
                x, out = (torch.zeros(number, width, dtype=torch.bfloat16) for width in (weight.in_features, 64))
                multiply(x, weight, None, out=out, is_invariant=is_invariant)
        return sum("linear" in name for name, _ in log.variants)

    assert count([1, 5, 16, 17, 32, 33, 48, 64, 65, 100, 128, 129, 600], is_invariant=False) == 4
    assert count([1, 16, 33, 128, 600], is_invariant=True) == 1


def test_an_fp8_cache_compiles_once_for_all_batches_and_scales() -> None:
    k_cache, v_cache = (cache.to(torch.float8_e4m3fn) for cache in (K_CACHE, V_CACHE))
    with launch_only(90) as log:
        for batch, scales in zip(BATCHES, (KVScales(), KVScales(keys=0.1), KVScales(values=16.0)) * 2, strict=False):
            qkv = batch.tensor(Q_HEADS + 2 * KV_HEADS, HEAD_DIM)
            qk_norm_rope_store(qkv, k_cache, v_cache, batch.slice_of(torch.int32), scales=scales)
            for prefill in (False, True):
                launch_attention(batch, prefill=prefill, caches=(k_cache, v_cache), scales=scales)
    variants = Counter(name for name, _ in log.variants)
    assert len(variants) == 5, "a store, two phases of attention, and the work list of each"
    assert set(variants.values()) == {1}, f"variants: {dict(variants)}"

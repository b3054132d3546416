"""Every kernel in every configuration that ships, as launches to be compiled.

A case launches one kernel through its public op on a tiny batch: a variant depends on the model, on dtypes and on
modes, not on the batch. Adding an op is adding its cases to `SHIPPED_CASES`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from infer_kernels.checks.cases.attention.launches import (
    ATTENTION_CASES,
    FIRST_FP8_CAPABILITY,
    SHORT_NAMES,
    WORK_LISTS,
    launch_work_list,
)
from infer_kernels.checks.cases.moe.launches import moe_launches
from infer_kernels.checks.cases.product_launches import product_launches
from infer_kernels.checks.cases.qkv.fp8_launches import fp8_stores
from infer_kernels.checks.cases.quantized.launches import quantized_launches
from infer_kernels.checks.compiled.ahead_of_time import CompiledKernel, compile_afresh
from infer_kernels.gated_activations import gelu_tanh_and_mul, silu_and_mul
from infer_kernels.linear.linear_argmax import linear_argmax
from infer_kernels.linear.linear_invariant import linear_invariant
from infer_kernels.norm.add_rms_norm import add_rms_norm
from infer_kernels.norm.norm_add import norm_add
from infer_kernels.norm.norm_add_norm import norm_add_norm
from infer_kernels.norm.rms_norm import NormVariant, rms_norm
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store
from infer_kernels.qkv.rope import apply_rope
from infer_kernels.qkv.rope_batched import apply_rope_batched
from infer_kernels.qkv.store_kv import store_kv
from infer_kernels.qkv.transforms import QKNorm, Rotary
from infer_kernels.resolve_token_ids import resolve_token_ids
from infer_kernels.sampling import apply_bitmask, apply_penalties, count_tokens, greedy, sample, topk_logprobs

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCase:
    """One kernel in one configuration.

    Attributes:
        op: the public function.
        label: dtype, shape and mode.
        dtype: of the operands that are computed with.
        launch: calls the op on CPU tensors; to be called inside `compile_only`.
        kernel: which of the op's kernels is meant, by its name; None: it has one.
        first_capability: 89 for what devices before sm_89 cannot run, and are never asked to.
    """

    op: str
    label: str
    dtype: torch.dtype
    launch: Callable[[], object]
    kernel: str | None = None
    first_capability: int = 0

    def __str__(self) -> str:
        """The op and its label."""
        return f"{self.op}: {self.label}"


def compile_launch(launch: Callable[[], object], capability: int, *, kernel: str | None = None) -> CompiledKernel:
    """The one kernel that `launch` takes on an architecture, or of several the one called `kernel`.

    Of attention it is the one after that of its work list.

    Raises:
        triton.runtime.errors.OutOfResources: it does not fit shared memory.
    """
    with compile_afresh(capability) as log:
        launch()
    found = [each for each in log.compiled if kernel in (None, each.name)]
    *lists, compiled = found
    assert all("work_list" in other.name for other in lists)
    return compiled


def _case(
    op: str,
    dtype: torch.dtype,
    label: str,
    launch: Callable[[], object],
    kernel: str | None = None,
    *,
    first_capability: int = 0,
) -> LaunchCase:
    label = f"{SHORT_NAMES[dtype]}, {label}"
    if kernel is not None:
        label += f", {kernel.removesuffix('_kernel').strip('_').replace('_', ' ')}"
    return LaunchCase(op=op, label=label, dtype=dtype, launch=launch, kernel=kernel, first_capability=first_capability)


def _norms() -> Iterator[LaunchCase]:
    def rows(hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return torch.empty(3, hidden, dtype=dtype), torch.empty(hidden, dtype=dtype)

    def norm(hidden: int, dtype: torch.dtype, variant: NormVariant) -> object:
        x, weight = rows(hidden, dtype)
        return rms_norm(x, weight, 1e-6, variant=variant)

    def norm_heads(heads: int, head_dim: int, dtype: torch.dtype) -> object:
        x, weight = torch.empty(3, heads + 4, head_dim, dtype=dtype)[:, :heads], torch.empty(head_dim, dtype=dtype)
        return rms_norm(x, weight, 1e-6)

    def norm_all_heads(heads: int, head_dim: int, dtype: torch.dtype) -> object:
        x, weight = torch.empty(3, 3 * heads * head_dim, dtype=dtype), torch.empty(heads * head_dim, dtype=dtype)
        q = x[:, : heads * head_dim]
        return rms_norm(q, weight, 1e-6, out=q)

    def add(hidden: int, dtype: torch.dtype, variant: NormVariant) -> object:
        x, weight = rows(hidden, dtype)
        return add_rms_norm(x, x, weight, 1e-6, variant=variant)

    def add_after(hidden: int, dtype: torch.dtype) -> object:
        x, weight = rows(hidden, dtype)
        return norm_add(x, x, weight, 1e-6)

    def sandwich(hidden: int, dtype: torch.dtype) -> object:
        x, weight = rows(hidden, dtype)
        return norm_add_norm(x, x, weight, weight, 1e-6, variant="gemma")

    llama: NormVariant = "llama"
    gemma: NormVariant = "gemma"
    for dtype, hidden, variant in (
        (BF16, 64, llama),
        (BF16, 576, llama),
        (BF16, 2560, gemma),
        (FP16, 4096, llama),
        (BF16, 5376, gemma),
        (FP32, 5376, gemma),
    ):
        label = f"hidden {hidden}, {variant}"
        yield _case("rms_norm", dtype, label, partial(norm, hidden, dtype, variant))
        yield _case("add_rms_norm", dtype, label, partial(add, hidden, dtype, variant))
        if variant == "gemma":
            yield _case("norm_add_norm", dtype, label, partial(sandwich, hidden, dtype))
        else:
            yield _case("norm_add", dtype, label, partial(add_after, hidden, dtype))
    yield _case("norm_add", FP32, "hidden 5120, llama", partial(add_after, 5120, FP32))
    yield _case("rms_norm", BF16, "16 strided heads x 128, llama", partial(norm_heads, 16, 128, BF16))
    yield _case("rms_norm", BF16, "all of 40 heads x 128 in place, llama", partial(norm_all_heads, 40, 128, BF16))


def _gated() -> Iterator[LaunchCase]:
    for op in (silu_and_mul, gelu_tanh_and_mul):
        for dtype, intermediate in ((BF16, 512), (BF16, 14336), (FP32, 14336)):
            yield _case(
                op.__name__,
                dtype,
                f"intermediate {intermediate}",
                partial(op, torch.empty(3, 2 * intermediate, dtype=dtype)),
            )


MODEL_HEADS = ((9, 3, 64), (32, 32, 96), (64, 8, 128), (32, 16, 256))
"""(q_heads, kv_heads, head_dim) of small and large models of each head size."""
PARTIAL_ROTARY_HEADS = (((24, 8, 128), 96), ((32, 32, 64), 16), ((32, 32, 80), 20))
"""(q_heads, kv_heads, head_dim) and rotary_dim of models that rotate the first elements of each head alone."""


def _rope() -> Iterator[LaunchCase]:
    def flat(
        q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, *, rotary_dim: int | None = None
    ) -> object:
        q, k = (torch.empty(3, heads, head_dim, dtype=dtype) for heads in (q_heads, kv_heads))
        return apply_rope(q, k, torch.zeros(3, dtype=torch.int32), torch.empty(9, rotary_dim or head_dim))

    def batched(q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, *, per_sequence: bool) -> object:
        q, k = (torch.empty(2, heads, 3, head_dim, dtype=dtype) for heads in (q_heads, kv_heads))
        cos = torch.empty(2, 3, head_dim, dtype=dtype) if per_sequence else torch.empty(3, head_dim)
        return apply_rope_batched(q, k, cos, cos)

    for dtype, (q_heads, kv_heads, head_dim) in (
        *((BF16, heads) for heads in MODEL_HEADS),
        (FP32, MODEL_HEADS[-1]),
    ):
        label = f"heads {q_heads}/{kv_heads} x {head_dim}"
        model = (q_heads, kv_heads, head_dim, dtype)
        yield _case("apply_rope", dtype, label, partial(flat, *model))
        yield _case("apply_rope_batched", dtype, f"{label}, fp32 angles", partial(batched, *model, per_sequence=False))
    for (q_heads, kv_heads, head_dim), rotary_dim in PARTIAL_ROTARY_HEADS:
        label = f"heads {q_heads}/{kv_heads} x {head_dim}, {rotary_dim} rotated"
        partly = partial(flat, q_heads, kv_heads, head_dim, BF16, rotary_dim=rotary_dim)
        yield _case("apply_rope", BF16, label, partly)
    model = (32, 8, 128, BF16)
    yield _case(
        "apply_rope_batched",
        BF16,
        "heads 32/8 x 128, bf16 angles per sequence",
        partial(batched, *model, per_sequence=True),
    )


def _stores() -> Iterator[LaunchCase]:
    def caches(kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        k_cache, v_cache = (torch.empty(2, kv_heads, block_size, head_dim, dtype=dtype) for _ in range(2))
        return k_cache, v_cache

    def store(kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype) -> None:
        rows = torch.empty(3, kv_heads, head_dim, dtype=dtype)
        store_kv(rows, rows, *caches(kv_heads, head_dim, block_size, dtype), torch.zeros(3, dtype=torch.int32))

    def fused(
        q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, *, rotary_dim: int, variant: NormVariant | None
    ) -> object:
        weight, index = torch.empty(head_dim, dtype=dtype), torch.zeros(3, dtype=torch.int32)
        return qk_norm_rope_store(
            torch.empty(3, q_heads + 2 * kv_heads, head_dim, dtype=dtype),
            *caches(kv_heads, head_dim, 32 if head_dim == 256 else 64, dtype),
            index,
            rotary=Rotary(position_ids=index, cos_sin=torch.empty(9, rotary_dim)) if rotary_dim else None,
            norm=None if variant is None else QKNorm(q_weight=weight, k_weight=weight, eps=1e-6, variant=variant),
        )

    llama: NormVariant = "llama"
    gemma: NormVariant = "gemma"
    for dtype, kv_heads, head_dim, block_size in (
        (BF16, 3, 64, 64),
        (BF16, 8, 128, 64),
        (BF16, 16, 256, 32),
        (BF16, 8, 96, 5),
        (FP32, 8, 128, 64),
    ):
        cache = (kv_heads, head_dim, block_size, dtype)
        label = f"heads {kv_heads} x {head_dim}, blocks of {block_size}"
        yield _case("store_kv", dtype, label, partial(store, *cache))
    for dtype, (q_heads, kv_heads, head_dim), rotary_dim, variant in (
        *((BF16, heads, heads[2], None) for heads in MODEL_HEADS[:3]),
        (BF16, (16, 8, 128), 128, llama),
        (BF16, (4, 1, 256), 256, gemma),
        (BF16, (12, 12, 64), 0, None),
        (FP32, (4, 1, 256), 256, gemma),
        *((BF16, heads, rotary_dim, None) for heads, rotary_dim in PARTIAL_ROTARY_HEADS),
        (BF16, (16, 8, 128), 64, llama),
    ):
        model = (q_heads, kv_heads, head_dim, dtype)
        rope = "RoPE" if rotary_dim == head_dim else rotary_dim and f"RoPE of {rotary_dim}"
        modes = ", ".join(mode for mode in (variant and f"{variant} norm", rope) if mode) or "store alone"
        yield _case(
            "qk_norm_rope_store",
            dtype,
            f"heads {q_heads}/{kv_heads} x {head_dim}, {modes}",
            partial(fused, *model, rotary_dim=rotary_dim, variant=variant),
        )


def _fp8_stores() -> Iterator[LaunchCase]:
    for store in fp8_stores():
        case = _case(store.op, store.dtype, store.label, store.launch)
        yield replace(case, first_capability=FIRST_FP8_CAPABILITY)


def _sampling() -> Iterator[LaunchCase]:
    def draw(dtype: torch.dtype, *, top_k: bool = False, top_p: bool = False, min_p: bool = False) -> object:
        column = torch.ones(3)
        return sample(
            torch.zeros(3, 32000, dtype=dtype),
            temperatures=column,
            top_k=column.int() if top_k else None,
            top_p=column if top_p else None,
            min_p=column if min_p else None,
            seeds=column.long(),
            positions=column.int(),
        )

    def penalize(dtype: torch.dtype) -> object:
        column = torch.ones(3)
        return apply_penalties(
            torch.zeros(3, 32000, dtype=dtype),
            slots=column.int(),
            in_prompt=torch.zeros(2, 32000, dtype=torch.bool),
            generated_counts=torch.zeros(2, 32000, dtype=torch.int32),
            repetition=column,
            presence=column,
            frequency=column,
        )

    for dtype in (BF16, FP32):
        whole, cut = partial(draw, dtype), partial(draw, dtype, top_k=True, top_p=True, min_p=True)
        yield _case("sample", dtype, "any filters", whole, "_maxima_kernel")
        for kernel in ("_candidates_kernel", "_draw_kernel"):
            yield _case("sample", dtype, "no filter", whole, kernel)
            yield _case("sample", dtype, "all filters", cut, kernel)
        logits = torch.zeros(3, 32000, dtype=dtype)
        for kernel in ("_largest_of_chunk_kernel", "_join_largest_kernel"):
            yield _case("greedy", dtype, "vocab 32000", partial(greedy, logits), kernel)
        yield _case("apply_penalties", dtype, "vocab 32000", partial(penalize, dtype))
        logits, bits = torch.zeros(3, 32000, dtype=dtype), torch.zeros(2, 1000, dtype=torch.int32)
        masked = torch.zeros(2, dtype=torch.int64)
        yield _case("apply_bitmask", dtype, "vocab 32000", partial(apply_bitmask, logits, bits, masked))
        yield _case(
            "topk_logprobs",
            dtype,
            "vocab 32000",
            partial(topk_logprobs, torch.zeros(3, 32000, dtype=dtype), torch.zeros(3, dtype=torch.int64), k=0),
        )
    for kernel in ("_candidates_kernel", "_draw_kernel"):
        yield _case("sample", BF16, "top-k", partial(draw, BF16, top_k=True), kernel)
        yield _case("sample", BF16, "top-p", partial(draw, BF16, top_p=True), kernel)
    index = torch.zeros(3, dtype=torch.int64)
    counts = torch.zeros(2, 32000, dtype=torch.int32)
    yield LaunchCase(
        op="count_tokens", label="vocab 32000", dtype=torch.int32, launch=partial(count_tokens, counts, index, index)
    )


def _steps() -> Iterator[LaunchCase]:
    def resolve() -> None:
        resolve_token_ids(torch.zeros(3, dtype=torch.int32), torch.zeros(5, dtype=torch.int64))

    def layer(in_features: int, out_features: int, dtype: torch.dtype, *, biased: bool) -> object:
        weight, bias = torch.empty(out_features, in_features, dtype=dtype), torch.empty(out_features, dtype=dtype)
        return linear_invariant(torch.empty(3, in_features, dtype=dtype), weight, bias if biased else None)

    def head(
        rows: int, in_features: int, dtype: torch.dtype, *, biased: bool = False, soft_cap: float | None = None
    ) -> object:
        weight, bias = torch.empty(1000, in_features, dtype=dtype), torch.empty(1000, dtype=dtype)
        hidden = torch.empty(rows, in_features, dtype=dtype)
        return linear_argmax(hidden, weight, bias if biased else None, vocab_size=900, soft_cap=soft_cap)

    yield LaunchCase(op="resolve_token_ids", label="int64 tokens", dtype=torch.int32, launch=resolve)
    for dtype, in_features, biased in (
        (BF16, 4096, False),
        (BF16, 1000, True),
        (FP16, 4096, True),
        (FP32, 1000, True),
    ):
        label = f"{in_features} to 1536{', bias' if biased else ''}"
        shape = (in_features, 1536, dtype)
        yield _case("linear_invariant", dtype, label, partial(layer, *shape, biased=biased))
    kernel = "_linear_argmax_kernel"
    for rows in (16, 32, 64, 128, 256):
        for dtype in (BF16, FP16):
            yield _case("linear_argmax", dtype, f"{rows} rows of 4096", partial(head, rows, 4096, dtype), kernel)
    for rows, dtype, in_features in ((256, BF16, 1024), (256, BF16, 8192), (256, BF16, 1000), (256, FP32, 4096)):
        label = f"{rows} rows of {in_features}"
        full = partial(head, rows, in_features, dtype, biased=True, soft_cap=30.0)
        yield _case("linear_argmax", dtype, f"{label}, bias, soft cap", full, kernel)


def _products() -> Iterator[LaunchCase]:
    for case in product_launches():
        yield _case("fused_products", case.dtype, case.label, case.launch)


def _moe() -> Iterator[LaunchCase]:
    for case in moe_launches():
        yield _case(case.op, case.dtype, case.label, case.launch, case.kernel)


def _quantized() -> Iterator[LaunchCase]:
    for each in quantized_launches():
        yield _case(each.op, each.dtype, each.label, each.launch, each.kernel, first_capability=each.first_capability)


SHIPPED_CASES: tuple[LaunchCase, ...] = (
    *_norms(),
    *_gated(),
    *_rope(),
    *_stores(),
    *_fp8_stores(),
    *(
        LaunchCase(
            op=case.op,
            label=case.label,
            dtype=case.dtype,
            launch=case.launch,
            first_capability=case.first_capability,
        )
        for case in ATTENTION_CASES
    ),
    *(
        LaunchCase(op=op, label="one for all layers", dtype=torch.int32, launch=partial(launch_work_list, work))
        for op, work in WORK_LISTS.items()
    ),
    *_products(),
    *_moe(),
    *_quantized(),
    *_steps(),
    *_sampling(),
)
"""All of them, in the order of a layer."""

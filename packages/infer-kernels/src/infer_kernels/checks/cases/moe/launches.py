"""The kernels of mixtures of experts in the configurations that ship, as launches to be compiled."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from infer_kernels.checks.cases.launch_case import BF16, FP16, FP32, LaunchCase, launch_case
from infer_kernels.checks.cases.product_launches import pending_norm
from infer_kernels.integers import cdiv
from infer_kernels.linear import FusedProducts, linear
from infer_kernels.linear.fused_products_triton import MAX_ROWS
from infer_kernels.linear.product_tiles import choose_experts_tile
from infer_kernels.moe import FusedRouter, fused_moe, moe_router
from infer_kernels.moe.activation import ExpertActivation
from infer_kernels.moe.fused_moe_triton import (
    NORMED_COLUMNS,
    AddedResidual,
    expert_products_triton,
    sum_pairs_triton,
)
from infer_kernels.norm.rms_norm import NormVariant

TOKENS, EXPERTS, EXPERTS_PER_TOKEN = 3, 6, 4
MANY_ROWS = 1024
"""Rows of an expert: more than any tile has."""
ROUTERS: tuple[tuple[torch.dtype, int, int, int, NormVariant | None], ...] = (
    (BF16, 2880, 32, 4, "llama"),
    (BF16, 2048, 128, 8, "llama"),
    (BF16, 4096, 128, 8, "llama"),
    (BF16, 2048, 256, 8, "llama"),
    (BF16, 2048, 512, 10, "llama"),
    (BF16, 4096, 512, 10, "llama"),
    (BF16, 7168, 256, 8, "llama"),
    (FP16, 2880, 32, 4, "gemma"),
    (BF16, 2880, 32, 4, None),
)
"""Routers of gpt-oss, Qwen 3, 3.5 and Next, and of wide rows: dtype, hidden size, experts, experts of a row, norm."""


def moe_launches() -> Iterator[LaunchCase]:
    """Yield them in the order of a layer."""
    for dtype, experts in ((BF16, 32), (BF16, 128), (FP32, 512)):
        yield launch_case("moe_router", dtype, f"{experts} experts", partial(_route, experts, dtype))
    for dtype, hidden, experts, chosen, variant in ROUTERS:
        norm = "normalized rows" if variant is None else f"after a {variant} norm"
        label, launch = f"{hidden} to {chosen} of {experts} experts, {norm}", _route_fused
        yield launch_case("fused_router", dtype, label, partial(launch, hidden, experts, chosen, dtype, variant))
    for dtype, parts in ((BF16, 1), (BF16, 4), (FP16, 1)):
        label = f"hidden 2880, {'products' if parts == 1 else 'parts of products'} and the residual"
        yield launch_case("fused_moe_add_norm", dtype, label, partial(_sum, 2880, dtype, parts=parts))
    for kernel in ("_group_pairs_kernel", "_sum_pairs_kernel"):
        yield launch_case("fused_moe", BF16, "hidden 2048", partial(_layer, 2048, BF16), kernel)
    for kernel in ("_count_pairs_kernel", "_group_pairs_kernel"):
        yield launch_case("fused_moe", BF16, "many pairs", partial(_layer, 64, BF16, tokens=512), kernel)
    for dtype, hidden, intermediate in (
        (BF16, 2048, 768),
        (BF16, 2880, 2880),
        (FP16, 2048, 768),
        (BF16, 1000, 300),
        (FP32, 2048, 768),
    ):
        up = partial(_products, hidden, intermediate, dtype, activation=ExpertActivation())
        down = partial(_products, intermediate, hidden, dtype, activation=None)
        yield launch_case("fused_moe", dtype, f"{hidden} to {intermediate}, gates and ups", up)
        yield launch_case("fused_moe", dtype, f"{intermediate} to {hidden}, down", down)
    up = partial(_products, 2048, 768, BF16, activation=ExpertActivation(), rows_of_expert=MANY_ROWS)
    down = partial(_products, 768, 2048, BF16, activation=None, rows_of_expert=MANY_ROWS)
    yield launch_case("fused_moe", BF16, "2048 to 768, gates and ups, many rows", up)
    yield launch_case("fused_moe", BF16, "768 to 2048, down, many rows", down)


def _route(experts: int, dtype: torch.dtype) -> object:
    logits = torch.empty(TOKENS, experts, dtype=dtype)
    return moe_router(logits, experts_per_token=EXPERTS_PER_TOKEN, scoring="softmax", normalize=True)


def _route_fused(
    hidden: int, experts: int, experts_per_token: int, dtype: torch.dtype, variant: NormVariant | None
) -> object:
    x = torch.empty(TOKENS, hidden, dtype=dtype) if variant is None else pending_norm(TOKENS, hidden, dtype, variant)
    weight, bias = torch.empty(experts, hidden, dtype=dtype), torch.empty(experts, dtype=dtype)
    rule: dict[str, Any] = {"scoring": "softmax", "normalize": True, "experts_per_token": experts_per_token}
    return FusedRouter(FusedProducts("cpu"), linear).route(x, weight, bias, **rule)


def _sum(hidden: int, dtype: torch.dtype, *, parts: int) -> object:
    ids = torch.zeros(TOKENS, EXPERTS_PER_TOKEN, dtype=torch.int32)
    products = torch.empty(parts, ids.numel(), hidden, dtype=dtype if parts == 1 else FP32)
    out, squares = torch.empty(TOKENS, hidden, dtype=dtype), torch.empty(cdiv(hidden, NORMED_COLUMNS), MAX_ROWS)
    residual = AddedResidual(torch.empty_like(out), squares)
    return sum_pairs_triton(products, ids, ids.float(), experts=EXPERTS, out=out, residual=residual)


def _layer(hidden: int, dtype: torch.dtype, *, tokens: int = TOKENS) -> object:
    gate_up, down = torch.empty(EXPERTS, 32, hidden, dtype=dtype), torch.empty(EXPERTS, hidden, 16, dtype=dtype)
    ids = torch.zeros(tokens, EXPERTS_PER_TOKEN, dtype=torch.int32)
    x = torch.empty(tokens, hidden, dtype=dtype)
    return fused_moe(x, gate_up, down, ids, ids.float(), activation="silu_and_mul")


def _products(
    inputs: int, outputs: int, dtype: torch.dtype, *, activation: ExpertActivation | None, rows_of_expert: int = 1
) -> None:
    pairs = TOKENS * EXPERTS_PER_TOKEN
    width = outputs if activation is None else 2 * outputs
    x = torch.empty(pairs if activation is None else TOKENS, inputs, dtype=dtype)
    expert_products_triton(
        x,
        torch.empty(2, width, inputs, dtype=dtype),
        torch.empty(2, width, dtype=dtype),
        torch.empty(pairs, outputs, dtype=dtype),
        torch.zeros(pairs, dtype=torch.int32),
        torch.zeros(3, 2, dtype=torch.int32),
        tile=choose_experts_tile(x.device, dtype, inputs, outputs, rows_of_expert=rows_of_expert),
        activation=activation,
    )

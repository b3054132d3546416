"""The kernels of mixtures of experts in the configurations that ship, as launches to be compiled."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from infer_kernels.dense.product_tiles import choose_product_tile
from infer_kernels.moe import fused_moe, moe_router
from infer_kernels.moe.activation import SwiGLU
from infer_kernels.moe.fused_moe_triton import expert_products_triton

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
TOKENS, EXPERTS, EXPERTS_PER_TOKEN = 3, 6, 4


class MoeLaunch(NamedTuple):
    """One kernel in one configuration; the fields are those of a `LaunchCase`."""

    op: str
    dtype: torch.dtype
    label: str
    launch: Callable[[], object]
    kernel: str | None = None


def moe_launches() -> Iterator[MoeLaunch]:
    """Yield them in the order of a layer."""
    for dtype, experts in ((BF16, 32), (BF16, 128), (FP32, 512)):
        yield MoeLaunch("moe_router", dtype, f"{experts} experts", partial(_route, experts, dtype))
    for kernel in ("_group_pairs_kernel", "_sum_pairs_kernel"):
        yield MoeLaunch("fused_moe", BF16, "hidden 2048", partial(_layer, 2048, BF16), kernel)
    for kernel in ("_count_pairs_kernel", "_group_pairs_kernel"):
        yield MoeLaunch("fused_moe", BF16, "many pairs", partial(_layer, 64, BF16, tokens=512), kernel)
    for dtype, hidden, intermediate in (
        (BF16, 2048, 768),
        (BF16, 2880, 2880),
        (FP16, 2048, 768),
        (BF16, 1000, 300),
        (FP32, 2048, 768),
    ):
        up = partial(_products, hidden, intermediate, dtype, activation=SwiGLU())
        down = partial(_products, intermediate, hidden, dtype, activation=None)
        yield MoeLaunch("fused_moe", dtype, f"{hidden} to {intermediate}, gates and ups", up)
        yield MoeLaunch("fused_moe", dtype, f"{intermediate} to {hidden}, down", down)


def _route(experts: int, dtype: torch.dtype) -> object:
    logits = torch.empty(TOKENS, experts, dtype=dtype)
    return moe_router(logits, experts_per_token=EXPERTS_PER_TOKEN, scoring="softmax", normalize=True)


def _layer(hidden: int, dtype: torch.dtype, *, tokens: int = TOKENS) -> object:
    gate_up, down = torch.empty(EXPERTS, 32, hidden, dtype=dtype), torch.empty(EXPERTS, hidden, 16, dtype=dtype)
    ids = torch.zeros(tokens, EXPERTS_PER_TOKEN, dtype=torch.int32)
    x = torch.empty(tokens, hidden, dtype=dtype)
    return fused_moe(x, gate_up, down, ids, ids.float(), activation="silu_and_mul")


def _products(inputs: int, outputs: int, dtype: torch.dtype, *, activation: SwiGLU | None) -> None:
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
        tile=choose_product_tile(x.device, dtype, inputs, outputs),
        activation=activation,
    )

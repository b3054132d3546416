"""Fused products in the configurations that ship, as launches to be compiled."""

from collections.abc import Iterator
from functools import partial

import torch

from infer_kernels.checks.cases.launch_case import BF16, FP16, LaunchCase, launch_case
from infer_kernels.checks.self_check import EPS
from infer_kernels.gated_activations import gelu_tanh_and_mul, silu_and_mul
from infer_kernels.linear.fused_products import ActivationAndMul, FusedProducts
from infer_kernels.linear.fused_products_triton import MAX_ROWS, PendingNorm
from infer_kernels.norm.rms_norm import NormVariant

ROWS = 3


def product_launches() -> Iterator[LaunchCase]:
    """Yield them in the order of a layer: of 8B, 3B and 0.6B, and of a layer with biases that fills no tile."""
    for dtype, hidden, outputs in ((BF16, 4096, 6144), (BF16, 1024, 4096), (FP16, 4096, 6144)):
        for variant in ("llama", "gemma"):
            label = f"{hidden} to {outputs} after a {variant} norm"
            yield launch_case("fused_products", dtype, label, partial(_linear, hidden, outputs, dtype, variant=variant))
    yield launch_case("fused_products", BF16, "896 to 1152, bias", partial(_linear, 896, 1152, BF16, biased=True))
    yield launch_case("fused_products", BF16, "1008 to 1152, bias", partial(_linear, 1008, 1152, BF16, biased=True))
    for dtype, inputs, hidden in ((BF16, 4096, 4096), (BF16, 14336, 4096), (BF16, 2048, 1024), (FP16, 8192, 3072)):
        label = f"{inputs} to {hidden} and the residual"
        yield launch_case("fused_products", dtype, label, partial(_linear_add_norm, inputs, hidden, dtype))
    for dtype, hidden, size, gate in (
        (BF16, 4096, 14336, silu_and_mul),
        (BF16, 1024, 3072, silu_and_mul),
        (BF16, 2560, 10240, gelu_tanh_and_mul),
        (FP16, 4096, 14336, silu_and_mul),
    ):
        label = f"{hidden} to {size} gates and ups, {gate.__name__.removesuffix('_and_mul')}"
        yield launch_case("fused_products", dtype, label, partial(_gated, hidden, size, dtype, gate))


def pending_norm(rows: int, hidden: int, dtype: torch.dtype, variant: NormVariant) -> PendingNorm:
    """Return rows that await their norm, as a product leaves them."""
    return PendingNorm(
        rows=torch.empty(rows, hidden, dtype=dtype),
        squares=torch.empty(hidden // 64, MAX_ROWS),
        weight=torch.empty(hidden, dtype=dtype),
        eps=EPS,
        variant=variant,
    )


def _linear(
    inputs: int, outputs: int, dtype: torch.dtype, *, variant: NormVariant | None = None, biased: bool = False
) -> object:
    x = torch.empty(ROWS, inputs, dtype=dtype) if variant is None else pending_norm(ROWS, inputs, dtype, variant)
    bias = torch.empty(outputs, dtype=dtype) if biased else None
    return FusedProducts("cpu").linear(x, torch.empty(outputs, inputs, dtype=dtype), bias)


def _linear_add_norm(inputs: int, hidden: int, dtype: torch.dtype) -> object:
    return FusedProducts("cpu").linear_add_norm(
        torch.empty(ROWS, inputs, dtype=dtype),
        torch.empty(hidden, inputs, dtype=dtype),
        residual=torch.empty(ROWS, hidden, dtype=dtype),
        norm_weight=torch.empty(hidden, dtype=dtype),
        eps=EPS,
    )


def _gated(hidden: int, size: int, dtype: torch.dtype, gate: ActivationAndMul) -> object:
    weight = torch.empty(2 * size, hidden, dtype=dtype)
    return FusedProducts("cpu").gated_linear(
        pending_norm(ROWS, hidden, dtype, "llama"), weight, activation_and_mul=gate
    )

"""A layer's products in steps of few rows with the norm, gate or addition beside them, as an engine launches them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.cases.product_launches import product_launches
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.self_check import EPS, ModelOps, SelfCheck, draw, product_roundings
from infer_kernels.dispatch import TRITON_DEVICES
from infer_kernels.gated_activations import gelu_tanh_and_mul, silu_and_mul
from infer_kernels.integers import cdiv
from infer_kernels.linear.fused_products import (
    FusedProducts,
    apply_pending_norm,
    gated_linear_reference,
    linear_add_norm_reference,
)
from infer_kernels.linear.reference import linear_reference

if TYPE_CHECKING:
    from infer_kernels.linear.fused_products_triton import PendingNorm

ROWS = (1, 7, 16)
MAX_OUTPUTS = 384
"""Outputs whose weights are drawn; larger weights repeat them, and must give the same bits for each copy."""
GATES = {"silu_and_mul": silu_and_mul, "gelu_tanh_and_mul": gelu_tanh_and_mul}


@dataclass(frozen=True, slots=True)
class Repeated:
    """A weight, a bias, or rows of a residual stream, that repeats a part.

    Attributes:
        part: on the host, at most `MAX_OUTPUTS` outputs.
        whole: on the device.
    """

    part: Tensor
    whole: Tensor

    @classmethod
    def along(cls, dimension: int, part: Tensor, size: int, device: torch.device) -> "Repeated":
        """Repeat `part` to `size`; where no kernel multiplies, which sizes choose, it is the whole."""
        copies = cdiv(size, part.shape[dimension]) if device.type in TRITON_DEVICES else 1
        whole = part.to(device).repeat(*(copies if each == dimension else 1 for each in range(part.dim())))
        return cls(part, whole.narrow(dimension, 0, min(size, whole.shape[dimension])).contiguous())


@dataclass(frozen=True, slots=True)
class _Product:
    """A result [rows, outputs] on the device, the first outputs of its reference, and the number of inputs."""

    actual: Tensor
    expected: Tensor
    inputs: int


def product_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model's products, at few rows."""
    for rows in ROWS:
        yield SelfCheck(op="fused_products", label=f"{rows} rows", run=partial(_check_layer, ops, rows=rows))


def repeated_product_check(ops: ModelOps, *, times: int) -> SelfCheck:
    """Return a check that joins the same sums again and again: whichever program is the last, bits are equal."""
    run = partial(_check_repeated, ops, times=times)
    return SelfCheck(op="fused_products", label=f"{times} joins with equal bits", run=run)


def repeated_weight(ops: ModelOps, outputs: int, inputs: int, device: torch.device, *, seed: int = 0) -> Repeated:
    """Return random weights of a layer whose rows repeat."""
    part = draw(min(outputs, MAX_OUTPUTS), inputs, dtype=torch.float32, seed=seed) * inputs**-0.5
    return Repeated.along(0, part.to(ops.dtype), outputs, device)


def repeated_bias(weight: Repeated) -> Repeated:
    """Return a random bias for the outputs of a layer, which repeats where their weights do."""
    bias = draw(len(weight.part), dtype=weight.part.dtype)
    return Repeated.along(0, bias, len(weight.whole), weight.whole.device)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's weight, and its bias if it has one."""

    weight: Repeated
    bias: Repeated | None

    @property
    def whole(self) -> tuple[Tensor, Tensor | None]:
        """Both on the device."""
        return self.weight.whole, None if self.bias is None else self.bias.whole

    @property
    def part(self) -> tuple[Tensor, Tensor | None]:
        """Both on the host, of the outputs that are drawn."""
        return self.weight.part, None if self.bias is None else self.bias.part


def _check_layer(ops: ModelOps, device: torch.device, *, rows: int) -> None:
    # All are launched before one is compared: what is launched is compiled, and kept for the engine.
    for product in list(_products(ops, device, rows=rows)):
        width, roundings = product.expected.shape[1], product_roundings(ops.dtype, product.inputs)
        assert_within_roundings(product.actual[:, :width].cpu(), product.expected, roundings=roundings)
        others, before = product.actual[:, width:], product.actual[:, :-width]
        assert torch.equal(others, before), "equal weights have other bits"


def _products(ops: ModelOps, device: torch.device, *, rows: int) -> Iterator[_Product]:
    """Yield a layer's products: behind its own first norm, then each that ends a sublayer with the one that follows."""
    products, heads = FusedProducts(device), ops.q_heads * ops.head_dim
    qkv = _layer(repeated_weight(ops, heads + 2 * ops.kv_heads * ops.head_dim, ops.hidden_size, device), ops.qkv_bias)
    output = _layer(repeated_weight(ops, ops.hidden_size, heads, device), ops.output_bias)
    yield _linear(products, draw(rows, ops.hidden_size, dtype=ops.dtype), qkv)
    yield from _sublayer(ops, products, draw(rows, heads, dtype=ops.dtype), output, qkv)
    if ops.activation is not None:
        inner = ops.intermediate_size
        gates, ups = (
            _layer(repeated_weight(ops, inner, ops.hidden_size, device, seed=seed), ops.mlp_bias) for seed in (0, 1)
        )
        down = _layer(repeated_weight(ops, ops.hidden_size, inner, device), ops.mlp_bias)
        yield from _sublayer(
            ops, products, draw(rows, heads, dtype=ops.dtype), output, _join(gates, ups), is_gated=True
        )
        yield from _sublayer(ops, products, draw(rows, inner, dtype=ops.dtype), down, qkv)


def _layer(weight: Repeated, has_bias: bool) -> _Layer:  # noqa: FBT001 - what its name says
    return _Layer(weight, repeated_bias(weight) if has_bias else None)


def _join(gates: _Layer, ups: _Layer) -> _Layer:
    """Return one layer with the outputs of both."""

    def join(first: Repeated, second: Repeated) -> Repeated:
        return Repeated(torch.cat([first.part, second.part]), torch.cat([first.whole, second.whole]))

    bias = None if gates.bias is None or ups.bias is None else join(gates.bias, ups.bias)
    return _Layer(join(gates.weight, ups.weight), bias)


def _linear(products: FusedProducts, x: Tensor, layer: _Layer) -> _Product:
    actual = products.linear(x.to(layer.weight.whole.device), *layer.whole)
    return _Product(actual, linear_reference(x, *layer.part), x.shape[1])


def _sublayer(
    ops: ModelOps, products: FusedProducts, x: Tensor, last: _Layer, following: _Layer, *, is_gated: bool = False
) -> Iterator[_Product]:
    """Yield the product that ends a sublayer, of inputs x, and the one that follows its norm."""
    device, hidden, rows = following.weight.whole.device, ops.hidden_size, len(x)
    width = len(last.weight.part)
    pending: Tensor | PendingNorm = draw(rows, hidden, dtype=ops.dtype).to(device)
    if ops.has_sandwich_norms or ops.has_post_norms:
        yield _linear(products, x, last)
    else:
        residual = Repeated.along(1, draw(rows, width, dtype=ops.dtype), hidden, device)
        norm_weight, variant = draw(residual.whole.shape[1], dtype=ops.dtype), ops.norm or "llama"
        normalized, total = products.linear_add_norm(
            x.to(device),
            *last.whole,
            residual=residual.whole,
            norm_weight=norm_weight.to(device),
            eps=EPS,
            variant=variant,
        )
        _, expected = linear_add_norm_reference(
            x, *last.part, residual=residual.part, norm_weight=norm_weight[:width], eps=EPS, variant=variant
        )
        yield _Product(total, expected, x.shape[1])
        if residual.whole.shape[1] == hidden:
            pending = normalized
    rows_read = apply_pending_norm(pending).cpu()
    if is_gated:
        gate = GATES[ops.activation or "silu_and_mul"]
        actual = products.gated_linear(pending, *following.whole, activation_and_mul=gate)
        expected = gated_linear_reference(rows_read, *following.part, activation_and_mul=gate)
    else:
        actual, expected = products.linear(pending, *following.whole), linear_reference(rows_read, *following.part)
    yield _Product(actual, expected, hidden)


def _check_repeated(ops: ModelOps, device: torch.device, *, times: int) -> None:
    inputs = ops.intermediate_size
    x, weight = draw(7, inputs, dtype=ops.dtype).to(device), repeated_weight(ops, MAX_OUTPUTS, inputs, device).whole
    products = FusedProducts(device)
    first = products.linear(x, weight)
    is_other = torch.zeros((), dtype=torch.bool, device=device)
    for _ in range(times):
        is_other |= (products.linear(x, weight) != first).any()
    assert not is_other, "other bits"


PRODUCTS = OpCases(
    ops=("gated_linear", "linear_add_norm"),
    checks=product_checks,
    repeated_checks=lambda ops, times: [repeated_product_check(ops, times=times)],
    launches=product_launches,
)

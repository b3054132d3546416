"""A layer's products at its own sizes, with gates, additions and norms, as steps of few rows compute them.

How a product is divided over the programs of a GPU depends on its size, so sizes are the model's. Two things keep the
checks cheap: rows of a weight lie over each other in memory, 16 elements apart, and some outputs are compared, not all.

memory   |row 0 . . . . . . . .|
                |row 1 . . . . . . . .|
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from infer_kernels import FusedProducts, PendingNorm, gated_activations, reference
from infer_kernels.dispatch import TRITON_DEVICES
from infer_kernels.selftest.check import EPS, ModelOps, SelfCheck, draw, product_roundings
from infer_kernels.testing.closeness import assert_within_roundings

ROWS = (1, 16)
NUM_COMPARED = 383
"""Outputs, spread over all; where no kernel divides them, there are no more."""
DISTANCE = 16
"""Elements between the rows of a weight, which kernels read 16 at a time."""


def product_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a layer's products for few rows; norms are fused where layers have them before products."""
    for rows in ROWS:
        run = partial(_check_products, ops, rows=rows)
        yield SelfCheck(op="FusedProducts", label=f"{rows} rows, at the layers' sizes", run=run)


def _check_products(ops: ModelOps, device: torch.device, *, rows: int) -> None:
    layer = _Layer(ops, device, rows)
    _launch_products(layer, ops, rows)
    layer.compare()


def _launch_products(layer: "_Layer", ops: ModelOps, rows: int) -> None:
    hidden, heads = ops.hidden_size, ops.q_heads * ops.head_dim
    all_heads = heads + 2 * ops.kv_heads * ops.head_dim
    layer.linear(draw(rows, hidden, dtype=ops.dtype), all_heads)
    inner = [heads] if ops.activation is None else [heads, ops.intermediate_size]
    if ops.norm is None or ops.has_sandwich_norms or ops.has_post_norms:
        for in_features in inner:
            layer.linear(draw(rows, in_features, dtype=ops.dtype), hidden)
        layer.gated_linear(draw(rows, hidden, dtype=ops.dtype))
        return
    for in_features in inner:
        layer.linear_add_norm(draw(rows, in_features, dtype=ops.dtype), all_heads)


class _Layer:
    """Products of `rows` rows on a device and their references on the host, which are compared when all are there."""

    def __init__(self, ops: ModelOps, device: torch.device, rows: int) -> None:
        self._ops = ops
        self._device = device
        self._rows = rows
        self._products = FusedProducts(device)
        self._found: list[tuple[Tensor, Tensor, float]] = []

    def compare(self) -> None:
        """Raise `AssertionError` unless all products are those of their references."""
        for actual, expected, roundings in self._found:
            assert_within_roundings(actual.cpu(), expected, roundings=roundings)

    def linear(self, x: Tensor, num_outputs: int) -> None:
        """Launch a product."""
        weight, moved, chosen = self._weight(num_outputs, x.shape[1])
        actual = self._products.linear(x.to(self._device), moved)
        self._add(actual[:, chosen], reference.linear_reference(x, weight[chosen]), x.shape[1])

    def gated_linear(self, x: Tensor, pending: Tensor | PendingNorm | None = None) -> None:
        """Launch the gated product of `x`, which is `pending` on the device, if the model has one."""
        if self._ops.activation is None:
            return
        activation_and_mul = getattr(gated_activations, self._ops.activation)
        weight, moved, chosen = self._weight(self._ops.intermediate_size, x.shape[1], copies=2)
        actual = self._products.gated_linear(
            x.to(self._device) if pending is None else pending, moved, activation_and_mul=activation_and_mul
        )
        both = torch.cat((weight[chosen], weight[len(weight) // 2 + chosen]))
        expected = reference.gated_linear_reference(x, both, activation_and_mul=activation_and_mul)
        self._add(actual[:, chosen], expected, x.shape[1])

    def linear_add_norm(self, x: Tensor, num_outputs: int) -> None:
        """Launch a product that is added to the residual stream, then what reads its norm: another, and a gate."""
        ops = self._ops
        assert ops.norm is not None
        residual = draw(self._rows, ops.hidden_size, dtype=ops.dtype, seed=1)
        norm_weight = draw(ops.hidden_size, dtype=ops.dtype)
        weight, moved, chosen = self._weight(ops.hidden_size, x.shape[1])
        residual = residual[:, : len(weight)].contiguous()
        norm_weight = norm_weight[: len(weight)]
        pending, total = self._products.linear_add_norm(
            x.to(self._device),
            moved,
            residual=residual.to(self._device),
            norm_weight=norm_weight.to(self._device),
            eps=EPS,
            variant=ops.norm,
        )
        product = reference.linear_reference(x, weight[chosen]).float()
        self._add(total[:, chosen], (product + residual[:, chosen].float()).to(ops.dtype), x.shape[1])
        normalized = reference.rms_norm_reference(total.cpu(), norm_weight, EPS, variant=ops.norm)
        weight, moved, chosen = self._weight(num_outputs, len(norm_weight))
        actual = self._products.linear(pending, moved)
        self._add(actual[:, chosen], reference.linear_reference(normalized, weight[chosen]), len(norm_weight))
        self.gated_linear(normalized, pending)

    def _weight(self, num_outputs: int, in_features: int, *, copies: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """Return a weight [copies * outputs, in_features] on the host and on the device, and the compared outputs."""
        if self._device.type not in TRITON_DEVICES:
            num_outputs = min(num_outputs, NUM_COMPARED)
        num_rows = copies * num_outputs
        memory = (draw(DISTANCE * num_rows + in_features, dtype=torch.float32) * in_features**-0.5).to(self._ops.dtype)
        host, moved = (
            each.as_strided((num_rows, in_features), (DISTANCE, 1)) for each in (memory, memory.to(self._device))
        )
        return host, moved, torch.linspace(0, num_outputs - 1, min(num_outputs, NUM_COMPARED)).long()

    def _add(self, actual: Tensor, expected: Tensor, in_features: int) -> None:
        self._found.append((actual, expected, product_roundings(self._ops.dtype, in_features)))

"""Gradients of the plain-torch paths equal those of the references: a model can be trained through them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import (
    add_rms_norm,
    apply_rope,
    causal_attention,
    gelu_tanh_and_mul,
    linear,
    norm_add,
    norm_add_norm,
    rms_norm,
    silu_and_mul,
)
from infer_kernels.reference import (
    add_rms_norm_reference,
    apply_rope_reference,
    gelu_tanh_and_mul_reference,
    norm_add_norm_reference,
    norm_add_reference,
    paged_attention_reference,
    rms_norm_reference,
    silu_and_mul_reference,
)

Op = Callable[..., Tensor | tuple[Tensor, ...]]
X, RESIDUAL, WEIGHT = (5, 8), (5, 8), (8,)
POSITIONS = torch.tensor([0, 3, 1, 2, 4])
COS_SIN = torch.randn(5, 8)


def rope(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return apply_rope(q, k, POSITIONS, COS_SIN)


def rope_reference(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return apply_rope_reference(q, k, POSITIONS, COS_SIN)


def gradients(op: Op, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    results = op(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum((result * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum() for result in results)
    assert isinstance(loss, Tensor)
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("variant", ["llama", "gemma"])
@pytest.mark.parametrize(
    ("op", "reference", "shapes"),
    [
        (rms_norm, rms_norm_reference, [X, WEIGHT]),
        (add_rms_norm, add_rms_norm_reference, [X, RESIDUAL, WEIGHT]),
        (norm_add_norm, norm_add_norm_reference, [X, RESIDUAL, WEIGHT, WEIGHT]),
        (norm_add, norm_add_reference, [X, RESIDUAL, WEIGHT]),
    ],
)
def test_norm_gradients_equal_references(op: Op, reference: Op, shapes: list[tuple[int, ...]], variant: str) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    actual = gradients(lambda *tensors: op(*tensors, 1e-6, variant=variant), inputs)
    torch.testing.assert_close(actual, gradients(lambda *tensors: reference(*tensors, 1e-6, variant=variant), inputs))


@pytest.mark.parametrize(
    ("op", "reference", "shapes"),
    [
        (rope, rope_reference, [(5, 3, 8), (5, 1, 8)]),
        (silu_and_mul, silu_and_mul_reference, [(5, 8)]),
        (gelu_tanh_and_mul, gelu_tanh_and_mul_reference, [(5, 8)]),
        (linear, lambda x, weight, bias: x @ weight.T + bias, [(5, 8), (3, 8), (3,)]),
    ],
)
def test_gradients_equal_references(op: Op, reference: Op, shapes: list[tuple[int, ...]]) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(gradients(op, inputs), gradients(reference, inputs))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_causal_attention_gradients_equal_reference(
    window: int | None, soft_cap: float | None, *, has_sinks: bool
) -> None:
    options: dict[str, Any] = {"scale": 0.3, "window": window, "soft_cap": soft_cap}

    def reference(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        return paged_attention_reference(
            q,
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            query_start=torch.tensor([0, 7]),
            seq_lens=torch.tensor([7]),
            block_table=torch.tensor([[0]]),
            sinks=sinks,
            **options,
        )

    def op(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        return causal_attention(q, k, v, **options, sinks=sinks)

    inputs = [torch.randn(7, heads, 16) for heads in (4, 2, 2)] + [torch.randn(4)] * has_sinks
    torch.testing.assert_close(gradients(op, inputs), gradients(reference, inputs))

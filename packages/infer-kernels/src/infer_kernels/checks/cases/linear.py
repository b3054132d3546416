"""Dense layers, and the LM head with greedy decoding. Quantized layers are in `quantized/`, fused in `products.py`."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import linear_argmax, linear_invariant, reference
from infer_kernels.checks.cases.launch_case import BF16, FP16, FP32, LaunchCase, launch_case
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.op_call import EQUAL, OpCall
from infer_kernels.checks.self_check import ModelOps, SelfCheck, draw, product_roundings

ROWS = (1, 7, 65)
MANY_ROWS = 1536
"""Rows that sm_90 multiplies in larger tiles."""
MAX_OUTPUTS = 384
MAX_TOKENS = 1024
LAYERS = ((1, 57, 20), (65, 410, 13), (130, 100, 64))
"""Odd ones: [rows, in_features, out_features]."""
HEADS = ((1, 57, 100), (17, 410, 103), (65, 102, 50), (256, 100, 33), (300, 64, 9))
"""Odd ones: [rows, in_features, vocab]."""


def linear_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model's dense layers and its head, at few and at many rows."""
    for in_features in dict.fromkeys((ops.hidden_size, ops.intermediate_size, ops.q_heads * ops.head_dim)):
        for rows in ROWS:
            yield SelfCheck(
                op="linear",
                label=f"{rows} rows, {in_features} inputs",
                run=partial(_check_linear, ops, rows=rows, in_features=in_features),
            )
    for rows in ROWS:
        yield SelfCheck(op="linear_argmax", label=f"{rows} rows", run=partial(_check_linear_argmax, ops, rows=rows))


def linear_launches() -> Iterator[LaunchCase]:
    """Yield batch-invariant layers, and heads by their rows."""
    for dtype, in_features, biased in (
        (BF16, 4096, False),
        (BF16, 1000, True),
        (FP16, 4096, True),
        (FP32, 1000, True),
    ):
        label = f"{in_features} to 1536{', bias' if biased else ''}"
        launch = partial(_launch_layer, in_features, 1536, dtype, biased=biased)
        yield launch_case("linear_invariant", dtype, label, launch)
    launch = partial(_launch_layer, 4096, 1536, BF16, biased=False, rows=MANY_ROWS)
    yield launch_case("linear_invariant", BF16, "4096 to 1536, many rows", launch)
    kernel = "_linear_argmax_kernel"
    for rows in (16, 32, 64, 128, 256):
        for dtype in (BF16, FP16):
            launch = partial(_launch_head, rows, 4096, dtype)
            yield launch_case("linear_argmax", dtype, f"{rows} rows of 4096", launch, kernel)
    for rows, dtype, in_features in ((256, BF16, 1024), (256, BF16, 8192), (256, BF16, 1000), (256, FP32, 4096)):
        label = f"{rows} rows of {in_features}"
        launch = partial(_launch_head, rows, in_features, dtype, biased=True, soft_cap=30.0)
        yield launch_case("linear_argmax", dtype, f"{label}, bias, soft cap", launch, kernel)


def linear_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield layers, batch-invariant ones too, and heads at odd shapes."""
    for rows, in_features, out_features in LAYERS:
        weight = (draw(out_features, in_features, dtype=torch.float32) * in_features**-0.5).to(dtype)
        for op in ("linear", "linear_invariant"):
            yield OpCall(
                op=op,
                label=f"{dtype}, {rows} rows, {in_features} to {out_features}",
                tensors=(draw(rows, in_features, dtype=dtype), weight, draw(out_features, dtype=dtype)),
                close=partial(assert_within_roundings, roundings=8.0),
            )
    for rows, in_features, vocab in HEADS:
        generator = torch.Generator().manual_seed(rows)
        # Whole numbers: sums are exact in any order, so that ids are equal.
        whole = (
            torch.randint(-2, 3, shape, generator=generator).to(dtype)
            for shape in ((rows, in_features), (vocab, in_features), (vocab,))
        )
        yield OpCall(
            op="linear_argmax",
            label=f"{dtype}, {rows} rows, {in_features} to {vocab}",
            tensors=tuple(whole),
            options={"vocab_size": vocab - 3},
            close=EQUAL,
        )


def _draw_weight(ops: ModelOps, out_features: int, in_features: int) -> Tensor:
    weight: Tensor = draw(out_features, in_features, dtype=torch.float32) * in_features**-0.5
    return weight.to(ops.dtype)


def _check_linear(ops: ModelOps, device: torch.device, *, rows: int, in_features: int) -> None:
    x = draw(rows, in_features, dtype=ops.dtype)
    weight = _draw_weight(ops, MAX_OUTPUTS, in_features)
    actual = infer_kernels.linear(x.to(device), infer_kernels.prepack(weight.to(device)))
    expected = reference.linear_invariant_reference(x, weight)
    assert_within_roundings(actual.cpu(), expected, roundings=product_roundings(ops.dtype, in_features))


def _check_linear_argmax(ops: ModelOps, device: torch.device, *, rows: int) -> None:
    """Rounding may choose among the largest logits: the chosen one is as large as the largest."""
    num_tokens = min(ops.vocab_size, MAX_TOKENS)
    hidden = draw(rows, ops.hidden_size, dtype=ops.dtype)
    weight = _draw_weight(ops, num_tokens + 3, ops.hidden_size)
    weight[num_tokens:] = hidden[0]  # padding of the vocabulary, with the largest logit
    chosen, largest = infer_kernels.linear_argmax(hidden.to(device), weight.to(device), vocab_size=num_tokens)
    chosen = chosen.cpu()
    assert int(chosen.min()) >= 0, "ids below 0"
    assert int(chosen.max()) < num_tokens, "ids past the vocabulary"
    right = reference.linear_invariant_reference(hidden, weight)[:, :num_tokens]
    roundings = product_roundings(ops.dtype, ops.hidden_size)
    for own in (right.gather(1, chosen[:, None])[:, 0], largest.cpu().to(ops.dtype)):
        assert_within_roundings(own, right.amax(1), roundings=roundings)


def _launch_layer(in_features: int, out_features: int, dtype: torch.dtype, *, biased: bool, rows: int = 3) -> object:
    weight, bias = torch.empty(out_features, in_features, dtype=dtype), torch.empty(out_features, dtype=dtype)
    return linear_invariant(torch.empty(rows, in_features, dtype=dtype), weight, bias if biased else None)


def _launch_head(
    rows: int, in_features: int, dtype: torch.dtype, *, biased: bool = False, soft_cap: float | None = None
) -> object:
    weight, bias = torch.empty(1000, in_features, dtype=dtype), torch.empty(1000, dtype=dtype)
    hidden = torch.empty(rows, in_features, dtype=dtype)
    return linear_argmax(hidden, weight, bias if biased else None, vocab_size=900, soft_cap=soft_cap)


LINEAR = OpCases(
    ops=("linear", "linear_invariant", "linear_argmax"),
    checks=linear_checks,
    launches=linear_launches,
    calls=linear_calls,
)

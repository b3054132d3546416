"""Ops on rows of hidden states: embedding, norms, gated activations, dense layers."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import reference
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.self_check import EPS, ModelOps, SelfCheck, draw, misaligned, product_roundings

ROWS = (1, 7, 65)
MAX_EMBEDDING_ROWS = 4096
MAX_OUTPUTS = 384
MAX_TOKENS = 1024


def row_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model's row ops, at few and at many rows."""
    yield SelfCheck(op="embedding", label="ids at both ends of the table", run=partial(_check_embedding, ops))
    yield SelfCheck(op="resolve_token_ids", label="known and pending ids", run=_check_resolved_ids)
    for name, num_inputs, num_weights in _norms(ops):
        for rows in ROWS:
            yield SelfCheck(
                op=name,
                label=f"{rows} rows of {ops.hidden_size}",
                run=partial(_check_norm, ops, name, num_inputs, num_weights, rows=rows, place=torch.Tensor.to),
            )
    if ops.norms_all_heads:
        for name, heads in (("query", ops.q_heads), ("key", ops.kv_heads)):
            label = f"all {heads} {name} heads, in place"
            yield SelfCheck(op="rms_norm", label=label, run=partial(_check_norm_of_heads, ops, heads=heads))
    if ops.activation is not None:
        for rows in ROWS:
            yield SelfCheck(
                op=ops.activation,
                label=f"{rows} rows of {ops.intermediate_size}",
                run=partial(_check_activation, ops, ops.activation, rows=rows, place=torch.Tensor.to),
            )
    for in_features in dict.fromkeys((ops.hidden_size, ops.intermediate_size, ops.q_heads * ops.head_dim)):
        for rows in ROWS:
            yield SelfCheck(
                op="linear",
                label=f"{rows} rows, {in_features} inputs",
                run=partial(_check_linear, ops, rows=rows, in_features=in_features),
            )
    for rows in ROWS:
        yield SelfCheck(op="linear_argmax", label=f"{rows} rows", run=partial(_check_linear_argmax, ops, rows=rows))


def misaligned_row_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the same of rows that start at odd addresses, for which kernels are compiled again."""
    for name, num_inputs, num_weights in _norms(ops):
        yield SelfCheck(
            op=name,
            label="misaligned rows",
            run=partial(_check_norm, ops, name, num_inputs, num_weights, rows=7, place=misaligned),
        )
    if ops.activation is not None:
        yield SelfCheck(
            op=ops.activation,
            label="misaligned rows",
            run=partial(_check_activation, ops, ops.activation, rows=7, place=misaligned),
        )


def _norms(ops: ModelOps) -> Iterator[tuple[str, int, int]]:
    """Yield (op, its number of inputs, its number of weights)."""
    if ops.norm is None:
        return
    yield "rms_norm", 1, 1
    if ops.has_sandwich_norms:
        yield "norm_add_norm", 2, 2
    elif ops.has_post_norms:
        yield "norm_add", 2, 1
    else:
        yield "add_rms_norm", 2, 1


def _check_embedding(ops: ModelOps, device: torch.device) -> None:
    num_rows = min(ops.vocab_size, MAX_EMBEDDING_ROWS)
    weight = draw(num_rows, ops.hidden_size, dtype=ops.dtype)
    ids = torch.tensor([0, num_rows - 1, num_rows // 2, 0], dtype=torch.int32)
    scale = torch.tensor(ops.embedding_scale, dtype=ops.dtype).item()
    actual = infer_kernels.embedding(ids.to(device), weight.to(device), scale=scale)
    _compare(actual, reference.embedding_reference(ids, weight, scale=scale))


def _check_resolved_ids(device: torch.device) -> None:
    ids = torch.tensor([5, -1, 0, -65, -2], dtype=torch.int32)
    latest = torch.randint(100_000, (65,))
    actual = ids.to(device)
    infer_kernels.resolve_token_ids(actual, latest.to(device))
    assert torch.equal(actual.cpu(), reference.resolve_token_ids_reference(ids, latest)), "other tokens"


def _check_norm(
    ops: ModelOps,
    name: str,
    num_inputs: int,
    num_weights: int,
    device: torch.device,
    *,
    rows: int,
    place: Callable[[Tensor, torch.device], Tensor],
) -> None:
    inputs = [draw(rows, ops.hidden_size, dtype=ops.dtype, seed=seed) for seed in range(num_inputs)]
    weights = [draw(ops.hidden_size, dtype=ops.dtype, seed=seed) for seed in range(num_weights)]
    moved = [*(place(each, device) for each in inputs), *(weight.to(device) for weight in weights)]
    options: dict[str, Any] = {"variant": ops.norm}
    actual = getattr(infer_kernels, name)(*moved, EPS, **options)
    _compare(actual, getattr(reference, f"{name}_reference")(*inputs, *weights, EPS, **options))


def _check_norm_of_heads(ops: ModelOps, device: torch.device, *, heads: int) -> None:
    """Norm the first `heads` heads of packed queries, keys and values together."""
    width = heads * ops.head_dim
    qkv = draw(7, (ops.q_heads + 2 * ops.kv_heads) * ops.head_dim, dtype=ops.dtype)
    weight, options = draw(width, dtype=ops.dtype), {"variant": ops.norm or "llama"}
    actual = qkv.to(device, copy=True)
    infer_kernels.rms_norm(actual[:, :width], weight.to(device), EPS, **options, out=actual[:, :width])
    _compare(actual[:, :width], reference.rms_norm_reference(qkv[:, :width], weight, EPS, **options))
    assert torch.equal(actual[:, width:].cpu(), qkv[:, width:]), "other heads have changed"


def _check_activation(
    ops: ModelOps, name: str, device: torch.device, *, rows: int, place: Callable[[Tensor, torch.device], Tensor]
) -> None:
    gate_up = draw(rows, 2 * ops.intermediate_size, dtype=ops.dtype)
    actual = getattr(infer_kernels, name)(place(gate_up, device))
    _compare(actual, getattr(reference, f"{name}_reference")(gate_up))


def _check_linear(ops: ModelOps, device: torch.device, *, rows: int, in_features: int) -> None:
    x = draw(rows, in_features, dtype=ops.dtype)
    weight = (draw(MAX_OUTPUTS, in_features, dtype=torch.float32) * in_features**-0.5).to(ops.dtype)
    actual = infer_kernels.linear(x.to(device), infer_kernels.prepack(weight.to(device)))
    expected = reference.linear_invariant_reference(x, weight)
    assert_within_roundings(actual.cpu(), expected, roundings=product_roundings(ops.dtype, in_features))


def _check_linear_argmax(ops: ModelOps, device: torch.device, *, rows: int) -> None:
    """Rounding may choose among the largest logits: the chosen one is as large as the largest."""
    num_tokens = min(ops.vocab_size, MAX_TOKENS)
    hidden = draw(rows, ops.hidden_size, dtype=ops.dtype)
    weight = (draw(num_tokens + 3, ops.hidden_size, dtype=torch.float32) * ops.hidden_size**-0.5).to(ops.dtype)
    weight[num_tokens:] = hidden[0]  # padding of the vocabulary, with the largest logit
    chosen, largest = infer_kernels.linear_argmax(hidden.to(device), weight.to(device), vocab_size=num_tokens)
    chosen = chosen.cpu()
    assert int(chosen.min()) >= 0, "ids below 0"
    assert int(chosen.max()) < num_tokens, "ids past the vocabulary"
    right = reference.linear_invariant_reference(hidden, weight)[:, :num_tokens]
    roundings = product_roundings(ops.dtype, ops.hidden_size)
    for own in (right.gather(1, chosen[:, None])[:, 0], largest.cpu().to(ops.dtype)):
        assert_within_roundings(own, right.amax(1), roundings=roundings)


def _compare(actual: Tensor | tuple[Tensor, ...], expected: Tensor | tuple[Tensor, ...]) -> None:
    pairs = [(actual, expected)] if isinstance(actual, Tensor) else list(zip(actual, expected, strict=True))
    for own, right in pairs:
        assert isinstance(own, Tensor)
        assert isinstance(right, Tensor)
        assert_within_roundings(own.cpu(), right)

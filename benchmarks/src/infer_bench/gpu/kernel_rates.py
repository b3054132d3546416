"""The bytes that kernels of a decode step must read, and so their rates: which of them are far from the memory's.

Known are keys and values, which decode attention reads, and weights, which matrix products read. Products of the layers
run under several names, of which a trace does not say which weight each reads: they have a line together. What splits
of a product leave to be added counts as time and not as bytes. All other kernels read and write rows of a batch, which
is little at small batches.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infer_bench.ceilings import ModelCosts
from infer_bench.gpu.parts import Place

ATTENTION, HEAD = re.compile("paged_decode"), re.compile("linear_argmax")
PRODUCT = re.compile("gemm|gemv|nvjet|cutlass|split_?k|linear|product", re.IGNORECASE)
"""In names of kernels, of cuBLAS's and of ours."""
PRODUCTS_TOGETHER = "matrix products of the layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """What one decode step reads at the least.

    Attributes:
        keys_and_values: of all layers and sequences.
        head: the weights of the LM head.
        layers: the weights of the layers.
    """

    keys_and_values: float
    head: float
    layers: float


def step_bytes(costs: ModelCosts, num_seqs: int, context: int) -> StepBytes:
    """Return the bytes of a step in which each of `num_seqs` sequences reads `context` tokens."""
    head = costs.config.vocab_size * costs.config.hidden_size * costs.element_bytes
    keys_and_values = num_seqs * (costs.decode(context - 1, 1).num_bytes - costs.step_bytes)
    return StepBytes(keys_and_values=keys_and_values, head=head, layers=costs.step_bytes - head)


def with_bytes(kernels: Iterable[Mapping[str, Any]], known: StepBytes) -> list[dict[str, Any]]:
    """Return `kernels` (`name`, `calls`, `us`, of a step), the largest first, with `bytes` where they are known.

    A line for the products of the layers together is added; each of them is in the list, too.
    """
    rows = [dict(kernel) for kernel in kernels]
    has_head = False
    products: list[dict[str, Any]] = []
    for row in rows:
        if ATTENTION.search(row["name"]):
            row["bytes"] = known.keys_and_values
        elif HEAD.search(row["name"]):
            row["bytes"] = known.head
            has_head = True
        elif PRODUCT.search(row["name"]):
            products.append(row)
    if products:
        together = {name: sum(row[name] for row in products) for name in ("calls", "us")}
        num_bytes = known.layers + (0 if has_head else known.head)  # else one of the products is the head's
        rows.insert(0, {"name": PRODUCTS_TOGETHER, **together, "bytes": num_bytes})
    return sorted(rows, key=lambda row: -row["us"])


def describe_kernel(place: Place, kernel: Mapping[str, Any]) -> str:
    """Return a kernel as one line: calls and time of a step, and bytes, rate and share of the ceiling if known."""
    text = f"{kernel['calls']:g} calls, {kernel['us']:.0f} us"
    if "bytes" not in kernel or not kernel["us"]:
        return text
    rate = kernel["bytes"] / (kernel["us"] * 1e-6)
    share = "" if place.ceilings is None else f", {rate / place.ceilings.bytes_per_s:.0%} of the ceiling"
    return f"{text}, {kernel['bytes'] / 1e6:.0f} MB, {rate / 1e9:.0f} GB/s{share}"

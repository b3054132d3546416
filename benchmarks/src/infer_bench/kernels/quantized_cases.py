"""Cases of quantized weights that are timed on a GPU: products of a layer, and of experts."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.work import Aim, Case, Work
from infer_kernels import ExpertActivation, QuantizedWeight, fused_moe, linear, prepack, prepack_experts
from infer_kernels.quantization import Encoding

IN_FEATURES, OUT_FEATURES = 4096, 28672
"""Llama 8B's gate-up."""
MANY_ROWS = 1024
"""Rows from which on operations are the limit."""


class Format(NamedTuple):
    """A format of quantized weights."""

    name: str
    encoding: Encoding
    group_size: int | None = None
    has_minimums: bool = False

    def draw(self, bench: Bench, *shape: int) -> QuantizedWeight:
        """Return a weight with random codes, as a checkpoint has it."""
        weight = QuantizedWeight.empty(
            *shape,
            encoding=self.encoding,
            group_size=self.group_size,
            has_minimums=self.has_minimums,
            device=bench.device,
        )
        weight.values.random_()
        weight.scales.fill_(120 if weight.scales.dtype == torch.uint8 else 2.0**-7)  # 2^-7 too
        if weight.minimums is not None:
            weight.minimums.fill_(2.0**-4)
        return weight


LAYERS = (
    Format("int8", "int8"),
    Format("int4, groups of 128", "int4", 128),
    Format("GGUF's Q4_K", "int4", 32, has_minimums=True),
)
INT4, MXFP4 = LAYERS[1], Format("MXFP4", "mxfp4", 32)


class Mixture(NamedTuple):
    """The experts of a layer."""

    name: str
    hidden: int
    intermediate: int
    experts: int
    experts_per_token: int
    format: Format
    activation: ExpertActivation


MIXTURES = (
    Mixture("gpt-oss-20b", 2880, 2880, 32, 4, MXFP4, ExpertActivation(alpha=1.702, limit=7.0, up_offset=1.0)),
    Mixture("Qwen3 30B-A3B", 2048, 768, 128, 8, INT4, ExpertActivation()),
)


def quantized_cases() -> Iterator[Case]:
    """Yield layers, then experts; where bytes bound them, they should come near to a copy."""
    for format_ in LAYERS:
        for rows in (1, 64, 4096):
            aim = Aim(0.75 if rows < MANY_ROWS else 0.8, "share")
            label = f"{format_.name}, {rows} rows, {IN_FEATURES} to {OUT_FEATURES}"
            yield Case("linear_quantized", label, partial(multiply, format_=format_, rows=rows), aim)
    for mixture in MIXTURES:
        for rows in (1, 64, 256, 4096):
            label = f"{mixture.name}, {mixture.format.name}, {rows} tokens"
            make = partial(mix_quantized, mixture=mixture, rows=rows)
            yield Case("fused_moe_quantized", label, make, Aim(0.75, "share") if 1 < rows < MANY_ROWS else None)


def multiply(bench: Bench, *, format_: Format, rows: int) -> Work:
    """Return the work of a layer. Its kernel depends on the rows, of which a dry run has no more than it needs."""
    x = bench.random(bench.size(rows, MANY_ROWS), IN_FEATURES)
    drawn = format_.draw(bench, bench.size(OUT_FEATURES, 256), IN_FEATURES)
    weight = prepack(drawn)
    computes = 2 * len(x) * IN_FEATURES * drawn.out_features if rows >= MANY_ROWS else 0
    return Work(launch=partial(linear, x, weight), moves=0 if computes else drawn.num_bytes, computes=computes)


def mix_quantized(bench: Bench, *, mixture: Mixture, rows: int) -> Work:
    """Return the work of experts, which tokens take in turn, so that loads are equal."""
    hidden, intermediate, experts = mixture.hidden, mixture.intermediate, mixture.experts
    x = bench.random(rows, hidden)
    shapes = (2 * intermediate, hidden), (hidden, intermediate)
    drawn = [mixture.format.draw(bench, bench.size(experts, 1), *shape) for shape in shapes]
    gate_up, down = (_packed(each, experts) for each in drawn)
    pairs = rows * mixture.experts_per_token
    ids = (torch.arange(pairs, device=bench.device) % experts).int().view(rows, -1)
    launch = partial(fused_moe, x, gate_up, down, ids, torch.full_like(ids, 0.125, dtype=torch.float32))
    computes = 2 * pairs * 3 * hidden * intermediate if rows >= MANY_ROWS else 0
    moves = sum(each.num_bytes for each in drawn) // len(drawn[0].values) * min(experts, pairs)
    launch = partial(launch, activation=mixture.activation)
    return Work(launch=launch, moves=0 if computes else moves, computes=computes)


def _packed(weight: QuantizedWeight, experts: int) -> QuantizedWeight:
    """Return the weights as Triton's kernels read them; in a dry run one expert stands for all."""
    packed = prepack_experts(weight)
    assert isinstance(packed, QuantizedWeight)
    return packed.map_rows(lambda tensor: tensor.expand(experts, -1, -1))

"""The worth of the CPU paths: ours against the naive forms, alternating in one process; ratios are those of medians.

Linears: `linear` on weights from `prepack` against `F.linear`, over 1 GB of bf16 weights in the shapes of a 1B model's
layers: more than any cache holds. Decode attention: `plan_attention` and 16 layers of `paged_attention` on 8 sequences
of 1024 tokens against gathering their blocks, repeating the heads and SDPA, sequence by sequence or in one batch.
Experts: `fused_moe` on weights from `prepack_experts` against each chosen expert's `F.linear`; GB are those of the
chosen experts.

    uv run infer-bench kernels-cpu
"""

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from infer_bench.results import Columns, argument_parser, columns_table, in_turns, save, seconds_of
from infer_cache import KVPool
from infer_kernels import (
    ExpertChoice,
    fused_moe,
    linear,
    moe_router,
    paged_attention,
    plan_attention,
    prepack,
    prepack_experts,
)

CPU = torch.device("cpu")
HIDDEN, INTERMEDIATE, Q_HEADS, KV_HEADS = 2048, 8192, 32, 8
LAYER = ((3072, HIDDEN), (HIDDEN, HIDDEN), (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))
"""[out_features, in_features] of qkv, o, gate-up and down."""
EXPERTS, EXPERTS_PER_TOKEN, MOE_HIDDEN, MOE_INTERMEDIATE = 64, 4, 1024, 512
SEQS, TOKENS, BLOCK_SIZE = 8, 1024, 64
WARM_UP = 3
"""Rounds that are not counted: virtual machines back memory with pages as it is first read and written."""

COLUMNS: Columns = {
    "": "{name}",
    "ours, ms": lambda row: f"{1e3 * statistics.median(row['ours']):.1f}",
    "ours, GB/s": lambda row: f"{row['gigabytes'] / statistics.median(row['ours']):.1f}",
    "naive, ms": lambda row: ", ".join(
        f"{form} {1e3 * statistics.median(times):.1f}" for form, times in row["naive"].items()
    ),
    "ratio": "{ratio:.2f}",
}
"""Columns of a comparison: medians, and how many times faster ours is than the fastest naive form."""
Caches = list[tuple[Tensor, Tensor]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="3 rounds, a quarter of the layers", rounds=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    rounds, share = (3, 4) if args.quick else (args.rounds, 1)
    with torch.inference_mode():
        comparisons = [
            *compare_linears(layers=9 // share, rounds=rounds),
            *compare_decodes(layers=16 // share, rounds=rounds),
            *compare_experts(layers=8 // share, rounds=rounds),
        ]
    print(f"\n{columns_table(COLUMNS, comparisons)}")
    save("kernels-cpu", {"comparisons": comparisons}, args)


def alternate(
    name: str, *, gigabytes: float, ours: Callable[[], object], naive: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, Any]:
    """Time all forms in turn; return the seconds of each, and the fastest naive form's median over ours."""
    print(name, file=sys.stderr)
    forms = {form: lambda _, run=run: seconds_of(run) for form, run in {"ours": ours, **naive}.items()}
    seconds: dict[str, list[float]] = in_turns(forms, rounds=rounds, warm_up=WARM_UP)
    own = seconds.pop("ours")
    ratio = min(map(statistics.median, seconds.values())) / statistics.median(own)
    return {"name": name, "gigabytes": gigabytes, "ratio": ratio, "ours": own, "naive": seconds}


def compare_linears(*, layers: int, rounds: int) -> list[dict[str, Any]]:
    """Compare every linear of all layers, at few rows."""
    # Values repeat, memory does not: to draw them all would take longer than to measure.
    noise = torch.randn(max(rows * columns for rows, columns in LAYER)).to(torch.bfloat16)
    weights = [noise[: shape[0] * shape[1]].view(shape).clone() for _ in range(layers) for shape in LAYER]
    packed, widths = [prepack(weight) for weight in weights], [weight.shape[1] for weight in weights]
    return [
        alternate(
            f"linear, {rows} row{'s' if rows > 1 else ''}",
            gigabytes=sum(weight.nbytes for weight in weights) / 1e9,
            ours=partial(multiply, linear, packed, widths, inputs_of(rows)),
            naive={"F.linear": partial(multiply, functional.linear, weights, widths, inputs_of(rows))},
            rounds=rounds,
        )
        for rows in (1, 8, 16, 64)
    ]


def inputs_of(rows: int) -> dict[int, Tensor]:
    """Return so many rows of each width."""
    return {width: torch.randn(rows, width).to(torch.bfloat16) for width in (HIDDEN, INTERMEDIATE)}


def multiply(
    product: Callable[[Tensor, Any], Tensor], weights: Sequence[Any], widths: Sequence[int], inputs: dict[int, Tensor]
) -> list[Tensor]:
    """Return the products of all weights, of so many inputs each."""
    return [product(inputs[width], weight) for weight, width in zip(weights, widths, strict=True)]


def compare_decodes(*, layers: int, rounds: int) -> list[dict[str, Any]]:
    """Compare one token of each sequence through the attention of all layers.

    Raises:
        AssertionError: the two forms do not agree.
    """
    found = []
    columns = TOKENS // BLOCK_SIZE
    for head_dim in (64, 128):
        pool = KVPool(
            group_of_layer=(0,) * layers,
            num_blocks=(SEQS * columns,),
            kv_heads=KV_HEADS,
            block_size=BLOCK_SIZE,
            head_dim=head_dim,
            dtype=torch.bfloat16,
            device=CPU,
        )
        caches = [(pool.key_cache(layer), pool.value_cache(layer)) for layer in range(layers)]
        for cache in sum(caches, ()):
            cache.normal_()
        q = torch.randn(SEQS, Q_HEADS, head_dim).to(torch.bfloat16)
        for order in ("consecutive", "scattered"):
            blocks = torch.arange(SEQS * columns) if order == "consecutive" else torch.randperm(SEQS * columns)
            block_table = blocks.view(SEQS, columns).int()
            ours = partial(attend, q, caches, block_table)
            naive = {
                "per sequence": partial(attend_naively, q, caches, block_table, rows=1),
                "one batch": partial(attend_naively, q, caches, block_table, rows=SEQS),
            }
            torch.testing.assert_close(ours(), naive["one batch"](), atol=0.02, rtol=0.02)
            gigabytes = sum(cache.nbytes for cache in sum(caches, ())) / 1e9
            name = f"decode, head_dim {head_dim}, {order} blocks"
            found.append(alternate(name, gigabytes=gigabytes, ours=ours, naive=naive, rounds=rounds))
    return found


def attend(q: Tensor, caches: Caches, block_table: Tensor) -> Tensor:
    """Attend as the engine does, with one plan for all layers; return the last layer's result."""
    plan = plan_attention(
        query_start=torch.arange(SEQS + 1, dtype=torch.int32),
        seq_lens=torch.full((SEQS,), TOKENS, dtype=torch.int32),
        block_table=functional.pad(block_table, (0, 1)),
        block_size=BLOCK_SIZE,
        device=CPU,
    )
    outs = [paged_attention(q, k_cache, v_cache, plan, scale=q.shape[-1] ** -0.5) for k_cache, v_cache in caches]
    return outs[-1]


def attend_naively(q: Tensor, caches: Caches, block_table: Tensor, *, rows: int) -> Tensor:
    """Gather the blocks of so many sequences at a time, repeat their heads, attend; return the last layer's result."""
    group = Q_HEADS // KV_HEADS
    for layer in caches:
        outs = []
        for start in range(0, SEQS, rows):
            part, blocks = q[start : start + rows], block_table[start : start + rows]
            k, v = (
                cache.index_select(0, blocks.flatten())
                .view(*blocks.shape, KV_HEADS, BLOCK_SIZE, -1)
                .transpose(1, 2)
                .unsqueeze(2)
                .expand(-1, -1, group, -1, -1, -1)
                .reshape(len(blocks), Q_HEADS, TOKENS, -1)
                for cache in layer
            )
            outs.append(functional.scaled_dot_product_attention(part[:, :, None], k, v).squeeze(2))
    return torch.cat(outs)


def compare_experts(*, layers: int, rounds: int) -> list[dict[str, Any]]:
    """Compare the experts of all layers at few tokens, which choose at random.

    Raises:
        AssertionError: the two forms do not agree.
    """
    noise = torch.randn(EXPERTS * 2 * MOE_INTERMEDIATE * MOE_HIDDEN).to(torch.bfloat16) * MOE_HIDDEN**-0.5
    shapes = (EXPERTS, 2 * MOE_INTERMEDIATE, MOE_HIDDEN), (EXPERTS, MOE_HIDDEN, MOE_INTERMEDIATE)
    weights = [[noise[: math.prod(shape)].view(shape).clone() for shape in shapes] for _ in range(layers)]
    packed = [[prepack_experts(weight) for weight in layer] for layer in weights]
    expert_bytes = sum(weight.nbytes for weight in weights[0]) // EXPERTS
    found = []
    for rows in (1, 16, 256):
        x = torch.randn(rows, MOE_HIDDEN).to(torch.bfloat16)
        choices = [
            moe_router(
                torch.randn(rows, EXPERTS), experts_per_token=EXPERTS_PER_TOKEN, scoring="softmax", normalize=True
            )
            for _ in range(layers)
        ]
        ours, naive = partial(mix, x, packed, choices), partial(mix_naively, x, weights, choices)
        torch.testing.assert_close(ours(), naive(), atol=0.02, rtol=0.05)
        read_bytes = expert_bytes * sum(len(set(choice.expert_ids.flatten().tolist())) for choice in choices)
        name = f"experts, {rows} token{'s' if rows > 1 else ''}"
        found.append(alternate(name, gigabytes=read_bytes / 1e9, ours=ours, naive={"F.linear": naive}, rounds=rounds))
    return found


def mix(x: Tensor, layers: Sequence[Sequence[Any]], choices: Sequence[ExpertChoice]) -> Tensor:
    """Return the last layer's sum of experts, after those of all others."""
    sums = [
        fused_moe(x, gate_up, down, *choice, activation="silu_and_mul")
        for (gate_up, down), choice in zip(layers, choices, strict=True)
    ]
    return sums[-1]


def mix_naively(x: Tensor, layers: Sequence[Sequence[Tensor]], choices: Sequence[ExpertChoice]) -> Tensor:
    """`mix` as `transformers` computes it: expert by expert, each for the tokens that chose it."""
    for (gate_up, down), choice in zip(layers, choices, strict=True):
        total = torch.zeros_like(x)
        for expert in sorted(set(choice.expert_ids.flatten().tolist())):
            tokens, places = torch.where(choice.expert_ids == expert)
            gate, up = functional.linear(x[tokens], gate_up[expert]).chunk(2, dim=-1)
            product = functional.linear(functional.silu(gate) * up, down[expert])
            total.index_add_(0, tokens, (product * choice.expert_weights[tokens, places, None]).to(x.dtype))
    return total

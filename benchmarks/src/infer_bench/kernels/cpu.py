"""What the CPU paths are worth: ours against the naive forms, alternating in one process; ratios are those of medians.

Linears: `linear` on weights from `prepack` against `F.linear`, over 1 GB of bf16 weights in the shapes of a 1B model's
layers: more than any cache holds. Decode attention: `plan_attention` and 16 layers of `paged_attention` on 8 sequences
of 1024 tokens against gathering their blocks, repeating the heads and SDPA, sequence by sequence or in one batch.

    uv run infer-bench kernels-cpu
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from infer_bench.results import argument_parser, environment, save, table
from infer_cache import KVPool
from infer_kernels import linear, linear_invariant, paged_attention, plan_attention, prepack
from infer_kernels.cpu import kv_cache_dtype

Form = Callable[[], object]

HIDDEN, INTERMEDIATE, Q_HEADS, KV_HEADS = 2048, 8192, 32, 8
LAYER = ((3072, HIDDEN), (HIDDEN, HIDDEN), (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))
"""[out_features, in_features] of qkv, o, gate-up and down."""

SEQS, TOKENS, BLOCK_SIZE = 8, 1024, 64

WARM_UP = 3
"""Rounds that are not counted: virtual machines back memory with pages as it is first read and written."""

ASKED = {"linear, 1 row": 1.3, "decode": 1.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Seconds of every round of ours and of each naive form.

    Attributes:
        name: what was compared.
        gigabytes: that ours reads in a round.
        ours: seconds.
        naive: seconds, by form.
    """

    name: str
    gigabytes: float
    ours: list[float]
    naive: dict[str, list[float]]

    @property
    def ratio(self) -> float:
        """The fastest naive form's median over ours."""
        return min(map(statistics.median, self.naive.values())) / statistics.median(self.ours)

    def as_json(self) -> dict[str, Any]:
        """What is saved."""
        return {"name": self.name, "gigabytes": self.gigabytes, "ratio": self.ratio, "ours": self.ours} | {
            f"naive: {form}": seconds for form, seconds in self.naive.items()
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="3 rounds, a quarter of the layers")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9, help=f"of all forms in turn, after {WARM_UP} to warm up")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    rounds = 3 if args.quick else args.rounds
    with torch.inference_mode():
        readable = read_gigabytes_per_second()
        comparisons = [
            *compare_linears(layers=2 if args.quick else 9, rounds=rounds),
            *compare_invariant(rounds=rounds),
            *compare_decodes(layers=4 if args.quick else 16, rounds=rounds),
        ]
    print_table(comparisons, readable)
    if not args.quick:
        result = {"read_gigabytes_per_second": readable, "comparisons": [each.as_json() for each in comparisons]}
        save("kernels-cpu", result, args.out)


def alternate(name: str, *, gigabytes: float, ours: Form, naive: dict[str, Form], rounds: int) -> Comparison:
    """Time all forms in turn, so that whatever else the machine does meets all of them."""
    print(name, file=sys.stderr)
    forms = {"ours": ours, **naive}
    seconds: dict[str, list[float]] = {form: [] for form in forms}
    for number in range(WARM_UP + rounds):
        for form, run in forms.items():
            started = time.perf_counter()
            run()
            if number >= WARM_UP:
                seconds[form].append(time.perf_counter() - started)
    return Comparison(name=name, gigabytes=gigabytes, ours=seconds.pop("ours"), naive=seconds)


def read_gigabytes_per_second() -> float:
    """What the machine reads from memory: the ceiling of all that is compared here."""
    values = torch.ones(2**27)
    seconds = []
    for _ in range(7):
        started = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - started)
    return values.nbytes / statistics.median(seconds) / 1e9


def compare_linears(*, layers: int, rounds: int) -> list[Comparison]:
    """Every linear of all layers, at few rows."""
    # Values repeat, memory does not: to draw them all would take longer than to measure.
    noise = torch.randn(max(rows * columns for rows, columns in LAYER)).to(torch.bfloat16)
    weights = [noise[: shape[0] * shape[1]].view(shape).clone() for _ in range(layers) for shape in LAYER]
    packed = [prepack(weight) for weight in weights]
    gigabytes = sum(weight.numel() * weight.element_size() for weight in weights) / 1e9

    def compare(rows: int) -> Comparison:
        inputs = {width: torch.randn(rows, width).to(torch.bfloat16) for width in (HIDDEN, INTERMEDIATE)}
        torch.testing.assert_close(
            linear(inputs[HIDDEN], packed[0]), functional.linear(inputs[HIDDEN], weights[0]), atol=1.0, rtol=0.02
        )
        return alternate(
            f"linear, {rows} row{'s' if rows > 1 else ''}",
            gigabytes=gigabytes,
            ours=lambda: [linear(inputs[weight.shape[1]], weight) for weight in packed],
            naive={"F.linear": lambda: [functional.linear(inputs[weight.shape[1]], weight) for weight in weights]},
            rounds=rounds,
        )

    return [compare(rows) for rows in (1, 8, 16)]


def compare_invariant(*, rounds: int) -> list[Comparison]:
    """What equal bits in every batch cost: one layer's linears, ratios below 1."""
    comparisons = []
    for dtype, form in ((torch.float32, "plain"), (torch.bfloat16, "plain"), (torch.bfloat16, "prepacked")):
        weights = [torch.randn(shape).to(dtype) for shape in LAYER]
        weights = [prepack(weight) for weight in weights] if form == "prepacked" else weights
        for rows in (1, 512):
            inputs = {width: torch.randn(rows, width).to(dtype) for width in (HIDDEN, INTERMEDIATE)}
            pairs = [(inputs[weight.shape[1]], weight) for weight in weights]
            comparisons.append(
                alternate(
                    f"invariant linear, {str(dtype).removeprefix('torch.')} {form}, rows: {rows}",
                    gigabytes=sum(weight.numel() for weight in weights) * dtype.itemsize / 1e9,
                    ours=partial(linears, linear_invariant, pairs),
                    naive={"linear": partial(linears, linear, pairs)},
                    rounds=rounds,
                )
            )
    return comparisons


def linears(layer: Callable[[Tensor, Tensor], Tensor], pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Compute `layer` of each input and weight."""
    for x, weight in pairs:
        layer(x, weight)


def compare_decodes(*, layers: int, rounds: int) -> list[Comparison]:
    """One token of each sequence through the attention of all layers.

    Ours reads a cache as it is best kept here; the naive forms read one of the model's dtype and of plain order.
    """
    comparisons = []
    for head_dim in (64, 128):
        columns = TOKENS // BLOCK_SIZE
        pool = KVPool(
            group_of_layer=(0,) * layers,
            num_blocks=(SEQS * columns,),
            kv_heads=KV_HEADS,
            block_size=BLOCK_SIZE,
            head_dim=head_dim,
            dtype=kv_cache_dtype(torch.bfloat16, torch.device("cpu")),
            device=torch.device("cpu"),
        )
        caches = [(pool.key_cache(layer), pool.value_cache(layer)) for layer in range(layers)]
        plain = [(torch.randn(k.shape).bfloat16(), torch.randn(v.shape).bfloat16()) for k, v in caches]
        for cache, values in zip(sum(caches, ()), sum(plain, ()), strict=True):
            cache.copy_(values)
        q = torch.randn(SEQS, Q_HEADS, head_dim).to(torch.bfloat16)
        gigabytes = sum(cache.numel() * cache.element_size() for cache in sum(caches, ())) / 1e9
        for order in ("consecutive", "scattered"):
            blocks = torch.arange(SEQS * columns) if order == "consecutive" else torch.randperm(SEQS * columns)
            table = blocks.view(SEQS, columns).int()
            comparisons.append(
                alternate(
                    f"decode, head_dim {head_dim}, {order} blocks",
                    gigabytes=gigabytes,
                    ours=partial(attend, q, caches, table),
                    naive={
                        "per sequence": partial(attend_naively, q, plain, table, rows=1),
                        "one batch": partial(attend_naively, q, plain, table, rows=SEQS),
                    },
                    rounds=rounds,
                )
            )
            expected = attend_in_batch(q, *plain[-1], table)
            torch.testing.assert_close(attend(q, caches, table), expected, atol=0.02, rtol=0.02)
    return comparisons


def attend(q: Tensor, caches: list[tuple[Tensor, Tensor]], table: Tensor) -> Tensor:
    """Ours: one plan for all layers; the last layer's result."""
    plan = plan_attention(
        query_start=torch.arange(SEQS + 1, dtype=torch.int32),
        seq_lens=torch.full((SEQS,), TOKENS, dtype=torch.int32),
        block_table=functional.pad(table, (0, 1)),
        block_size=BLOCK_SIZE,
        device="cpu",
    )
    for k_cache, v_cache in caches:
        out = paged_attention(q, k_cache, v_cache, plan, scale=q.shape[-1] ** -0.5)
    return out


def attend_naively(q: Tensor, caches: list[tuple[Tensor, Tensor]], table: Tensor, *, rows: int) -> Tensor:
    """All layers in a naive form, so many sequences at a time; the last layer's result."""
    for k_cache, v_cache in caches:
        parts = [
            attend_in_batch(q[start : start + rows], k_cache, v_cache, table[start : start + rows])
            for start in range(0, len(q), rows)
        ]
    return torch.cat(parts)


def attend_in_batch(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor) -> Tensor:
    """Gather all sequences' blocks, which have one length here, repeat their heads, attend once."""
    _, kv_heads, block_size, head_dim = k_cache.shape
    group = q.shape[1] // kv_heads
    keys, values = (
        cache.index_select(0, table.flatten())
        .view(len(table), -1, kv_heads, block_size, head_dim)
        .permute(0, 2, 1, 3, 4)
        .unsqueeze(2)
        .expand(-1, -1, group, -1, -1, -1)
        .reshape(len(table), q.shape[1], -1, head_dim)
        for cache in (k_cache, v_cache)
    )
    return functional.scaled_dot_product_attention(q[:, :, None], keys, values).squeeze(2)


def print_table(comparisons: list[Comparison], readable: float) -> None:
    """Print the medians as Markdown."""
    machine = environment()
    print(
        f"\n{machine['cpu']}, {machine['torch_threads']} threads, torch {machine['torch']}, "
        f"commit {machine['commit']}; memory is read at {readable:.1f} GB/s.\n"
    )
    rows = []
    for each in comparisons:
        ours = statistics.median(each.ours)
        naive = ", ".join(f"{form} {statistics.median(times) * 1e3:.1f}" for form, times in each.naive.items())
        asked = next((least for start, least in ASKED.items() if each.name.startswith(start)), "")
        rows.append([each.name, f"{ours * 1e3:.1f}", f"{each.gigabytes / ours:.1f}", naive, f"{each.ratio:.2f}", asked])
    print(table(["", "ours, ms", "ours, GB/s", "naive, ms", "ratio", "asked"], rows))

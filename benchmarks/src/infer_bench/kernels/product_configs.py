"""Candidates for the tile shapes of invariant products and of experts: what the compiler makes of each, and its rate.

    uv run infer-bench product-configs --arch 90
    uv run infer-bench product-configs --time        (on a GPU: rates, and whether rows keep the bits of what ships)

Rates are those of Llama 8B's gate-up by `linear_invariant`, and of the experts of Qwen3 30B-A3B. With `--time` each
candidate multiplies 4096 rows too, of which the first ones are compared with the product of those rows alone by the
tile that ships: where the bits are equal, the tile may follow the number of rows.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
from triton.runtime.errors import OutOfResources

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import Work, gate_up, mix
from infer_bench.kernels.prefill_configs import HEAD, facts
from infer_bench.results import table
from infer_kernels import linear_invariant
from infer_kernels.linear.product_tiles import ProductTile
from infer_proofs.kernels.compiled.ahead_of_time import compile_afresh
from infer_proofs.kernels.compiled.gpu_cards import ARCHITECTURES

SHAPES = (
    (64, 128, 64, 4, 4),
    (64, 256, 64, 4, 3),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
)
"""Rows, columns, inputs, warps and stages."""
CHOICES = (
    "infer_kernels.linear.linear_invariant.choose_product_tile",
    "infer_kernels.moe.fused_moe_triton.choose_experts_tile",
)
WORK = {
    "dense, 1 row": partial(gate_up, rows=1, is_invariant=True),
    "64 rows": partial(gate_up, rows=64, is_invariant=True),
    "256 rows": partial(gate_up, rows=256, is_invariant=True),
    "4096 rows": partial(gate_up, rows=4096, is_invariant=True),
    "experts, 16 tokens": partial(mix, rows=16),
    "256 tokens": partial(mix, rows=256),
    "1024 tokens": partial(mix, rows=1024),
    "2048 tokens": partial(mix, rows=2048),
    "4096 tokens": partial(mix, rows=4096),
}
KERNELS = {"_linear_invariant_kernel": WORK["4096 rows"], "_expert_products_kernel": WORK["4096 tokens"]}
COMPARED_ROWS, COMPARED_FEATURES = 33, 4096


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each architecture that is asked for, or with `--time` one of this machine's GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, choices=tuple(ARCHITECTURES), action="append", help="default: all")
    parser.add_argument("--time", action="store_true", help="on this GPU")
    parser.add_argument(
        "--shape", type=int, nargs=5, action="append", metavar=("ROWS", "COLUMNS", "INPUTS", "WARPS", "STAGES")
    )
    args = parser.parse_args(arguments)
    tiles = [
        ProductTile(rows=rows, columns=columns, inner=inner, num_warps=warps, num_stages=stages)
        for rows, columns, inner, warps, stages in args.shape or SHAPES
    ]
    if args.time:
        print(f"\n{torch.cuda.get_device_name()}\n\n{time_tiles(tiles)}")
        return
    for arch in args.arch or ARCHITECTURES:
        print(f"\nsm_{arch}\n\n{describe(tiles, arch)}", flush=True)


@contextmanager
def product_tiles(tile: ProductTile) -> Iterator[None]:
    """Launch products with `tile` instead of what the table says."""

    def choose(*_layer: object, **_sizes: object) -> ProductTile:
        return tile

    with patch(CHOICES[0], choose), patch(CHOICES[1], choose):
        yield


def describe(tiles: Sequence[ProductTile], arch: int) -> str:
    """Return the compiler's table of the dense kernel and of the experts' first product."""
    bench = Bench(torch.device("cpu"), dry=True)
    rows = []
    for tile in tiles:
        for name, make in KERNELS.items():
            try:
                with product_tiles(tile), compile_afresh(arch) as log:
                    make(bench).launch()
            except OutOfResources:
                rows.append([label(tile), name, "does not fit", *[""] * (len(HEAD) - 3)])
                continue
            kernel = next(each for each in log.compiled if each.name == name)
            rows.append([label(tile), name, *facts(kernel, arch)])
    return table(["tile", "kernel", *HEAD[2:]], rows)


def time_tiles(tiles: Sequence[ProductTile]) -> str:
    """Return each candidate's rates on this machine's GPU, and whether it has the bits of the tile that ships."""
    bench = Bench(torch.device("cuda", 0), dry=False)
    x = bench.random(COMPARED_FEATURES, COMPARED_FEATURES)
    weight = bench.random(COMPARED_FEATURES, COMPARED_FEATURES)
    few = linear_invariant(x[:COMPARED_ROWS], weight)
    rows = []
    for tile in tiles:
        with product_tiles(tile), torch.inference_mode():
            rates = [rate(bench, make(bench)) for make in WORK.values()]
            try:
                equal = str(torch.equal(linear_invariant(x, weight)[:COMPARED_ROWS], few))
            except OutOfResources:
                equal = ""
        rows.append([label(tile), *rates, equal])
    return table(["tile", *WORK, "bits of what ships"], rows)


def rate(bench: Bench, work: Work) -> str:
    """Return the rate of `work`, in the unit of what bounds it."""
    try:
        seconds = bench.seconds(work.launch)
    except OutOfResources:
        seconds = math.nan
    return (
        f"{work.computes / seconds / 1e12:.0f} TFLOP/s" if work.computes else f"{work.moves / seconds / 1e12:.2f} TB/s"
    )


def label(tile: ProductTile) -> str:
    """Return the sizes of a tile."""
    return f"{tile.rows} x {tile.columns} x {tile.inner}, {tile.num_warps} warps x {tile.num_stages}"

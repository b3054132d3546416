"""Candidates for tile shapes of prefill attention, invariant products and experts: the compiler's facts, and rates.

    uv run infer-bench prefill-configs --head-dim 128 --arch 90
    uv run infer-bench prefill-configs --head-dim 128 --time        (on a GPU, for its own architecture)
    uv run infer-bench product-configs --arch 90
    uv run infer-bench product-configs --time

Products are Llama 8B's gate-up by `linear_invariant`, and the experts of Qwen3 30B-A3B. With `--time` each of their
candidates multiplies 4096 rows too, of which the first ones are compared with the product of those rows alone by the
tile that ships: where the bits are equal, the tile may follow the number of rows.
"""

import argparse
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from unittest.mock import patch

import torch
from triton.runtime.errors import OutOfResources

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import gate_up, mix, prefill
from infer_bench.kernels.work import Work
from infer_bench.results import table
from infer_kernels import linear_invariant
from infer_kernels.attention.triton.tile_configs import TileConfig, prefill_config
from infer_kernels.checks.cases.attention.launches import AttentionCase, attention_tiles
from infer_kernels.linear.product_tiles import ProductTile
from infer_proofs.kernels.compiled.ahead_of_time import CompiledKernel, compile_afresh
from infer_proofs.kernels.compiled.gpu_cards import ARCHITECTURES
from infer_proofs.kernels.compiled.residency import count_resident_programs
from infer_proofs.kernels.compiled.shipped import compile_launch

PREFILL_SHAPES = {
    64: ((64, 64, 4), (128, 32, 8), (128, 64, 8), (256, 64, 8)),
    96: ((64, 32, 4), (64, 64, 4), (128, 32, 8), (128, 64, 8)),
    128: ((64, 32, 4), (64, 64, 4), (128, 32, 8), (128, 64, 8)),
    256: ((32, 32, 4), (64, 32, 4), (64, 32, 8), (128, 32, 8)),
}
"""Rows, keys and warps by head size."""
PRODUCT_SHAPES = (
    *((64, 128, 64, 4, 4), (64, 256, 64, 4, 3), (128, 128, 64, 8, 3)),
    *((128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3)),
)
"""Rows, columns, inputs, warps and stages."""
CHOICES = (
    "infer_kernels.linear.linear_invariant.choose_product_tile",
    "infer_kernels.moe.fused_moe_triton.choose_experts_tile",
)
PRODUCTS = {
    **{f"dense, {rows} rows": partial(gate_up, rows=rows, is_invariant=True) for rows in (1, 64, 256, 4096)},
    **{f"experts, {rows} tokens": partial(mix, rows=rows) for rows in (16, 256, 1024, 2048, 4096)},
}
COMPILED = {
    "_linear_invariant_kernel": PRODUCTS["dense, 4096 rows"],
    "_expert_products_kernel": PRODUCTS["experts, 4096 tokens"],
}
COMPARED_ROWS, COMPARED_FEATURES = 33, 4096
FACTS = ("registers", "spilled bytes", "shared KiB", "programs per SM", "warps per SM", "products", "copies")


def parser_of(*shape: str) -> argparse.ArgumentParser:
    """Return what both commands know; `--shape` takes the sizes that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, choices=tuple(ARCHITECTURES), action="append", help="default: all")
    parser.add_argument("--time", action="store_true", help="time them on this GPU")
    parser.add_argument("--shape", type=int, nargs=len(shape), action="append", metavar=shape)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of prefill attention for each architecture and head size that is asked for."""
    parser = parser_of("ROWS", "KEYS", "WARPS")
    parser.add_argument("--head-dim", type=int, choices=PREFILL_SHAPES, action="append", help="default: all")
    parser.add_argument("--group", type=int, default=4, help="query heads of a key-value head")
    parser.add_argument("--window", type=int, help="of the layer; default: none")
    parser.add_argument("--stages", type=int, action="append", help="default: 2 and 3")
    args = parser.parse_args(arguments)
    for head_dim in args.head_dim or PREFILL_SHAPES:
        tiles = [
            TileConfig(rows=rows, keys=keys, num_warps=warps, num_stages=stages, programs_per_sm=1)
            for rows, keys, warps in args.shape or PREFILL_SHAPES[head_dim]
            for stages in args.stages or (2, 3)
        ]
        if args.time:  # a prompt of 8192 tokens, 32/8 heads
            make = partial(prefill, head_dim=head_dim, tokens=8192, window=args.window)
            bench = Bench(torch.device("cuda", 0), dry=False)
            rows = [[*_prefill_name(tile), timed(bench, make, partial(attention_tiles, tile))] for tile in tiles]
            print(f"\n{torch.cuda.get_device_name()}, head_dim {head_dim}, window {args.window}\n")
            print(table(["rows x keys", "warps x stages", "rate"], rows))
            continue
        for arch in args.arch or ARCHITECTURES:
            print(compiled_prefill(tiles, arch, head_dim=head_dim, group=args.group, window=args.window), flush=True)


def compiled_prefill(tiles: Sequence[TileConfig], arch: int, *, head_dim: int, group: int, window: int | None) -> str:
    """Return the compiler's table of prefill attention, where what ships is marked."""
    block_size = 32 if head_dim == 256 else 64
    case = AttentionCase(
        prefill=True, q_heads=8 * group, kv_heads=8, head_dim=head_dim, block_size=block_size, window=window
    )
    ships = prefill_config(group=group, head_dim=head_dim, itemsize=2, cache_itemsize=2, capability=divmod(arch, 10))

    def compiled(tile: TileConfig) -> CompiledKernel:
        with attention_tiles(tile):
            return compile_launch(case.launch, arch)

    rows = []
    for tile in tiles:
        shape, stages = _prefill_name(tile)
        mark = " *" if _prefill_name(ships) == [shape, stages] else ""
        rows.append([shape + mark, stages, *facts(partial(compiled, tile), arch)])
    head = ["rows x keys", "warps x stages", *FACTS]
    return f"\nsm_{arch}, {case.label}; * is what ships\n\n{table(head, rows)}"


def _prefill_name(tile: TileConfig) -> list[str]:
    return [f"{tile.rows} x {tile.keys}", f"{tile.num_warps} x {tile.num_stages}"]


def main_of_products(arguments: Sequence[str] | None = None) -> None:
    """Print a table of products for each architecture that is asked for, or with `--time` one of this machine's GPU."""
    args = parser_of("ROWS", "COLUMNS", "INPUTS", "WARPS", "STAGES").parse_args(arguments)
    tiles = [
        ProductTile(rows=rows, columns=columns, inner=inner, num_warps=warps, num_stages=stages)
        for rows, columns, inner, warps, stages in args.shape or PRODUCT_SHAPES
    ]
    if args.time:
        print(f"\n{torch.cuda.get_device_name()}\n\n{timed_products(tiles)}")
        return
    for arch in args.arch or ARCHITECTURES:
        rows = [
            [_product_name(tile), name, *facts(partial(_compiled_product, tile, name, arch), arch)]
            for tile in tiles
            for name in COMPILED
        ]
        print(f"\nsm_{arch}\n\n{table(['tile', 'kernel', *FACTS], rows)}", flush=True)


@contextmanager
def product_tiles(tile: ProductTile) -> Iterator[None]:
    """Launch products with `tile` instead of what the table says."""

    def choose(*_layer: object, **_sizes: object) -> ProductTile:
        return tile

    with patch(CHOICES[0], choose), patch(CHOICES[1], choose):
        yield


def _compiled_product(tile: ProductTile, name: str, arch: int) -> CompiledKernel:
    with product_tiles(tile), compile_afresh(arch) as log:
        COMPILED[name](Bench(torch.device("cpu"), dry=True)).launch()
    return next(each for each in log.compiled if each.name == name)


def timed_products(tiles: Sequence[ProductTile]) -> str:
    """Return each candidate's rates on this machine's GPU, and whether it has the bits of the tile that ships."""
    bench = Bench(torch.device("cuda", 0), dry=False)
    x, weight = (bench.random(COMPARED_FEATURES, COMPARED_FEATURES) for _ in range(2))
    few = linear_invariant(x[:COMPARED_ROWS], weight)
    rows = []
    for tile in tiles:
        rates = [timed(bench, make, partial(product_tiles, tile)) for make in PRODUCTS.values()]
        try:
            with product_tiles(tile), torch.inference_mode():
                equal = str(torch.equal(linear_invariant(x, weight)[:COMPARED_ROWS], few))
        except OutOfResources:
            equal = ""
        rows.append([_product_name(tile), *rates, equal])
    return table(["tile", *PRODUCTS, "bits of what ships"], rows)


def _product_name(tile: ProductTile) -> str:
    return f"{tile.rows} x {tile.columns} x {tile.inner}, {tile.num_warps} warps x {tile.num_stages}"


def facts(compiled: Callable[[], CompiledKernel], arch: int) -> list[str]:
    """Return what the compiler says of a kernel, `FACTS`; one that does not fit shared memory says so."""
    try:
        kernel = compiled()
    except OutOfResources:
        return ["does not fit", *[""] * (len(FACTS) - 1)]
    programs = count_resident_programs(kernel, arch)
    copies = {"TMA": r"cp\.async\.bulk\.tensor", "cp.async": r"cp\.async\.c[ag]"}
    return [
        str(kernel.registers),
        str(kernel.spilled_bytes),
        f"{kernel.shared_memory / 1024:.0f}",
        str(programs),
        str(programs * kernel.num_warps),
        "wgmma" if "wgmma.mma_async" in kernel.ptx else "mma" if "mma.sync" in kernel.ptx else "none",
        " and ".join(name for name, pattern in copies.items() if re.search(pattern, kernel.ptx)) or "loads",
    ]


def timed(bench: Bench, make: Callable[[Bench], Work], tiles: Callable[[], AbstractContextManager[None]]) -> str:
    """Return a candidate's rate on this machine's GPU, in the unit of what bounds it."""
    with tiles(), torch.inference_mode():
        work = make(bench)
        try:
            seconds = bench.seconds(work.launch)
        except OutOfResources:
            seconds = math.nan
    if work.computes:
        return f"{work.computes / seconds / 1e12:.0f} TFLOP/s"
    return f"{work.moves / seconds / 1e12:.2f} TB/s"

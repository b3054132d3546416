"""Candidates for prefill attention's tile shapes: what the compiler makes of each, and on a GPU how fast it is.

uv run infer-bench prefill-configs --head-dim 128 --arch 90
uv run infer-bench prefill-configs --head-dim 128 --time        (on a GPU, for its own architecture)
"""

import argparse
import math
import re
from collections.abc import Sequence

import torch
from triton.runtime.errors import OutOfResources

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import prefill
from infer_bench.results import table
from infer_kernels.attention.triton.tile_configs import TileConfig, prefill_config
from infer_kernels.checks.cases.attention.launches import AttentionCase, attention_tiles
from infer_proofs.kernels.compiled.ahead_of_time import CompiledKernel
from infer_proofs.kernels.compiled.gpu_cards import ARCHITECTURES
from infer_proofs.kernels.compiled.residency import count_resident_programs
from infer_proofs.kernels.compiled.shipped import compile_launch

HEAD_DIMS = (64, 96, 128, 256)
SHAPES = {
    64: ((64, 64, 4), (128, 32, 8), (128, 64, 8), (256, 64, 8)),
    96: ((64, 32, 4), (64, 64, 4), (128, 32, 8), (128, 64, 8)),
    128: ((64, 32, 4), (64, 64, 4), (128, 32, 8), (128, 64, 8)),
    256: ((32, 32, 4), (64, 32, 4), (64, 32, 8), (128, 32, 8)),
}
"""Rows, keys and warps by head size."""

HEAD = (
    "rows x keys",
    "warps x stages",
    "registers",
    "spilled bytes",
    "shared KiB",
    "programs per SM",
    "warps per SM",
    "products",
    "copies",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each architecture and head size that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, choices=tuple(ARCHITECTURES), action="append", help="default: all")
    parser.add_argument("--head-dim", type=int, choices=HEAD_DIMS, action="append", help="default: all")
    parser.add_argument("--group", type=int, default=4, help="query heads of a key-value head")
    parser.add_argument("--window", type=int, help="of the layer; default: none")
    parser.add_argument("--stages", type=int, action="append", help="default: 2 and 3")
    parser.add_argument("--time", action="store_true", help="time a prompt of 8192 tokens, 32/8 heads, on this GPU")
    parser.add_argument("--shape", type=int, nargs=3, action="append", metavar=("ROWS", "KEYS", "WARPS"))
    args = parser.parse_args(arguments)
    for head_dim in args.head_dim or HEAD_DIMS:
        shapes = args.shape or SHAPES[head_dim]
        configs = [
            TileConfig(rows=rows, keys=keys, num_warps=warps, num_stages=stages, programs_per_sm=1)
            for rows, keys, warps in shapes
            for stages in args.stages or (2, 3)
        ]
        if args.time:
            rates = time_configs(configs, head_dim, window=args.window)
            print(f"\n{torch.cuda.get_device_name()}, head_dim {head_dim}, window {args.window}\n\n{rates}")
            continue
        case = AttentionCase(
            prefill=True,
            q_heads=8 * args.group,
            kv_heads=8,
            head_dim=head_dim,
            block_size=32 if head_dim == 256 else 64,
            window=args.window,
        )
        for arch in args.arch or ARCHITECTURES:
            print(f"\nsm_{arch}, {case.label}; * is what ships\n\n{describe(configs, case, arch)}", flush=True)


def describe(configs: Sequence[TileConfig], case: AttentionCase, arch: int) -> str:
    """Return the compiler's table; a candidate that does not fit shared memory says so."""
    ships = prefill_config(
        group=case.q_heads // case.kv_heads,
        head_dim=case.head_dim,
        itemsize=2,
        cache_itemsize=2,
        capability=divmod(arch, 10),
    )
    rows = []
    for config in configs:
        mark = " *" if _shape(config) == _shape(ships) else ""
        name = [f"{config.rows} x {config.keys}{mark}", f"{config.num_warps} x {config.num_stages}"]
        try:
            with attention_tiles(config):
                kernel = compile_launch(case.launch, arch)
        except OutOfResources:
            rows.append([*name, "does not fit", *[""] * (len(HEAD) - 3)])
            continue
        rows.append([*name, *facts(kernel, arch)])
    return table(list(HEAD), rows)


def _shape(config: TileConfig) -> tuple[int, int, int, int]:
    return config.rows, config.keys, config.num_warps, config.num_stages


def facts(kernel: CompiledKernel, arch: int) -> list[str]:
    """Return what the compiler says of a kernel: the cells of `HEAD` after the first two."""
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


def time_configs(configs: Sequence[TileConfig], head_dim: int, *, window: int | None) -> str:
    """Return each candidate's rate on this machine's GPU."""
    bench = Bench(torch.device("cuda", 0), dry=False)
    rows = []
    for config in configs:
        try:
            with attention_tiles(config):
                work = prefill(bench, head_dim=head_dim, tokens=8192, window=window)
                rate = work.computes / bench.seconds(work.launch) / 1e12
        except OutOfResources:
            rate = math.nan
        rows.append(
            [f"{config.rows} x {config.keys}", f"{config.num_warps} x {config.num_stages}", f"{rate:.0f} TFLOP/s"]
        )
    return table(["rows x keys", "warps x stages", "rate"], rows)

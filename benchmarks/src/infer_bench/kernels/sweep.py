"""Compiles the alternatives to the tables' tile shapes: which fit, and which spill.

    uv run infer-bench kernel-sweep --arch 90 --op paged_prefill --head-dim 128

Thousands of variants: minutes with filters, hours without on two cores.
"""

import argparse
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from unittest.mock import patch

import torch
from triton.runtime.errors import OutOfResources

from infer_bench.results import table
from infer_kernels.attention.triton.tile_configs import TileConfig, decode_config, prefill_config
from infer_kernels.dense.linear_invariant import linear_invariant
from infer_kernels.testing.ahead_of_time import SHARED_MEMORY, compile_afresh
from infer_kernels.testing.shipped_attention import AttentionCase, attention_tiles

CAPABILITIES = (80, 90, 120)
OPS = ("paged_decode", "paged_prefill", "linear_invariant")
HEADS = {64: (32, 8), 96: (32, 32), 128: (32, 8), 256: (8, 4)}
"""(q_heads, kv_heads) by head_dim."""

ROWS, KEYS, WARPS, STAGES = (16, 32, 64, 128), (16, 32, 64, 128), (4, 8), (2, 3, 4)
WIDTHS, INNER = (64, 128, 256), (32, 64)
COLUMNS = (
    *("architecture", "op", "head_dim", "tile", "warps", "stages"),
    *("fits", "registers", "shared, KiB", "spilled bytes"),
)
"""Of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way to launch one kernel, in bf16.

    Attributes:
        capability: 90 for sm_90.
        op: one of `OPS`.
        head_dim: of attention; 0 for `linear_invariant`.
        tile: rows and keys of attention; rows, columns and inner columns of `linear_invariant`.
        num_warps: of a program.
        num_stages: iterations whose loads are in flight.
    """

    capability: int
    op: str
    head_dim: int
    tile: tuple[int, ...]
    num_warps: int
    num_stages: int

    @property
    def attention(self) -> AttentionCase:
        """The attention that it is for; in blocks that every tile divides, so that tiles alone differ."""
        q_heads, kv_heads = HEADS[self.head_dim]
        return AttentionCase(
            prefill=self.op == "paged_prefill",
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=self.head_dim,
            block_size=max(KEYS),
        )

    @property
    def is_shipped(self) -> bool:
        """Whether it is what the table says."""
        architecture = divmod(self.capability, 10)
        if self.op == "linear_invariant":
            table = vars(importlib.import_module("infer_kernels.dense.linear_invariant"))["_HALF_PRECISION"]
            config = table[architecture[0]]
            tile: tuple[int, ...] = (config.rows, config.columns, config.inner)
        else:
            sample = prefill_config if self.op == "paged_prefill" else decode_config
            q_heads, kv_heads = HEADS[self.head_dim]
            config = sample(group=q_heads // kv_heads, head_dim=self.head_dim, itemsize=2, capability=architecture)
            tile = (config.rows, config.keys)
        return bool((tile, config.num_warps, config.num_stages) == (self.tile, self.num_warps, self.num_stages))

    def launch(self) -> object:
        """Launch the kernel so; to be called inside `compile_only`."""
        if self.op == "linear_invariant":
            rows, columns, inner = self.tile
            table = vars(importlib.import_module("infer_kernels.dense.linear_invariant"))["_HALF_PRECISION"]
            major = self.capability // 10
            config = type(table[major])(
                rows=rows, columns=columns, inner=inner, num_warps=self.num_warps, num_stages=self.num_stages
            )
            with patch.dict(table, {major: config}):
                return linear_invariant(*(torch.empty(rows, 4096, dtype=torch.bfloat16) for rows in (3, 1536)))
        rows, keys = self.tile
        config = TileConfig(
            rows=rows, keys=keys, num_warps=self.num_warps, num_stages=self.num_stages, programs_per_sm=1
        )
        with attention_tiles(config):
            return self.attention.launch()

    def describe(self) -> str:
        """A row of the table: compiles it."""
        start = (
            f"| sm_{self.capability} | `{self.op}` | {self.head_dim or ''} | {' x '.join(map(str, self.tile))} "
            f"| {self.num_warps} | {self.num_stages} "
        )
        if self.is_shipped:
            start = start.replace("| ", "| **shipped** ", 1)
        try:
            with compile_afresh(self.capability) as recording:
                self.launch()
        except OutOfResources as error:
            return f"{start}| no | | {error.required / 1024:.1f} | |"
        except Exception as error:  # noqa: BLE001 - whatever the compiler fails with is the finding
            return f"{start}| {type(error).__name__} | | | |"
        (kernel,) = recording.compiled
        share = kernel.shared_memory / SHARED_MEMORY[self.capability]
        return (
            f"{start}| yes, {share:.0%} | {kernel.registers} | {kernel.shared_memory / 1024:.1f} "
            f"| {kernel.spilled_bytes or ''} |"
        )


def alternatives(
    capabilities: tuple[int, ...], ops: tuple[str, ...], head_dims: tuple[int, ...]
) -> Iterator[Alternative]:
    """All that are worth a look."""
    for capability, op in itertools.product(capabilities, ops):
        make: Callable[..., Alternative] = partial(Alternative, capability=capability, op=op)
        if op == "linear_invariant":
            for *tile, num_warps, num_stages in itertools.product(ROWS, WIDTHS, INNER, WARPS, STAGES):
                yield make(head_dim=0, tile=tuple(tile), num_warps=num_warps, num_stages=num_stages)
            continue
        for head_dim in head_dims:
            # More rows than a decode's query heads share are rows of nothing.
            rows = (16,) if op == "paged_decode" else ROWS
            for *tile, num_warps, num_stages in itertools.product(rows, KEYS, WARPS, STAGES):
                yield make(head_dim=head_dim, tile=tuple(tile), num_warps=num_warps, num_stages=num_stages)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile what the filters leave, several at a time, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, choices=CAPABILITIES, action="append", help="default: all three")
    parser.add_argument("--op", choices=OPS, action="append", help="default: all three")
    parser.add_argument("--head-dim", type=int, choices=sorted(HEADS), action="append", help="default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="every 16th alternative alone")
    args = parser.parse_args(arguments)
    selected = list(
        alternatives(tuple(args.arch or CAPABILITIES), tuple(args.op or OPS), tuple(args.head_dim or sorted(HEADS)))
    )[:: 16 if args.quick else 1]
    print(table(COLUMNS, []), flush=True)
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for number, row in enumerate(pool.map(Alternative.describe, selected)):
            print(row, flush=True)
            print(f"\r{number + 1} of {len(selected)}", end="", file=sys.stderr)
    print(file=sys.stderr)

"""Questions whose answers choose a design or a table's entry. Each gives rows of what was tried and what came out.

Constants and tables of the package are replaced while a question is asked: no option for it exists otherwise.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from triton.runtime.errors import OutOfResources

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import BLOCK_SIZE, LLAMA, Work, decode, decode_plan, make_caches, prefill
from infer_kernels.attention import AttentionBuffers, AttentionPlan, paged_attention
from infer_kernels.attention.triton.plan import TritonAttentionPlan
from infer_kernels.attention.triton.tile_configs import TileConfig, decode_config, prefill_config
from infer_kernels.gated_activations import silu_and_mul
from infer_kernels.gpu import describe_gpu
from infer_kernels.norm.add_rms_norm import add_rms_norm
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store
from infer_kernels.qkv.transforms import Rotary
from infer_kernels.testing.shipped_attention import attention_tiles

Row = dict[str, Any]

DECODES = ((1, 1024), (1, 32768), (8, 8192), (64, 8192), (256, 1024))
"""(sequences, tokens of each)."""


def split_length(bench: Bench) -> Iterator[Row]:
    """Decode by the length of a split."""
    for split in (128, 256, 512):
        with ExitStack() as stack:
            for module in ("paged_decode", "work_lists", "plan_memory", "plan"):
                stack.enter_context(patch(f"infer_kernels.attention.triton.{module}.SPLIT", split))
            yield {"split": split} | decode_bandwidths(bench)


def cache_order(bench: Bench) -> Iterator[Row]:
    """Decode by descriptors (contiguous blocks) and by pointers (token-major blocks)."""
    for order, token_major in (("descriptors, contiguous", False), ("pointers, token-major", True)):
        yield {"cache": order} | decode_bandwidths(bench, token_major=token_major)


def decode_tiles(bench: Bench) -> Iterator[Row]:
    """Decode by tiles of keys, warps and stages, around what ships."""
    stages: tuple[dict[str, int], ...] = ({}, {"num_stages": 2}, {"num_stages": 4})
    others = ({"num_warps": 8}, {"keys": 32}, {"keys": 32, "num_stages": 4})
    yield from by_tiles(bench, decode_config, (*stages, *others), decode_bandwidths)


def decode_grid(bench: Bench) -> Iterator[Row]:
    """Decode on the fixed grid of a captured graph, by programs that share a multiprocessor."""
    yield {"tiles": "one program for each item"} | decode_bandwidths(bench)
    changes = [{"programs_per_sm": programs} for programs in (1, 2, 3, 4, 6)]
    yield from by_tiles(bench, decode_config, changes, partial(decode_bandwidths, buffered=True))


def prefill_tiles(bench: Bench) -> Iterator[Row]:
    """Prefill by rows and keys of a tile, warps, stages and contraction into fused multiply-adds."""
    modes = TritonAttentionPlan._modes  # noqa: SLF001 - nothing public chooses it

    def fused(*args: Any) -> dict[str, Any]:
        return modes(*args) | {"enable_fp_fusion": True}

    narrow = {"rows": 64, "num_warps": 4}
    changes: tuple[dict[str, int], ...]
    changes = ({}, {"num_stages": 2}, narrow, narrow | {"num_stages": 2}, {"keys": 32}, {"num_warps": 4})
    yield from by_tiles(bench, prefill_config, changes, prefill_rates)
    with patch.object(TritonAttentionPlan, "_modes", fused):
        yield {"tiles": "shipped, contracted"} | prefill_rates(bench)


def by_tiles(
    bench: Bench,
    table: Callable[..., TileConfig],
    changes: Iterable[dict[str, int]],
    measure: Callable[[Bench], Row],
) -> Iterator[Row]:
    """Measure with each of `changes` to what the table says for Llama's attention here."""
    shipped = table(
        group=LLAMA.q_heads // LLAMA.kv_heads,
        head_dim=LLAMA.head_dim,
        itemsize=2,
        capability=describe_gpu(bench.device).capability,
    )
    for change in changes:
        with attention_tiles(replace(shipped, **change)):
            words = ", ".join(f"{name} {value}" for name, value in change.items())
            yield {"tiles": words or "shipped"} | measure(bench)


def decode_bandwidths(bench: Bench, **options: bool) -> Row:
    """GB/s of decodes of Llama's shape."""
    found: Row = {}
    for seqs, length in DECODES:
        work = decode(bench, model=LLAMA, seqs=seqs, length=length, **options)
        found[f"{seqs} x {length}, GB/s"] = rate(bench, work) / 1e9
    return found


def prefill_rates(bench: Bench) -> Row:
    """TFLOP/s of prompts of Llama's shape."""
    return {
        f"{tokens} tokens, TFLOP/s": rate(bench, prefill(bench, head_dim=LLAMA.head_dim, tokens=tokens)) / 1e12
        for tokens in (1024, 4096, 16384)
    }


def rate(bench: Bench, work: Work) -> float:
    """Bytes or operations per second; NaN where the device has no room for the tiles."""
    try:
        return (work.moves or work.computes) / bench.seconds(work.launch, budget=0.05)
    except OutOfResources:
        return math.nan


class DecodeLayer:
    """Llama 8B's layer on a decode step, with weights and caches of its own."""

    def __init__(self, bench: Bench, *, seqs: int, num_blocks: int) -> None:
        """Allocate."""
        hidden, heads = LLAMA.hidden, LLAMA.q_heads + 2 * LLAMA.kv_heads
        wide = bench.size(LLAMA.intermediate, 64)
        weight = partial(bench.random, scale=0.02)
        self.qkv_weight = weight(heads * LLAMA.head_dim, hidden)
        self.o_weight = weight(hidden, LLAMA.q_heads * LLAMA.head_dim)
        self.gate_up_weight, self.down_weight = weight(2 * wide, hidden), weight(hidden, wide)
        self.norm_weight = bench.random(hidden)
        self.caches = make_caches(bench, LLAMA, num_blocks)
        self.slots = torch.arange(seqs, device=bench.device).int() * BLOCK_SIZE
        self.rotary = Rotary(
            position_ids=bench.zeros(seqs), cos_sin=bench.random(4, LLAMA.head_dim, dtype=torch.float32)
        )

    @property
    def weight_bytes(self) -> int:
        """Of the four matrices."""
        weights = (self.qkv_weight, self.o_weight, self.gate_up_weight, self.down_weight)
        return sum(weight.nbytes for weight in weights)

    def __call__(self, x: Tensor, residual: Tensor, plan: AttentionPlan) -> Tensor:
        """The nine launches."""
        add_rms_norm(x, residual, self.norm_weight, 1e-6, out=x, residual_out=residual)
        qkv = functional.linear(x, self.qkv_weight).view(len(x), -1, LLAMA.head_dim)
        q = qk_norm_rope_store(qkv, *self.caches, self.slots, rotary=self.rotary)
        attended = paged_attention(q, *self.caches, plan, scale=LLAMA.head_dim**-0.5)
        x = functional.linear(attended.flatten(1), self.o_weight)
        add_rms_norm(x, residual, self.norm_weight, 1e-6, out=x, residual_out=residual)
        return functional.linear(silu_and_mul(functional.linear(x, self.gate_up_weight)), self.down_weight)


def graph_replay(bench: Bench) -> Iterator[Row]:
    """A decode step of 4 layers, launched one by one and replayed as a graph; wall-clock time per layer."""
    num_layers = 4
    length = bench.size(1024, 300)
    for seqs in (1, 2) if bench.dry else (1, 8, 32, 128):
        buffers = AttentionBuffers(
            max_seqs=seqs, max_tokens=seqs, max_seq_len=length, block_size=BLOCK_SIZE, device=bench.device
        )
        plan, num_blocks = decode_plan(bench, seqs=seqs, length=length, buffers=buffers)
        layers = [DecodeLayer(bench, seqs=seqs, num_blocks=num_blocks) for _ in range(num_layers)]
        x, residual = bench.random(2, seqs, LLAMA.hidden).unbind()

        def step(
            layers: list[DecodeLayer] = layers, x: Tensor = x, residual: Tensor = residual, plan: Any = plan
        ) -> Tensor:
            for layer in layers:
                x = layer(x, residual, plan)
            return x

        moved = layers[0].weight_bytes + 2 * seqs * length * LLAMA.kv_heads * LLAMA.head_dim * 2
        eager = wall_seconds(bench, step) / num_layers
        replayed = math.nan
        if not bench.dry:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            replayed = wall_seconds(bench, graph.replay) / num_layers
        yield {
            "sequences": seqs,
            "eager, us per layer": eager * 1e6,
            "replay, us per layer": replayed * 1e6,
            "bound by bandwidth, us": moved / bench.copy_bandwidth * 1e6,
        }
        del layers, step


def wall_seconds(bench: Bench, step: Callable[[], object]) -> float:
    """The median time of a step that is waited for; NaN where it is dry."""
    times = []
    for _ in range(1 if bench.dry else 30):
        started = time.perf_counter()
        step()
        bench.synchronize()
        times.append(time.perf_counter() - started)
    return math.nan if bench.dry else statistics.median(times[5:])


def row_invariance(bench: Bench) -> Iterator[Row]:
    """Numbers of rows at which `F.linear` gives rows other bits than in a batch of 4096."""
    command = [sys.executable, "-m", "infer_bench.kernels.row_invariance", "--device", bench.device.type]
    settings: dict[str, dict[str, str]] = {
        "default workspace": {},
        "small workspace": {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"},
    }
    for workspace, variables in settings.items():
        completed = subprocess.run(  # noqa: S603 - a script of ours
            [*command, *(["--tiny"] if bench.dry else [])],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            yield {"workspace": workspace, "failed": completed.stderr.strip().rpartition("\n")[2]}
            continue
        for flags, layers in json.loads(completed.stdout)["differing_rows"].items():
            yield {"workspace": workspace, "flags": flags} | {
                layer: " ".join(map(str, rows)) or "none" for layer, rows in layers.items()
            }


QUESTIONS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    ask.__name__: ask
    for ask in (row_invariance, split_length, cache_order, decode_tiles, decode_grid, prefill_tiles, graph_replay)
}

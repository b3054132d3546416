"""Attention on a CPU over a cache of int8 codes beside one of bf16, in turns: what eight bits are worth.

    uv run infer-bench kv-cache --heads 16 8 128
    uv run infer-bench kv-cache --quick

Blocks lie scattered. Medians of calls that alternate; `speedup` is bf16's time over int8's.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from infer_bench.results import argument_parser, save, table
from infer_kernels import paged_attention, plan_attention
from infer_kernels.qkv.kv_codes import encode_rows

BLOCK_SIZE = 64
DISTINCT_BLOCKS = 64
"""Blocks whose numbers are drawn; the others repeat them."""
CASES = (*((seqs, tokens, 1) for seqs in (1, 16) for tokens in (1024, 4096, 16384)), (1, 4096, 512))
"""(sequences, tokens of each, rows of each in the step)."""
QUICK_CASES = ((1, 256, 1), (2, 256, 16))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and save the result."""
    parser = argument_parser(__doc__, quick="two small cases", rounds=30)
    parser.add_argument("--heads", nargs=3, type=int, default=(16, 8, 128), metavar=("Q", "KV", "DIM"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    rows = [
        measure(case, heads=(args.heads[0], args.heads[1], args.heads[2]), rounds=3 if args.quick else args.rounds)
        for case in (QUICK_CASES if args.quick else CASES)
    ]
    print(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))
    if not args.quick:
        save("kv-cache-int8", {"heads": list(args.heads), "threads": args.threads, "cases": rows}, args.out)


def measure(case: tuple[int, int, int], *, heads: tuple[int, int, int], rounds: int) -> dict[str, float]:
    """Return the medians of one case, in microseconds, and bf16's over int8's."""
    num_seqs, num_tokens, num_rows = case
    q_heads, kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(0)
    columns = -(-num_tokens // BLOCK_SIZE)
    num_blocks = num_seqs * columns
    drawn = torch.randn(DISTINCT_BLOCKS, kv_heads, BLOCK_SIZE, head_dim, generator=generator).bfloat16()
    blocks = torch.randperm(num_blocks, generator=generator).int().view(num_seqs, columns)
    plan = plan_attention(
        query_start=torch.arange(num_seqs + 1, dtype=torch.int32) * num_rows,
        seq_lens=torch.full((num_seqs,), num_tokens, dtype=torch.int32),
        block_table=torch.cat([blocks, torch.zeros(num_seqs, 1, dtype=torch.int32)], dim=1),
        block_size=BLOCK_SIZE,
        device="cpu",
    )
    q = torch.randn(num_seqs * num_rows, q_heads, head_dim, generator=generator).bfloat16()

    def attend_over(cache: Tensor) -> Callable[[], Tensor]:
        k_cache, v_cache = (cache.repeat(-(-num_blocks // len(cache)), 1, 1, 1)[:num_blocks] for _ in range(2))
        return lambda: paged_attention(q, k_cache, v_cache, plan, scale=head_dim**-0.5)

    calls = {"bf16": attend_over(drawn), "int8": attend_over(encode_rows(drawn, torch.int8, 1.0))}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
    return {
        "sequences": num_seqs,
        "tokens": num_tokens,
        "rows": num_rows,
        "bf16_us": round(medians["bf16"] * 1e6),
        "int8_us": round(medians["int8"] * 1e6),
        "speedup": round(medians["bf16"] / medians["int8"], 2),
    }

"""Attention on a CPU over a cache of int8 codes beside one of bf16, in turns: what eight bits are worth.

    uv run infer-bench kv-cache --heads 16 8 128
    uv run infer-bench kv-cache --quick

Blocks lie scattered. Medians of calls that alternate; `speedup` is bf16's time over int8's.
"""

from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from infer_bench.results import Columns, argument_parser, columns_table, in_turns, save, seconds_of
from infer_kernels import paged_attention, plan_attention
from infer_kernels.qkv.kv_codes import encode_rows

BLOCK_SIZE = 64
DISTINCT_BLOCKS = 64
"""Blocks whose numbers are drawn; the others repeat them."""
CASES = (*((seqs, tokens, 1) for seqs in (1, 16) for tokens in (1024, 4096, 16384)), (1, 4096, 512))
"""(sequences, tokens of each, rows of each in the step)."""
QUICK_CASES = ((1, 256, 1), (2, 256, 16))
COLUMNS: Columns = {
    "sequences": "{sequences}",
    "tokens of each": "{tokens:,}",
    "rows of each": "{rows}",
    "bf16, us": "{bf16_us:,}",
    "int8, us": "{int8_us:,}",
    "times faster": "{speedup:.2f}",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and save the result."""
    parser = argument_parser(__doc__, quick="two small cases", rounds=30)
    parser.add_argument("--heads", nargs=3, type=int, default=(16, 8, 128), metavar=("Q", "KV", "DIM"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    rounds, cases = (3, QUICK_CASES) if args.quick else (args.rounds, CASES)
    rows = [measure(*case, heads=args.heads, rounds=rounds) for case in cases]
    print(columns_table(COLUMNS, rows))
    save("kv-cache-int8", {"heads": list(args.heads), "threads": args.threads, "cases": rows}, args)


def measure(num_seqs: int, num_tokens: int, num_rows: int, *, heads: Sequence[int], rounds: int) -> dict[str, float]:
    """Return the medians of one case, in microseconds, and bf16's over int8's."""
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

    def attend_over(cache: Tensor) -> Callable[[int], float]:
        k_cache, v_cache = (cache.repeat(-(-num_blocks // len(cache)), 1, 1, 1)[:num_blocks] for _ in range(2))
        return lambda _: seconds_of(lambda: paged_attention(q, k_cache, v_cache, plan, scale=head_dim**-0.5))

    sides = {"bf16": attend_over(drawn), "int8": attend_over(encode_rows(drawn, torch.int8, 1.0))}
    bf16_s, int8_s = (median(found) for found in in_turns(sides, rounds=rounds).values())
    sizes = {"sequences": num_seqs, "tokens": num_tokens, "rows": num_rows}
    times = {"bf16_us": round(bf16_s * 1e6), "int8_us": round(int8_s * 1e6), "speedup": round(bf16_s / int8_s, 2)}
    return sizes | times

"""Attention: lengths around the kernels' tiles and splits, and memory that must stay unread.

keys of a sequence   |0 .. 63|64 .. 127|  ...  | ... 255|256 ...        tiles of 64 tokens, splits of 256
"""

from collections.abc import Iterator
from functools import partial

import torch

from infer_kernels.checks.cases.attention.runs import assert_close, attend, draw_batch, expected_attention, plans
from infer_kernels.checks.self_check import ModelOps, SelfCheck

LENGTHS = (1, 63, 64, 65, 256, 257, 513)
BATCHES = {
    "decodes": [(1, length) for length in LENGTHS],
    "prompts": [(1, 1), (63, 63), (64, 64), (65, 65), (17, 256), (65, 257), (33, 513)],
    "decodes and prompts, an idle and an empty sequence": [(1, 257), (65, 65), (0, 64), (1, 0), (1, 63), (3, 513)],
}
"""By name, (rows, tokens) of each sequence."""


def attention_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield every batch for every window of the model; whatever belongs to no sequence is NaN."""
    for window in ops.windows:
        for name, sequences in BATCHES.items():
            label = name if window is None else f"{name}, window {window}"
            run = partial(_check_batch, ops, sequences=sequences, window=window)
            yield SelfCheck(op="paged_attention", label=label, run=run)


def _check_batch(ops: ModelOps, device: torch.device, *, sequences: list[tuple[int, int]], window: int | None) -> None:
    batch = draw_batch(ops, sequences)
    k_cache, v_cache = batch.k_cache.to(device, copy=True), batch.v_cache.to(device, copy=True)
    expected = expected_attention(ops, batch, window=window)
    for how, plan in plans(ops, batch.layout, device):
        actual = attend(ops, batch.q, k_cache, v_cache, plan, window=window)
        assert_close(how, actual, expected)
    for name, own, given in (("key", k_cache, batch.k_cache), ("value", v_cache, batch.v_cache)):
        unchanged = torch.equal(own.cpu().nan_to_num(-1.0), given.nan_to_num(-1.0))
        assert unchanged, f"attention has written to the {name} cache"

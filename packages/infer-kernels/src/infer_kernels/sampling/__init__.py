"""Logits to token ids: filters and draws, penalties, bitmasks, log-probabilities. Knows rows; knows no request."""

from infer_kernels.sampling.bitmask import apply_bitmask
from infer_kernels.sampling.largest import Largest, greedy
from infer_kernels.sampling.logprobs import TopLogprobs, topk_logprobs
from infer_kernels.sampling.penalties import apply_penalties, count_tokens
from infer_kernels.sampling.sample import sample

__all__ = [
    "Largest",
    "TopLogprobs",
    "apply_bitmask",
    "apply_penalties",
    "count_tokens",
    "greedy",
    "sample",
    "topk_logprobs",
]

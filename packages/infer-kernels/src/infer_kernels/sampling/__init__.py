"""Logits to token ids: filters and draws, penalties, log-probabilities. Knows rows; knows no request."""

from infer_kernels.sampling.logprobs import TopLogprobs, topk_logprobs, topk_logprobs_reference
from infer_kernels.sampling.penalties import (
    apply_penalties,
    apply_penalties_reference,
    count_tokens,
    count_tokens_reference,
)
from infer_kernels.sampling.sample import kept_tokens_reference, sample, sample_reference, sample_scratch
from infer_kernels.sampling.uniform import uniform, uniform_reference

__all__ = [
    "TopLogprobs",
    "apply_penalties",
    "apply_penalties_reference",
    "count_tokens",
    "count_tokens_reference",
    "kept_tokens_reference",
    "sample",
    "sample_reference",
    "sample_scratch",
    "topk_logprobs",
    "topk_logprobs_reference",
    "uniform",
    "uniform_reference",
]
